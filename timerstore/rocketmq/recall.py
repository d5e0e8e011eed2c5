"""Ids of a cluster's timers, with the handles by which a broker recalls them.

An id has the form of a store's ids (`timerstore/values/ids.py`): 32 hex digits, the first twelve of
which are the due time. It is the message's `UNIQ_KEY`, so it is the same before and after a move. A
client makes its own ids: it sets a bit of the offset that no log is long enough to reach, and the
other bits are random.

A broker finds a timer by `UNIQ_KEY` in the slot that the handle's timestamp leads to. It puts a
timer that is due at the beginning of a slot into the slot before; a store puts it into the slot
that begins then. So there are two timestamps for an id that a store gave: a store that was handed
over has the timer where the first leads to, one that was moved where the second does. A recall that
meets nothing does nothing.
"""

from __future__ import annotations

import base64
import os
from typing import Final

from timerstore.errors import UnknownTimerError
from timerstore.timelog.bytes import format as fmt
from timerstore.values.ids import TimerId, format_id, parse_id

_MADE_HERE: Final = 1 << 46
_SECOND_MS: Final = 1_000


def whole_seconds_ms(due_ms: int) -> int:
    """Return the first whole second at or after a time.

    >>> whole_seconds_ms(1_001), whole_seconds_ms(2_000)
    (2000, 2000)
    """
    return -(-due_ms // _SECOND_MS) * _SECOND_MS


def new_id(due_ms: int) -> str:
    """Return an id that nobody else makes: 78 of its bits are random."""
    offset = _MADE_HERE | int.from_bytes(os.urandom(6), "big") >> 2
    return format_id(due_ms, offset, int.from_bytes(os.urandom(4), "big"))


def known_id(id: str) -> TimerId:
    """Return the parts of an id, or refuse what no broker can recall."""
    parts = parse_id(id)
    if parts is None:
        raise UnknownTimerError(f"{id!r} is no id. Pass one that put returned.")
    if parts.offset & fmt.LEVEL_MARK:
        raise UnknownTimerError(
            f"{id} was put with a delay level, and a broker cannot recall that. Let it come."
        )
    return parts


def handles_of(topic: str, broker: str, id: TimerId) -> list[str]:
    """Return the handles by which a broker may know a timer."""
    due_ms = id.due_ms
    times_ms = [whole_seconds_ms(due_ms) - 1]
    if not id.offset & _MADE_HERE:
        times_ms.append(due_ms + 1)
    key = format_id(*id)
    texts = [f"v1 {topic} {broker} {time_ms} {key}" for time_ms in times_ms]
    return [base64.urlsafe_b64encode(text.encode()).decode() for text in texts]
