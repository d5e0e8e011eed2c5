"""The timer that comes in the place of another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from timerstore.calls.pending.timers import Timer
from timerstore.calls.putting.putter import compose_timer
from timerstore.core.core import Core
from timerstore.timelog.bytes.decode import user_properties
from timerstore.timelog.writing.compose import Staged
from timerstore.values.arguments import check_body, check_description, encode_properties


class Payload(NamedTuple):
    """What comes in the place of a timer's payload; None: as it was."""

    body: bytes | None = None
    properties: Mapping[str, str] | None = None
    """The user's own, all of them; key and tag stay."""
    tag: str | None = None
    keeps_tag: bool = True
    """False: `tag` comes in the place of the old one, too."""


UNCHANGED: Final = Payload()


def check_payload(core: Core, body: object, properties: Mapping[str, str] | None) -> Payload:
    """Return what replaces a payload, or refuse it."""
    encoded = encode_properties(None, None, properties)
    if body is not None:
        body = check_body(body, len(encoded), core.engine.content_bytes_max)
    return Payload(body, None if properties is None else dict(properties))


def compose_moved(core: Core, timer: Timer, due_ms: int, id: str, payload: Payload) -> Staged:
    """Compose the timer that comes in the place of another one, and return where it is staged."""
    own = timer.properties if payload.properties is None else payload.properties
    tag = timer.tag if payload.keeps_tag else payload.tag
    described = {"TAGS": tag, "KEYS": timer.key, **own}
    properties = encode_described({k: v for k, v in described.items() if v is not None})
    if payload.properties is not None:
        check_description(len(properties))
    body = timer.body if payload.body is None else payload.body
    check_body(body, len(properties), core.engine.content_bytes_max)
    topic = timer.topic.encode("utf-8", "surrogateescape")
    return compose_timer(core.engine, topic, body, due_ms, properties, tag, replaces=id)


def encode_described(properties: dict[str, str]) -> bytes:
    """Return tag, key and the user's own of a message's properties as they stand in one."""
    first = [(name, properties[name]) for name in ("TAGS", "KEYS") if name in properties]
    described = [*first, *user_properties(properties).items()]
    encoded = "".join([f"{name}\x01{value}\x02" for name, value in described])
    return encoded.encode("utf-8", "surrogateescape")
