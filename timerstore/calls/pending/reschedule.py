"""Moving a timer to another time, or giving it another payload.

The new timer, which names the old one (`TIMER_REPLACES`), is appended together with the old one's
delete, under one lock. It takes topic, key, tag, body and properties of the old one unless others
are given; a body or properties that are given replace the old ones whole. Without a time it is due
when the old one was. If a crash tears the delete off, the log's last message is such a replacement:
recovery appends the delete before anything fires (`services/opening/recover_damage.py`).
"""

from __future__ import annotations

from timerstore.calls.pending.find_by_id import (
    Target,
    find_ours,
    find_theirs,
    id_as_written,
    is_cancelled,
    replace,
)
from timerstore.calls.pending.is_pending import is_foreign
from timerstore.calls.pending.replacement import Payload, compose_moved
from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError, TooLateError, UnknownTimerError
from timerstore.values.ids import format_id


def reschedule(core: Core, id: str, due_ms: int, now_ms: int, payload: Payload) -> str:
    """Move any timer; return its new id. Neither message is durable yet."""
    offset, target = None, None
    if not (foreign := is_foreign(core, id)):
        id = id_as_written(core, id)
    while offset is None:
        try:
            target = _the_one(core, id) if foreign else find_ours(core, id)
        except UnknownTimerError:
            if target is None:
                raise
            target = None  # it was taken just now
        if target is None:
            raise _too_late(id)
        entry = compose_moved(core, target.timer, due_ms, id, payload)
        offset = replace(core, target, [entry], now_ms)
    return format_id(due_ms, offset, core.engine.store_tag)


def _the_one(core: Core, id: str) -> Target:
    """Find the only timer of a broker with this key, or refuse it."""
    if is_cancelled(core, id):
        raise _too_late(id)
    found = find_theirs(core, id)
    if len(found) > 1:
        topics = ", ".join(repr(each.timer.topic) for each in found)
        raise InvalidArgumentError(
            f"The id {id} stands for timers of several topics ({topics}), which cannot be "
            "rescheduled together. Cancel them, and put new ones."
        )
    return found[0]


def _too_late(id: str) -> TooLateError:
    return TooLateError(f"The timer {id} was fired or cancelled. Put a new timer.")
