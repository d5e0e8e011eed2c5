"""Dequeue-get: takes what is due out of the wheel.

Claiming walks a slot's chain in the timer log, newest first, into the near wheel; taking moves what
the clock has reached, in the order of due time, to the dequeue-put queue. It moves `CLAIMED` and
`SCAN`. After RocketMQ's `TimerMessageStore.TimerDequeueGetService`.
"""

from __future__ import annotations

from typing import Any, Final

from timerstore.services.enqueue_put import find_done, near_take
from timerstore.services.world import (
    DEQUEUE_COLUMNS,
    DEQUEUE_INFO,
    DEQUEUE_MESSAGE,
    DEQUEUE_MS,
    DEQUEUE_RING,
    RING_COUNT,
    RING_TAIL,
    ring_count,
)
from timerstore.timelog.format import (
    EXTRA_READ_MESSAGE,
    UNIT_EXTRA_AT,
    UNIT_MAGIC_AT,
    UNIT_MESSAGE_AT,
    UNIT_MESSAGE_SIZE_AT,
    UNIT_PREV_AT,
    UNIT_ROLL,
)
from timerstore.timelog.intrinsics import get_i32, get_i64, get_u32
from timerstore.timelog.kernel import inlined
from timerstore.timelog.message import DUE_MS, GOOD, exact_due_ms, read_message
from timerstore.timelog.segments import SEGMENT_BYTES, TABLE_LENGTH, segment_at
from timerstore.timelog.unit import UNIT_GOOD, check_unit, is_broker_unit, unit_ms
from timerstore.wheel.near import (
    ENTRY_INFO,
    ENTRY_MESSAGE,
    NEAR_COUNT,
    SPAN,
    near_pop,
    near_pop_due,
    near_room,
    open_slot,
)
from timerstore.wheel.slots import NO_UNIT, slot_last
from timerstore.wheel.state import (
    CLAIM_OFFSET,
    CLAIMED,
    COMMITLOG_READ,
    COUNT_UNREADABLE,
    DAMAGED_TIMERLOG,
    FRONTIER,
    LAST_UNREADABLE,
    NEAR_FULL,
    NEED,
    NEED_OFFSET,
    PRECISION,
    READ,
    SCAN,
    STORE_TAG,
    TAKE_LIMIT,
    TIMERLOG_SEGMENT,
)

LEAD: Final = 1
"""Slots that are claimed ahead of the clock's."""
CLAIM_UNITS: Final = 2_048
"""Units that one step walks at most: the step lock is held for tens of microseconds."""
TAKE_COUNT: Final = 1_024
_NO_DUE: Final = -2


@inlined
def dequeue_get(world: Any, now_ms: int) -> int:
    """Claim, then take; return the work done. Under the step lock. O(1) for each unit."""
    return claim(world, now_ms) + take(world, now_ms)


@inlined
def claim(world: Any, now_ms: int) -> int:
    """Walk chains of slots up to LEAD ahead of the clock into the near wheel."""
    words = world.words
    limit = max(now_ms // words[PRECISION], words[READ]) + LEAD
    walked = 0
    while walked < CLAIM_UNITS:
        offset = words[CLAIM_OFFSET]
        if offset == NO_UNIT:
            slot = words[CLAIMED]
            if slot > limit or slot >= words[READ] + SPAN:
                break
            open_slot(world.near, slot)
            words[CLAIM_OFFSET] = slot_last(world.wheel, slot)
            # From here on, new units of the slot come straight from enqueue-put.
            words[CLAIMED] = slot + 1
            walked += 1
            continue
        previous = _claim_unit(world, words[CLAIMED] - 1, offset)
        if previous == _NO_DUE:
            break
        words[CLAIM_OFFSET] = previous
        walked += 1
    return walked


@inlined
def _claim_unit(world: Any, slot: int, offset: int) -> int:
    """Take one unit into the near wheel; return the one before it, or _NO_DUE with NEED set."""
    words = world.words
    buf = segment_at(world.timerlog, offset)
    if len(buf) == 0:
        words[NEED] = TIMERLOG_SEGMENT
        words[NEED_OFFSET] = offset
        return _NO_DUE
    if near_room(world.near) <= 0:
        words[NEED] = NEAR_FULL
        return _NO_DUE
    at = offset % world.timerlog.words[SEGMENT_BYTES]
    precision = words[PRECISION]
    sound = check_unit(buf, at, offset, world.scratch) == UNIT_GOOD
    if not sound or unit_ms(buf, at) // precision != slot:
        words[NEED] = DAMAGED_TIMERLOG
        words[NEED_OFFSET] = offset
        return _NO_DUE
    message = get_i64(buf, at + UNIT_MESSAGE_AT)
    magic = get_i32(buf, at + UNIT_MAGIC_AT)
    due_ms = unit_ms(buf, at)
    if magic & UNIT_ROLL == 0:
        extra = get_u32(buf, at + UNIT_EXTRA_AT)
        if extra == EXTRA_READ_MESSAGE or is_broker_unit(buf, at):
            due_ms = message_due_ms(world, message, due_ms)
            if due_ms == _NO_DUE:
                return _NO_DUE
        else:
            due_ms += extra
    size = get_i32(buf, at + UNIT_MESSAGE_SIZE_AT)
    near_take(world, slot, magic, message, size, due_ms, find_done(words, message), True)
    segment = message // world.commitlog.words[SEGMENT_BYTES] & (TABLE_LENGTH - 1)
    world.latest_slot[segment] = max(world.latest_slot[segment], slot)
    return get_i64(buf, at + UNIT_PREV_AT)


@inlined
def message_due_ms(world: Any, message: int, otherwise_ms: int) -> int:
    """Read a timer's exact due time from its message; _NO_DUE with NEED set where unmapped."""
    words = world.words
    buf = segment_at(world.commitlog, message)
    if len(buf) == 0:
        words[NEED] = COMMITLOG_READ
        words[NEED_OFFSET] = message
        return _NO_DUE
    position = message % world.commitlog.words[SEGMENT_BYTES]
    if read_message(buf, position, world.found, False) != GOOD or world.found[DUE_MS] < 0:
        words[COUNT_UNREADABLE] += 1
        words[LAST_UNREADABLE] = message
        return otherwise_ms
    return exact_due_ms(buf, world.found, words[STORE_TAG], words[PRECISION])


@inlined
def take(world: Any, now_ms: int) -> int:
    """Move what is due, and rolls whose slot has begun, to the dequeue-put queue."""
    words, near, ring = world.words, world.near, world.dequeue_ring
    precision = words[PRECISION]
    limit = min(now_ms, words[READ] * precision + len(near.head) - 1)
    limit = min(limit, words[TAKE_LIMIT])
    if words[CLAIM_OFFSET] != NO_UNIT:  # the newest slot is only half claimed: not from it yet
        limit = min(limit, (words[CLAIMED] - 1) * precision - 1)
    if near.words[NEAR_COUNT] == 0:
        words[SCAN] = max(words[SCAN], limit + 1)
        return 0
    taken = 0
    room = min(RING_COUNT - ring_count(world.ring_words, DEQUEUE_RING), TAKE_COUNT)
    bucket_ms = words[SCAN]
    behind = now_ms < words[READ] * precision  # the clock was set back: firing looks at it alone
    if behind:
        bucket_ms = words[READ] * precision
    while taken < room and (behind or bucket_ms <= limit):
        if behind:
            if not near_pop_due(near, bucket_ms, now_ms):
                return taken
        elif not near_pop(near, bucket_ms):
            bucket_ms += 1
            continue
        tail = world.ring_words[DEQUEUE_RING + RING_TAIL]
        at = (tail & (RING_COUNT - 1)) * DEQUEUE_COLUMNS
        ring[at + DEQUEUE_MESSAGE] = near.popped[ENTRY_MESSAGE]
        ring[at + DEQUEUE_INFO] = near.popped[ENTRY_INFO]
        ring[at + DEQUEUE_MS] = bucket_ms
        world.ring_words[DEQUEUE_RING + RING_TAIL] = tail + 1
        words[FRONTIER] = max(words[FRONTIER], bucket_ms)
        taken += 1
    if not behind:
        words[SCAN] = bucket_ms
    return taken
