"""Cancelling in one kernel: verdict, cancelled set, delete messages.

A timer that is due after the frontier, or has no unit yet, was certainly not taken, nor a delay
level's message that its loop has not reached. All of it
happens under fire, which the kernel takes and gives back without returning to Python: if a thread
held it and waited for the GIL, every timer that falls due in that time would be late.
If Python had to look for a timer, it holds the lock, and the kernel does the rest. Either way no
signal can leave an entry in the cancelled set without its delete in the log.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.jit.acting import act_as
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Bytes, Int8s, Words, observe
from timerstore.services.calls.deletes import DELETE_BODY, delete_template
from timerstore.services.calls.first_puts import FirstPuts
from timerstore.services.engine.engine import Engine
from timerstore.services.world.state import CANCEL
from timerstore.services.world.world import World
from timerstore.timelog.bytes.idtext import put_id
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.writing.append import Stage, append
from timerstore.timelog.writing.frame import NewSays, Template, frame_new, new_message_bytes_max
from timerstore.wheel.cancelled import (
    cancelled_add,
    cancelled_contains,
    cancelled_has_room,
    cancelled_prefetch,
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
_BATCHES_MAX: Final = 64
"""Batches between two looks of Python at signals: some 3 ms."""
_PLACES_AHEAD: Final = 8
"""So many places of the cancelled set are asked for before they are looked at."""


class Targets(NamedTuple):
    """Timers that are cancelled, all of one topic."""

    puts: FirstPuts
    judged: bool  # the caller holds the locks, and knows that none of them was taken


class Became(NamedTuple):
    """What a batch writes."""

    verdicts: Int8s  # int8[n]
    why: Words  # int64[1], why it stopped
    key: Bytes  # uint8[32], scratch


@inlined
def is_ahead(world: World, due_ms: int, index: int, message: int) -> bool:
    """Tell whether a timer that is not in the cancelled set certainly waits. Under fire.

    `index`: of its first put in the timer topic's queue; `message`: that one's offset.
    """
    if message < world.cleaning.floor:  # if it was cancelled, cleaning may have forgotten that
        return False
    # A cancelled roll is dropped long before its time, so R may be past what was ever taken.
    passed_ms = observe(world.dequeue_put, "passed_slot") * world.settings.precision_ms
    if due_ms > max(world.dequeue_put.frontier_ms, passed_ms - 1):
        return True
    return index >= observe(world.enqueue_put, "linked_index")


@inlined
def _cancel_batch(
    world: World,
    stage: Stage,
    template: Template,
    targets: Targets,
    start: int,
    now_ms: int,
    became: Became,
) -> int:
    """Cancel a batch from `start` on; return how many of all are judged. O(bytes)."""
    cancelled, judged = world.cancelled, targets.judged
    puts, verdicts, why, key = targets.puts, became.verdicts, became.why, became.key
    offsets, tag = puts.offset, world.settings.store_tag
    before = act_as(CANCEL)
    if not judged:
        lock_acquire(world.fire_lock)
    why[0] = _WHOLE
    at, staged, i = 0, 0, start
    while i < len(offsets) and staged < len(stage.size):
        if at + new_message_bytes_max(template, len(DELETE_BODY), len(key)) > _BATCH_BYTES:
            break
        if i + _PLACES_AHEAD < len(offsets):
            cancelled_prefetch(cancelled, IDENTITY_OURS, offsets[i + _PLACES_AHEAD])
        taken = not is_ahead(world, puts.due_ms[i], puts.entry[i], offsets[i])
        if puts.level[i] >= 0:
            taken = puts.entry[i] < world.levels.offset[puts.level[i]]
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
            due_ms = puts.due_ms[i]
            put_id(key, 0, due_ms, offsets[i], tag)
            says = NewSays(DELETE_BODY, key, due_ms)
            at += frame_new(stage, staged, at, template, says, now_ms)
            stage.born_ms[staged] = puts.born_ms[i]
            stage.body_bytes[staged] = puts.body_bytes[i]
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


@kernel_ahead
def _cancel_batches(
    world: World,
    stage: Stage,
    template: Template,
    targets: Targets,
    start: int,
    now_ms: int,
    became: Became,
) -> int:
    """Cancel from `start` on, while all goes well; return how many of all are judged. O(bytes).

    It goes on without Python, whose way in and out takes a fifth of a batch. Whoever waits for fire
    has it between two batches.
    """
    for _ in range(_BATCHES_MAX):
        start = _cancel_batch(world, stage, template, targets, start, now_ms, became)
        if start == len(targets.puts.offset) or became.why[0] != _WHOLE:
            break
    return start


def cancel_ahead(
    engine: Engine,
    stage: Stage,
    topic: bytes,
    pending_row: int,
    puts: FirstPuts,
    now_ms: int,
    *,
    judged: bool = False,
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Cancel timers of one topic; int8[n]: what became of each, see the constants above.

    What is NOT_JUDGED may have been taken: look for it. `pending_row`: the row in which they are
    counted, see `QueueTable.pending`. With `judged` the caller holds the locks, and room in the
    cancelled set for all.
    """
    count = len(puts.offset)
    verdicts, why, key = np.zeros(count, np.int8), np.zeros(1, np.int64), np.zeros(32, np.uint8)
    targets, became = Targets(puts, judged), Became(verdicts, why, key)
    template, start = delete_template(topic, pending_row, engine.store_tag), 0
    while start < count:
        with engine.commitlog.reading():
            start = _cancel_batches(engine.world, stage, template, targets, start, now_ms, became)
        if why[0] == _MAY_BE_TAKEN:
            start += 1
        elif why[0] == _NO_ROOM:
            engine.cancelled.grow(engine.world.fire_lock, count - start)
        elif why[0] == _NO_SEGMENT:
            engine.provide_append(stage)
    return verdicts


@kernel_ahead
def _cancel_with(world: World, stage: Stage, count: int, high: int, low: int, now_ms: int) -> bool:
    """Append `count` messages, the last one a timer's delete, and note that timer as cancelled.

    `high`, `low`: its identity. Under fire. False, and nothing done, if a segment is missing,
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
