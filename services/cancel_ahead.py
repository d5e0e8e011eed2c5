"""Cancelling timers that lie ahead, in one kernel: verdict, cancelled set, delete messages.

A timer that is due after the frontier, or has no unit yet, was certainly not taken, nor a delay
level's message that its loop has not reached. All of it
happens under the step lock, which the kernel takes and gives back without returning to Python: a
thread that held it and waited for the GIL would make every timer late that falls due meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.services.deletes import DELETE_BODY, delete_template
from timerstore.services.engine import Engine
from timerstore.services.levels import LEVEL_CANCELLED
from timerstore.timelog.append import Stage, append
from timerstore.timelog.frame import frame_new, new_message_bytes_max
from timerstore.timelog.intrinsics import view_words
from timerstore.timelog.kernel import kernel
from timerstore.timelog.message import IDENTITY_HELD, IDENTITY_OURS
from timerstore.timelog.record import Bytes, Words
from timerstore.timelog.system import lock_acquire, lock_release
from timerstore.wheel.sets import ENTRY_WORDS, set_add, set_contains, set_remove
from timerstore.wheel.state import (
    CANCELLED_ADDRESS,
    CANCELLED_COUNT,
    CANCELLED_LENGTH,
    FRONTIER,
    LINKED,
    PRECISION,
    READ,
)

# What became of a target.
NOT_JUDGED: Final = 0
CANCELLED_NOW: Final = 1
CANCELLED_BEFORE: Final = 2

# Why the kernel returned.
_WHOLE: Final = 0
_MAY_BE_TAKEN: Final = 1
_NO_ROOM: Final = 2  # in the cancelled set
_NO_SEGMENT: Final = 3

_BATCH_BYTES: Final = 32 << 10
"""Deletes of one batch: the step lock is held for some 50 µs."""


@kernel
def _cancel_batch(
    world: Any,
    stage: Any,
    template: Any,
    body: Any,
    keys: Any,
    due_ms: Any,
    offsets: Any,
    indexes: Any,
    levels: Any,
    start: int,
    now_ms: int,
    tag: int,
    verdicts: Any,
    why: Any,
) -> int:
    """Cancel a batch from `start` on; return how many of all are judged; `why[0]`: why it stopped.

    `keys`: uint8[n, 32], the targets' unique keys; `due_ms`, `offsets`, `indexes`, `levels`:
    int64[n], the targets' due time, first put as in the key, its entry in its queue, and its delay
    level − 1, or −1 for a timer. `verdicts`: int8[n], written. O(bytes).
    """
    words, level_words = world.words, world.levels.words
    lock_acquire(world.step_lock)
    table = view_words(words[CANCELLED_ADDRESS], words[CANCELLED_LENGTH])
    # A cancelled roll is dropped long before its time, so R may be past what was ever taken.
    frontier_ms = max(words[FRONTIER], words[READ] * words[PRECISION] - 1)
    why[0] = _WHOLE
    at, staged, i = 0, 0, start
    while i < len(due_ms) and staged < len(stage.size):
        room = new_message_bytes_max(template, len(body), len(keys[i]))
        if at + room > _BATCH_BYTES:
            break
        known = set_contains(table, IDENTITY_OURS, offsets[i])
        taken = due_ms[i] <= frontier_ms and indexes[i] < words[LINKED]
        if levels[i] >= 0:
            known = known or set_contains(table, IDENTITY_HELD, offsets[i])
            taken = indexes[i] < world.levels.offset[levels[i]]
        if known:
            verdicts[i] = CANCELLED_BEFORE
        elif taken:
            why[0] = _MAY_BE_TAKEN
            break
        elif 2 * ENTRY_WORDS * (words[CANCELLED_COUNT] + 1) > words[CANCELLED_LENGTH]:
            why[0] = _NO_ROOM
            break
        else:
            set_add(table, IDENTITY_OURS, offsets[i])
            words[CANCELLED_COUNT] += 1
            level_words[LEVEL_CANCELLED] += 1 if levels[i] >= 0 else 0
            at += frame_new(stage, staged, at, template, body, keys[i], due_ms[i], now_ms, tag)
            verdicts[i] = CANCELLED_NOW
            staged += 1
        i += 1
    done = append(world.commitlog, world.queues, world.append_lock, stage, staged, now_ms, False)
    while staged > done:  # take back those whose delete is not in the log
        i -= 1
        if verdicts[i] == CANCELLED_NOW:
            set_remove(table, IDENTITY_OURS, offsets[i])
            words[CANCELLED_COUNT] -= 1
            level_words[LEVEL_CANCELLED] -= 1 if levels[i] >= 0 else 0
            staged -= 1
            why[0] = _NO_SEGMENT
        verdicts[i] = NOT_JUDGED
    lock_release(world.step_lock)
    return i


def cancel_ahead(
    engine: Engine,
    stage: Stage,
    topic: bytes,
    pending_row: int,
    keys: Bytes,
    due_ms: Words,
    offsets: Words,
    indexes: Words,
    levels: Words,
    now_ms: int,
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Cancel timers of one topic; int8[n]: what became of each, see the constants above.

    What is NOT_JUDGED may have been taken: look for it. Arrays as for the kernel; `pending_row`:
    where they are counted, see `QueueTable.pending`.
    """
    verdicts, why = np.zeros(len(due_ms), np.int8), np.zeros(1, np.int64)
    template, start = delete_template(engine, topic, pending_row), 0
    while start < len(due_ms):
        start = _cancel_batch(
            engine.world,
            stage,
            template,
            DELETE_BODY,
            keys,
            due_ms,
            offsets,
            indexes,
            levels,
            start,
            now_ms,
            engine.store_tag,
            verdicts,
            why,
        )
        if why[0] == _MAY_BE_TAKEN:
            start += 1
        elif why[0] == _NO_ROOM:
            with engine.step_lock:
                engine.reserve_cancelled(len(due_ms) - start)
        elif why[0] == _NO_SEGMENT:
            engine.meet_append()
    return verdicts
