"""The puts that come with an acknowledgement, as a handler says them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from timerstore.errors import InvalidArgumentError
from timerstore.timelog.writing.compose import PUTS_MAX
from timerstore.values.put import Timing


class Put(Timing, total=False):
    """What `put` takes, by name; without a topic, that of the message."""

    body: bytes
    topic: str | None


NAMES: Final = frozenset(Put.__annotations__)
"""What a put may say."""


def checked(puts: Any) -> list[dict[str, Any]]:
    """Return the arguments of each put, or refuse them."""
    if isinstance(puts, str | bytes | Mapping) or not isinstance(puts, Sequence):
        raise InvalidArgumentError(f"puts is {puts!r}. Pass a list of dicts, each as for put.")
    if not 1 <= len(puts) <= PUTS_MAX:
        raise InvalidArgumentError(f"puts has {len(puts)} timers. Pass 1 to {PUTS_MAX}.")
    for each in puts:
        if not isinstance(each, Mapping) or not set(each) <= NAMES or "body" not in each:
            raise InvalidArgumentError(
                f"puts contains {each!r}. Pass a dict with body, and any of "
                f"{', '.join(sorted(NAMES - {'body'}))}."
            )
    return [dict(each) for each in puts]
