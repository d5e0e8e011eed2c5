"""Dequeue-put: appends copies of what was taken, fired or rolled.

It empties the dequeue-put queue in order, and moves `READ` over slots that are settled. After
RocketMQ's `TimerMessageStore.TimerDequeuePutMessageService` and `doPut`.
"""

from __future__ import annotations

from typing import Any, Final

from timerstore.services.levels import LEVEL_HELD, LEVEL_HELD_FROM
from timerstore.services.world import (
    DEQUEUE_COLUMNS,
    DEQUEUE_INFO,
    DEQUEUE_MESSAGE,
    DEQUEUE_RING,
    RING_COUNT,
    RING_HEAD,
    lateness_bucket,
    ring_count,
)
from timerstore.timelog.append import (
    BATCH_BYTES,
    NEED_COMMITLOG,
    NEED_ROW,
    STAGE_BYTES,
    STAGE_COUNT_MAX,
    STORED_MS,
    append,
)
from timerstore.timelog.append import (
    NEED as APPEND_NEED,
)
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.format import LEVEL_MARK, TIMER_TOPIC, UNIT_DELETE, UNIT_ROLL
from timerstore.timelog.frame import COPY_EXTRA_BYTES, FIRED, ROLLED, frame_copy
from timerstore.timelog.intrinsics import get_i64, prefetch, view_words
from timerstore.timelog.kernel import inlined
from timerstore.timelog.message import (
    DUE_MS,
    GOOD,
    IDENTITY_HELD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    IDENTITY_OURS,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    SIZE,
    TAGS_AT,
    TAGS_BYTES,
    exact_due_ms,
    identify_target,
    identify_timer,
    java_hash,
    read_message,
    stored_at,
)
from timerstore.timelog.segments import SEGMENT_BYTES, segment_at
from timerstore.wheel.near import (
    NONE,
    SLOT_FIRST_COPY,
    SLOT_REMAINING,
    SLOT_ROLL_INDEX,
    info_size,
    info_slot,
    near_drop_delete,
    near_last_delete,
    slot_word,
)
from timerstore.wheel.sets import set_add, set_contains, set_remove
from timerstore.wheel.slots import NO_UNIT
from timerstore.wheel.state import (
    CANCELLED_ADDRESS,
    CANCELLED_COUNT,
    CANCELLED_LENGTH,
    CLAIM_OFFSET,
    CLAIMED,
    COMMITLOG_READ,
    COMMITLOG_SEGMENT,
    COUNT_DROPPED,
    COUNT_FIRED,
    COUNT_ROLLED,
    COUNT_UNREADABLE,
    FLUSHED,
    FRONTIER,
    LAST_UNREADABLE,
    LATENESS_MAX_MS,
    LATENESS_SUM_MS,
    LINKED,
    NEED,
    NEED_OFFSET,
    PRECISION,
    QUEUE_SEGMENT,
    READ,
    READ_CHECKPOINTED,
    ROLLS_BEFORE,
    SCAN,
    SLOT_COUNT,
    STORE_TAG,
    TOPIC,
    WANT_FLUSH,
)

PASS_SLOTS: Final = 4_096
_AHEAD: Final = 12

# What became of an entry of the dequeue-put queue; kept in `world.outcome`.
_DROPPED: Final = -1  # cancelled
_UNREADABLE: Final = -2
_WAIT: Final = -3  # NEED is set; nothing was done
# 0 and above: ROLLED or FIRED

_TIMER_TOPIC_BYTES = len(TIMER_TOPIC)


@inlined
def dequeue_put(world: Any, now_ms: int) -> int:
    """Append a batch, then move R; return the work done. Under the step lock. O(bytes)."""
    return _append_taken(world, now_ms) + _pass_slots(world, now_ms)


@inlined
def _append_taken(world: Any, now_ms: int) -> int:
    words, stage = world.words, world.stage
    head = world.ring_words[DEQUEUE_RING + RING_HEAD]
    waiting = ring_count(world.ring_words, DEQUEUE_RING)
    staged, staged_bytes, seen = 0, 0, 0
    stamp_ms = now_ms
    while seen < waiting and staged < STAGE_COUNT_MAX and staged_bytes < BATCH_BYTES:
        at = ((head + seen) & (RING_COUNT - 1)) * DEQUEUE_COLUMNS
        info = world.dequeue_ring[at + DEQUEUE_INFO]
        if seen + _AHEAD < waiting:
            _prefetch_message(world, head + seen + _AHEAD)
        room = info_size(info) + 256 + COPY_EXTRA_BYTES
        if staged_bytes + room > STAGE_BYTES and staged > 0:
            break
        message = world.dequeue_ring[at + DEQUEUE_MESSAGE]
        outcome = _stage(world, message, info, staged, staged_bytes, now_ms)
        if outcome == _WAIT:
            break
        world.outcome[seen] = outcome
        if outcome == FIRED:  # taken when it was due; the clock may have stepped back since
            stamp_ms = max(stamp_ms, world.staged_due[staged])
        if outcome >= 0:
            staged_bytes += stage.size[staged]
            staged += 1
        seen += 1
    appended = 0
    if staged > 0:
        appended = append(
            world.commitlog, world.queues, world.append_lock, stage, staged, stamp_ms, False
        )
        if appended < staged:
            words[NEED] = QUEUE_SEGMENT
            if world.queues.words[APPEND_NEED] == NEED_COMMITLOG:
                words[NEED] = COMMITLOG_SEGMENT
            words[NEED_OFFSET] = world.queues.words[NEED_ROW]
    return _settle(world, head, seen, appended)


@inlined
def _prefetch_message(world: Any, entry: int) -> None:
    at = (entry & (RING_COUNT - 1)) * DEQUEUE_COLUMNS
    message = world.dequeue_ring[at + DEQUEUE_MESSAGE]
    buf = segment_at(world.commitlog, message)
    position = message % world.commitlog.words[SEGMENT_BYTES]
    for line in range(0, 448, 64):
        prefetch(buf, position + line)


@inlined
def _stage(world: Any, message: int, info: int, i: int, at: int, now_ms: int) -> int:
    """Decide about one taken timer, and frame its copy as number `i` of the stage, at `at`."""
    words, stage, found = world.words, world.stage, world.found
    buf = segment_at(world.commitlog, message)
    if len(buf) == 0:
        words[NEED] = COMMITLOG_READ
        words[NEED_OFFSET] = message
        return _WAIT
    position = message % world.commitlog.words[SEGMENT_BYTES]
    status = read_message(buf, position, found, True)
    size_agrees = found[SIZE] == info_size(info) and found[SIZE] + 512 <= STAGE_BYTES
    if status != GOOD or not size_agrees or found[DUE_MS] < 0 or found[REAL_TOPIC_BYTES] < 0:
        words[LAST_UNREADABLE] = message
        return _UNREADABLE
    due_ms = exact_due_ms(buf, found, words[STORE_TAG], words[PRECISION])
    kind = FIRED
    if info & UNIT_ROLL != 0 and (due_ms > now_ms or info & UNIT_DELETE != 0):
        kind = ROLLED
    row = 0
    if info & UNIT_DELETE == 0:
        if words[CANCELLED_COUNT] > 0:
            identify_timer(buf, found, words[STORE_TAG])
            table = view_words(words[CANCELLED_ADDRESS], words[CANCELLED_LENGTH])
            if set_contains(table, found[IDENTITY_HIGH], found[IDENTITY_LOW]):
                return _DROPPED
        row = find_row(
            world.queues,
            buf,
            found[REAL_TOPIC_AT],
            found[REAL_TOPIC_BYTES],
            max(0, found[REAL_QUEUE]),
        )
        if row < 0:
            words[NEED] = TOPIC
            words[NEED_OFFSET] = message
            return _WAIT
    stored_ms = get_i64(buf, stored_at(buf, position))
    if kind == FIRED:
        size = frame_copy(
            stage.buffer,
            at,
            buf,
            found,
            kind,
            buf,
            found[REAL_TOPIC_AT],
            found[REAL_TOPIC_BYTES],
            max(0, found[REAL_QUEUE]),
            message,
            stored_ms,
            now_ms,
        )
        stage.row[i] = row
        stage.pending_row[i] = row
        stage.pending_change[i] = -1
        words[FRONTIER] = max(words[FRONTIER], due_ms)
    else:
        size = frame_copy(
            stage.buffer,
            at,
            buf,
            found,
            kind,
            world.queues.name,
            0,
            _TIMER_TOPIC_BYTES,
            0,
            message,
            stored_ms,
            now_ms,
        )
        stage.row[i] = 0
        stage.pending_row[i] = -1
    if size < 0:
        words[LAST_UNREADABLE] = message
        return _UNREADABLE
    stage.size[i] = size
    stage.key_at[i] = -1
    stage.tags_code[i] = 0
    if found[TAGS_BYTES] > 0:
        stage.tags_code[i] = java_hash(buf, found[TAGS_AT], found[TAGS_BYTES])
    world.staged_due[i] = due_ms
    return kind


@inlined
def _settle(world: Any, head: int, seen: int, appended: int) -> int:
    """Count what became of the first `seen` entries, up to the last that was appended."""
    words, near, stage = world.words, world.near, world.stage
    stored_ms = world.queues.words[STORED_MS]
    staged, done = 0, 0
    while done < seen:
        at = ((head + done) & (RING_COUNT - 1)) * DEQUEUE_COLUMNS
        slot = info_slot(world.dequeue_ring[at + DEQUEUE_INFO])
        outcome = world.outcome[done]
        if outcome >= 0:
            if staged == appended:
                break
            first = slot_word(slot, SLOT_FIRST_COPY)
            near.slots[first] = min(near.slots[first], stage.offset[staged])
            if outcome == ROLLED:
                near.slots[slot_word(slot, SLOT_ROLL_INDEX)] = stage.index[staged] + 1
                words[COUNT_ROLLED] += 1
            else:
                words[COUNT_FIRED] += 1
                count_lateness(world, stored_ms - world.staged_due[staged])
            staged += 1
        elif outcome == _DROPPED:
            words[COUNT_DROPPED] += 1
        else:
            words[COUNT_UNREADABLE] += 1
        near.slots[slot_word(slot, SLOT_REMAINING)] -= 1
        done += 1
    world.ring_words[DEQUEUE_RING + RING_HEAD] = head + done
    return done


@inlined
def count_lateness(world: Any, late_ms: int) -> None:
    """Count a fired timer by how late it was."""
    late_ms = max(0, late_ms)
    world.lateness[lateness_bucket(late_ms)] += 1
    world.words[LATENESS_SUM_MS] += late_ms
    world.words[LATENESS_MAX_MS] = max(world.words[LATENESS_MAX_MS], late_ms)


@inlined
def _pass_slots(world: Any, now_ms: int) -> int:
    """Move R over slots that have ended and hold nothing more to do; return how many."""
    words, near = world.words, world.near
    precision = words[PRECISION]
    passed = 0
    while passed < PASS_SLOTS:
        read = words[READ]
        if now_ms // precision <= read or words[CLAIMED] <= read:
            break
        if words[CLAIM_OFFSET] != NO_UNIT and words[CLAIMED] - 1 == read:
            break
        if near.slots[slot_word(read, SLOT_REMAINING)] != 0 or words[LINKED] < words[ROLLS_BEFORE]:
            break
        if read >= words[READ_CHECKPOINTED] + words[SLOT_COUNT]:
            words[WANT_FLUSH] = 1
            words[NEED] = FLUSHED
            break
        if not _forget_deletes(world, read):
            break
        words[ROLLS_BEFORE] = max(words[ROLLS_BEFORE], near.slots[slot_word(read, SLOT_ROLL_INDEX)])
        words[READ] = read + 1
        words[SCAN] = max(words[SCAN], (read + 1) * precision)
        passed += 1
    return passed


@inlined
def _forget_deletes(world: Any, slot: int) -> bool:
    """Remove the targets of a passed slot's deletes from the cancelled set."""
    words, near = world.words, world.near
    while True:
        message = near_last_delete(near, slot)
        if message == NONE:
            return True
        buf = segment_at(world.commitlog, message)
        if len(buf) == 0:
            words[NEED] = COMMITLOG_READ
            words[NEED_OFFSET] = message
            return False
        position = message % world.commitlog.words[SEGMENT_BYTES]
        if read_message(buf, position, world.found, False) == GOOD:
            identify_target(buf, world.found, words[STORE_TAG])
            table = view_words(words[CANCELLED_ADDRESS], words[CANCELLED_LENGTH])
            high, low = world.found[IDENTITY_HIGH], world.found[IDENTITY_LOW]
            if high == IDENTITY_OURS and low >= LEVEL_MARK:
                _hold(world, table, low, message)
            elif set_remove(table, high, low):
                words[CANCELLED_COUNT] -= 1
        near_drop_delete(near, slot)


@inlined
def _hold(world: Any, table: Any, low: int, message: int) -> None:
    """Keep a delay level's entry that its loop has not passed, without a unit to find it again by.

    From now on L stays at its delete.
    """
    level_words = world.levels.words
    if set_remove(table, IDENTITY_OURS, low):
        set_add(table, IDENTITY_HELD, low)
        level_words[LEVEL_HELD] += 1
        level_words[LEVEL_HELD_FROM] = min(level_words[LEVEL_HELD_FROM], message)
