"""Cancelling in one kernel: verdict, cancelled set, delete messages.

A timer that is due after the frontier, or has no unit yet, was certainly not taken, nor a delay
level's message that its loop has not reached. All of it
happens under fire, which the kernel takes and gives back without returning to Python: if a thread
held it and waited for the GIL, every timer that falls due in that time would be late. No signal can
leave an entry in the cancelled set without its delete in the log.

A timer that may have been taken is looked for by Python, without a lock. What becomes of one from
then on stands in the log: its copy, another one's delete. So under fire the kernel reads what was
appended since, and a timer that is named there has to be looked for anew.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Bytes, Int8s, Words, act_as, observe
from timerstore.services.calls.appending import DELETE_BODY, delete_template
from timerstore.services.calls.first_puts import FirstPuts
from timerstore.services.engine.engine import Engine
from timerstore.services.world.state import CANCEL
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import NO_BLANK, read_blank
from timerstore.timelog.bytes.decode import put_id
from timerstore.timelog.bytes.message import (
    GOOD,
    IDENTITY_OURS,
    MessageParts,
    identify_named,
    read_message,
)
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.writing.append import Stage, append
from timerstore.timelog.writing.frame import NewSays, Template, frame_new, new_message_bytes_max
from timerstore.wheel.cancelled import (
    cancelled_add,
    cancelled_contains,
    cancelled_has_room,
    cancelled_prefetch,
    cancelled_remove,
    place_among,
)

Verdicts = np.ndarray[Any, np.dtype[np.int8]]

# What became of a target.
NOT_JUDGED: Final = 0
CANCELLED_NOW: Final = 1
CANCELLED_BEFORE: Final = 2
NAMED_SINCE: Final = 3  # the log names it, or may: look for it anew

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
_LOOK_BYTES: Final = 64 << 10
"""So much of the log is read under fire at most: some 20 µs."""
NOBODY_LOOKED: Final = -1


class Sought(NamedTuple):
    """Timers that were found to wait."""

    high: int  # of their identities
    low: Words  # ascending
    log: Words  # int64[1]: what lies before in the log was looked at; or NOBODY_LOOKED
    found: MessageParts  # scratch


class Targets(NamedTuple):
    """Timers that are cancelled, all of one topic."""

    puts: FirstPuts
    sought: Sought


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
    # A cancelled roll is dropped long before its time, so the read cursor may be past what was ever
    # taken.
    passed_ms = observe(world.dequeue_put, "passed_slot") * world.settings.precision_ms
    if due_ms > max(world.dequeue_put.frontier_ms, passed_ms - 1):
        return True
    return index >= observe(world.enqueue_put, "linked_index")


@inlined
def _take_fire(world: World, sought: Sought, verdicts: Int8s) -> None:
    """Take fire, and mark those that the log has named since they were looked for. O(bytes)."""
    log = sought.log
    lock_acquire(world.fire_lock)
    while log[0] != NOBODY_LOOKED and log[0] < observe(world.commitlog, "end"):
        stop = observe(world.commitlog, "end")
        is_long = stop - log[0] > _LOOK_BYTES
        if is_long:
            lock_release(world.fire_lock)
        while log[0] < stop:
            log[0] = _mark_named(world, sought, verdicts, stop)
        if is_long:
            lock_acquire(world.fire_lock)


@inlined
def _mark_named(world: World, sought: Sought, verdicts: Int8s, stop: int) -> int:
    """Mark those that the message named that begins where nobody looked yet; return its end.

    If it cannot be read, all are marked, and `stop` is returned.
    """
    commitlog, found, offset = world.commitlog, sought.found, sought.log[0]
    buf = segment_at(commitlog, offset)
    at = offset % commitlog.segment_bytes
    left = commitlog.segment_bytes - at
    is_there = len(buf) > 0 and left >= fmt.BLANK_BYTES
    if is_there and read_blank(buf, at, offset) != NO_BLANK:
        return offset + left
    if not is_there or read_message(buf, at, offset, found, False) != GOOD:
        for i in range(len(verdicts)):
            if verdicts[i] == NOT_JUDGED:
                verdicts[i] = NAMED_SINCE
        return stop
    identify_named(buf, found, world.settings.store_tag)
    if found.identity_high == sought.high:
        i = place_among(sought.low, found.identity_low)
        while i < len(sought.low) and sought.low[i] == found.identity_low:
            if verdicts[i] == NOT_JUDGED:
                verdicts[i] = NAMED_SINCE
            i += 1
    return offset + found.size


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
    cancelled, judged = world.cancelled, targets.sought.log[0] != NOBODY_LOOKED
    puts, verdicts, why, key = targets.puts, became.verdicts, became.why, became.key
    offsets, tag = puts.offset, world.settings.store_tag
    before = act_as(CANCEL)
    _take_fire(world, targets.sought, verdicts)
    why[0] = _WHOLE
    at, staged, i = 0, 0, start
    while i < len(offsets) and staged < len(stage.size):
        if at + new_message_bytes_max(template, len(DELETE_BODY), len(key)) > _BATCH_BYTES:
            break
        if i + _PLACES_AHEAD < len(offsets):
            cancelled_prefetch(cancelled, IDENTITY_OURS, offsets[i + _PLACES_AHEAD])
        if puts.level[i] >= 0:
            taken = puts.entry[i] < world.levels.offset[puts.level[i]]
        else:
            taken = not judged and not is_ahead(world, puts.due_ms[i], puts.entry[i], offsets[i])
        if verdicts[i] == NAMED_SINCE:
            pass
        elif cancelled_contains(cancelled, IDENTITY_OURS, offsets[i]):
            verdicts[i] = CANCELLED_BEFORE
        elif taken and judged:
            verdicts[i] = NAMED_SINCE
        elif taken:
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
        if verdicts[i] != NAMED_SINCE:
            verdicts[i] = NOT_JUDGED
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
    log: int = NOBODY_LOOKED,
) -> Verdicts:
    """Cancel timers of one topic; int8[n]: what became of each, see the constants above.

    What is NOT_JUDGED may have been taken: look for it. `pending_row`: the row in which they are
    counted, see `QueueTable.pending`. `log`: the log's end before they were looked for, and found
    to wait; their offsets ascend then.
    """
    count = len(puts.offset)
    verdicts, why, key = np.zeros(count, np.int8), np.zeros(1, np.int64), np.zeros(32, np.uint8)
    sought = Sought(IDENTITY_OURS, puts.offset, np.array([log]), MessageParts())
    targets, became = Targets(puts, sought), Became(verdicts, why, key)
    template, start = delete_template(topic, pending_row, engine.store_tag), 0
    while start < count:
        with engine.commitlog.reading():
            start = _cancel_batches(engine.world, stage, template, targets, start, now_ms, became)
        if why[0] == _MAY_BE_TAKEN:
            start += 1
        elif why[0] == _NO_ROOM:
            engine.cancelled.grow(count - start)
        elif why[0] == _NO_SEGMENT:
            engine.provide_append(stage)
    return verdicts


@kernel_ahead
def _cancel_with(
    world: World, stage: Stage, count: int, sought: Sought, verdicts: Int8s, now_ms: int
) -> int:
    """Append `count` messages, the last one the delete of the one sought, and note it as cancelled.

    Return why nothing was done; if a segment is missing, see `stage.need`. `verdicts`: int8[1].
    """
    before, why = act_as(CANCEL), _WHOLE
    _take_fire(world, sought, verdicts)
    if cancelled_contains(world.cancelled, sought.high, sought.low[0]):
        verdicts[0] = CANCELLED_BEFORE
    if verdicts[0] != NOT_JUDGED:
        why = _MAY_BE_TAKEN
    elif not cancelled_has_room(world.cancelled):
        why = _NO_ROOM
    elif append(world.commitlog, world.queues, world.append_lock, stage, count, now_ms, True) == 0:
        why = _NO_SEGMENT
    else:
        cancelled_add(world.cancelled, sought.high, sought.low[0])
    lock_release(world.fire_lock)
    act_as(before)
    return why


def cancel_with(
    engine: Engine, stage: Stage, count: int, identity: tuple[int, int], log: int, now_ms: int
) -> int | None:
    """Append all that is staged at once, the last one a timer's delete; return the first's offset.

    Before it may stand the timer that comes in its place. `identity`: the old one's. `log`: the
    log's end before it was looked for, and found to wait. None: look for it anew.
    """
    sought = Sought(identity[0], np.array(identity[1:]), np.array([log]), MessageParts())
    verdicts = np.zeros(1, np.int8)
    while True:
        with engine.commitlog.reading():
            why = _cancel_with(engine.world, stage, count, sought, verdicts, now_ms)
        if why == _MAY_BE_TAKEN:
            return None
        if why == _WHOLE:
            return int(stage.offset[0])
        if why == _NO_ROOM:
            engine.cancelled.grow(1)
        else:
            engine.provide_append(stage)
