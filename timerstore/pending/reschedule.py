"""Moving a timer to another time, or giving it another payload."""

from __future__ import annotations

from timerstore.core import Core
from timerstore.errors import InvalidArgumentError, TooLateError
from timerstore.ids import format_id
from timerstore.pending import foreign
from timerstore.pending.moved import Payload, compose_moved
from timerstore.pending.timers import read_timer
from timerstore.pending.verdict import is_foreign, judge, parse
from timerstore.services.cancel_ahead import (
    replace_timer,
)
from timerstore.services.deletes import compose_delete
from timerstore.services.first_puts import DAMAGED
from timerstore.timelog.compose import Staged, stage_messages
from timerstore.timelog.format import (
    LEVEL_MARK,
)


def reschedule(core: Core, id: str, due_ms: int, now_ms: int, payload: Payload) -> str:
    """Move any timer; return its new id. Neither message is durable yet."""
    engine = core.engine
    if is_foreign(core, id):
        return foreign.reschedule(core, id, due_ms, now_ms, payload)
    (first_due_ms, *_), (first, *_) = parse(core, [id])
    id = format_id(int(first_due_ms), int(first), engine.store_tag)  # as it is read from the log
    if first >= LEVEL_MARK:
        raise InvalidArgumentError(
            f"{id} waits in a delay level, whose messages keep their order. "
            "Cancel it, and put a new timer."
        )
    with engine.locks:
        verdict = judge(core, [id], locked=True)
        if not verdict.pending[0] and verdict.row[0] != DAMAGED:
            raise TooLateError(f"{id} was fired or cancelled. Put a new timer.")
        offset, old_due_ms = int(verdict.offset[0]), int(verdict.due_ms[0])
        timer = read_timer(core, int(verdict.message[0]), old_due_ms)
        entry = compose_moved(core, timer, due_ms, id, payload)
        topic, row = timer.topic.encode(), entry[3]
        delete = compose_delete(engine, topic, id.encode(), old_due_ms, now_ms)
        engine.cancelled.reserve(1)
        stage = core.take_stage()
        try:
            old = Staged(delete, 0, 0, row, -1, old_due_ms, timer.put_ms, len(timer.body))
            stage_messages(stage, [entry, old])
            new_offset = replace_timer(engine, stage, offset, now_ms)
        finally:
            core.free_stage(stage)
    return format_id(due_ms, new_offset, engine.store_tag)
