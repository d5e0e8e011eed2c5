"""What a put is given, as one row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from timerstore.values.arguments import encode_properties
from timerstore.values.kinds import Duration

Given = tuple[Any, ...]
"""A row's fields as a plain tuple: making the row itself takes a quarter of a short put's time."""


class Timing(TypedDict, total=False):
    """What each call that puts one timer takes besides body and topic, by name."""

    delay: Duration | None
    delay_ms: int | None
    at: datetime | None
    at_ms: int | None
    key: str | None
    tag: str | None
    properties: Mapping[str, str] | None
    delay_level: int | None
    if_absent: bool


class Described(Timing, total=False):
    """What `put` takes besides the body, by name."""

    topic: str
    replace: bool


class Put(NamedTuple):
    """The arguments of `AnyStore.put`, in their order, with what they are if left out."""

    body: bytes
    topic: str = "default"
    delay: timedelta | None = None
    at: datetime | None = None
    at_ms: int | None = None
    key: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    delay_level: int | None = None
    if_absent: bool = False
    replace: bool = False

    @property
    def is_conditional(self) -> bool:
        """Whether it depends on what is pending; or what says so is wrong."""
        return self.if_absent is not False or self.replace is not False

    @property
    def times(self) -> tuple[timedelta | None, datetime | None, int | None]:
        """What says when it is due, except a delay level."""
        return self.delay, self.at, self.at_ms

    def described(self) -> bytes:
        """Return key, tag and properties as they stand in a message, or refuse them."""
        return encode_properties(self.key, self.tag, self.properties)
