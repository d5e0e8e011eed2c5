"""Cancelling in one kernel: verdict, cancelled set, delete messages.

A timer that is due after the frontier, or has no unit yet, was certainly not taken, nor a delay
level's message that its loop has not reached. All of it
happens under fire, which the kernel takes and gives back without returning to Python: a
thread that held it and waited for the GIL would make every timer late that falls due meanwhile.
Where Python had to look for a timer, it holds the lock, and the kernel does the rest. Either way no
signal can leave an entry in the cancelled set without its delete in the log.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.services.calls.deletes import DELETE_BODY, delete_template
from timerstore.services.engine.engine import Engine
from timerstore.services.world.state import CANCEL
from timerstore.services.world.world import World
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.jit.acting import act_as
from timerstore.timelog.jit.kernel import inlined, kernel_ahead
from timerstore.timelog.jit.locks import lock_acquire, lock_release
from timerstore.timelog.jit.record import Bytes, Int8s, ReadByteRows, Words, observe
from timerstore.timelog.jit.signatures import read_only
from timerstore.timelog.writing.append import Stage, append
from timerstore.timelog.writing.frame import Template, frame_new, new_message_bytes_max
from timerstore.wheel.cancelled import (
    cancelled_add,
    cancelled_contains,
    cancelled_has_room,
    cancelled_remove,
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
"""Deletes of one batch: fire is held for some 50 µs."""


@inlined
def is_ahead(world: World, due_ms: int, index: int) -> bool:
    """Tell whether a timer was certainly not taken. Under fire.

    `index`: of its first put in the timer topic's queue.
    """
    # A cancelled roll is dropped long before its time, so R may be past what was ever taken.
    passed_ms = observe(world.dequeue_put, "passed_slot") * world.settings.precision_ms
    if due_ms > max(world.dequeue_put.frontier_ms, passed_ms - 1):
        return True
    return index >= observe(world.enqueue_put, "linked_index")


@kernel_ahead
def _cancel_batch(
    world: World,
    stage: Stage,
    template: Template,
    body: Bytes,
    keys: ReadByteRows,
    due_ms: Words,
    offsets: Words,
    indexes: Words,
    levels: Words,
    born_ms: Words,
    body_bytes: Words,
    start: int,
    now_ms: int,
    tag: int,
    verdicts: Int8s,
    why: Words,
    judged: bool,
) -> int:
    """Cancel a batch from `start` on; return how many of all are judged; `why[0]`: why it stopped.

    `keys`: uint8[n, 32], the targets' unique keys; `due_ms`, `offsets`, `indexes`, `levels`:
    int64[n], the targets' due time, first put as in the key, its entry in its queue, and its delay
    level − 1, or −1 for a timer; `born_ms`, `body_bytes`: int64[n], of the targets' messages.
    `verdicts`: int8[n], written. `judged`: the caller holds the
    locks, and knows that none of them was taken. O(bytes).
    """
    cancelled = world.cancelled
    before = act_as(CANCEL)
    if not judged:
        lock_acquire(world.fire_lock)
    why[0] = _WHOLE
    at, staged, i = 0, 0, start
    while i < len(due_ms) and staged < len(stage.size):
        room = new_message_bytes_max(template, len(body), len(keys[i]))
        if at + room > _BATCH_BYTES:
            break
        taken = not is_ahead(world, due_ms[i], indexes[i])
        if levels[i] >= 0:
            taken = indexes[i] < world.levels.offset[levels[i]]
        if cancelled_contains(cancelled, IDENTITY_OURS, offsets[i]):
            verdicts[i] = CANCELLED_BEFORE
        elif taken and not judged:
            why[0] = _MAY_BE_TAKEN
            break
        elif not cancelled_has_room(cancelled):
            why[0] = _NO_ROOM
            break
        else:
            cancelled_add(cancelled, IDENTITY_OURS, offsets[i])
            at += frame_new(stage, staged, at, template, body, keys[i], due_ms[i], now_ms, tag)
            stage.born_ms[staged] = born_ms[i]
            stage.body_bytes[staged] = body_bytes[i]
            verdicts[i] = CANCELLED_NOW
            staged += 1
        i += 1
    done = append(world.commitlog, world.queues, world.append_lock, stage, staged, now_ms, False)
    while staged > done:  # take back those whose delete is not in the log
        i -= 1
        if verdicts[i] == CANCELLED_NOW:
            cancelled_remove(cancelled, IDENTITY_OURS, offsets[i])
            staged -= 1
            why[0] = _NO_SEGMENT
        verdicts[i] = NOT_JUDGED
    if not judged:
        lock_release(world.fire_lock)
    act_as(before)
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
    born_ms: Words,
    body_bytes: Words,
    now_ms: int,
    *,
    judged: bool = False,
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Cancel timers of one topic; int8[n]: what became of each, see the constants above.

    What is NOT_JUDGED may have been taken: look for it. Arrays as for the kernel; `pending_row`:
    where they are counted, see `QueueTable.pending`. With `judged` the caller holds the locks,
    and room in the cancelled set for all.
    """
    verdicts, why = np.zeros(len(due_ms), np.int8), np.zeros(1, np.int64)
    keys = read_only(keys)  # a choice of them may be written
    template, start = delete_template(topic, pending_row), 0
    while start < len(due_ms):
        with engine.commitlog.reading():
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
                born_ms,
                body_bytes,
                start,
                now_ms,
                engine.store_tag,
                verdicts,
                why,
                judged,
            )
        if why[0] == _MAY_BE_TAKEN:
            start += 1
        elif why[0] == _NO_ROOM:
            with engine.locks.fire:
                engine.cancelled.reserve(len(due_ms) - start)
        elif why[0] == _NO_SEGMENT:
            engine.provide_append(stage)
    return verdicts


@kernel_ahead
def _cancel_with(world: World, stage: Stage, count: int, high: int, low: int, now_ms: int) -> bool:
    """Append `count` messages, the last one a timer's delete, and note that timer as cancelled.

    `high`, `low`: its identity. Under fire. False, and nothing done, where a segment is missing,
    see `stage.need`.
    """
    if append(world.commitlog, world.queues, world.append_lock, stage, count, now_ms, True) == 0:
        return False
    before = act_as(CANCEL)
    cancelled_add(world.cancelled, high, low)
    act_as(before)
    return True


def cancel_with(engine: Engine, stage: Stage, count: int, high: int, low: int, now_ms: int) -> int:
    """Append all that is staged at once, the last one a timer's delete; return the first's offset.

    Before it may stand the timer that comes in its place. `high`, `low`: the old one's identity.
    The caller holds the locks, with room in the cancelled set, and knows that it was not taken.
    """
    while True:
        with engine.commitlog.reading():
            if _cancel_with(engine.world, stage, count, high, low, now_ms):
                break
        engine.provide_append(stage)
    return int(stage.offset[0])
