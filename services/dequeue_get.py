"""Dequeue-get: takes what is due out of the wheel.

Claiming walks a slot's chain in the timer log, newest first, into the near wheel; what was linked
afterwards comes from enqueue-put as late arrivals. Taking moves what the clock has reached, in the
order of due time, to the dequeue-put queue; a slot's plain deletes follow once it has ended and all
of its timers were handed on. The near wheel is its own. It moves `claimed_slot`. After
RocketMQ's `TimerMessageStore.TimerDequeueGetService`.
"""

from __future__ import annotations

from typing import Final

from timerstore.services.enqueue_put import find_done
from timerstore.services.floor import is_superseded
from timerstore.services.needs import COMMITLOG_READ, DAMAGED_TIMERLOG, NEAR_FULL, TIMERLOG_SEGMENT
from timerstore.services.world import (
    DEQUEUE_COLUMNS,
    DEQUEUE_INFO,
    DEQUEUE_MESSAGE,
    DEQUEUE_MS,
    DEQUEUE_RING,
    LATE_COLUMNS,
    LATE_DUE_MS,
    LATE_MAGIC,
    LATE_MESSAGE,
    LATE_RING,
    LATE_SIZE,
    LATE_SLOT,
    RING_COUNT,
    RING_HEAD,
    RING_TAIL,
    World,
    ring_count,
)
from timerstore.timelog.format import (
    EXTRA_READ_MESSAGE,
    UNIT_DELETE,
    UNIT_EXTRA_AT,
    UNIT_MAGIC_AT,
    UNIT_MESSAGE_AT,
    UNIT_MESSAGE_SIZE_AT,
    UNIT_PREV_AT,
    UNIT_ROLL,
)
from timerstore.timelog.intrinsics import get_i32, get_i64, get_u32, store_release
from timerstore.timelog.kernel import inlined
from timerstore.timelog.locks import lock_acquire, lock_release
from timerstore.timelog.message import DUE_MS, GOOD, exact_due_ms, read_message
from timerstore.timelog.record import observe, publish
from timerstore.timelog.segments import END, SEGMENT_BYTES, segment_at
from timerstore.timelog.unit import UNIT_GOOD, check_unit, is_broker_unit, unit_ms
from timerstore.wheel.near import (
    ENTRY_INFO,
    ENTRY_MESSAGE,
    NEAR_COUNT,
    NONE,
    SLOT_CHAIN,
    SLOT_WAITING,
    SPAN,
    near_drop_delete,
    near_insert,
    near_insert_delete,
    near_last_delete,
    near_pop,
    near_pop_due,
    near_room,
    pack_info,
    slot_word,
)
from timerstore.wheel.slots import NO_UNIT, slot_last

LEAD: Final = 1
"""Slots that are claimed ahead of the clock's."""
CLAIM_UNITS: Final = 2_048
"""Units that one step walks at most: near is held for tens of microseconds."""
TAKE_COUNT: Final = 1_024
_NO_DUE: Final = -2


@inlined
def dequeue_get(world: World, now_ms: int) -> int:
    """Claim, then take; return the work done. Takes near, to claim wheel too. O(1) each unit."""
    lock_acquire(world.near_lock)
    # An old R only makes it wait. Read before claiming: buckets before it are not looked at, where
    # the ring has wrapped.
    read = observe(world.dequeue_put, "passed_slot")
    done = _take_late(world) + claim(world, now_ms, read)
    done += take(world, now_ms, read) + _hand_on_deletes(world, now_ms, read)
    lock_release(world.near_lock)
    return done


@inlined
def _take_late(world: World) -> int:
    """Take late arrivals into the near wheel; return how many."""
    ring, head = world.late_ring, world.ring_words[LATE_RING + RING_HEAD]
    count, done = min(ring_count(world.ring_words, LATE_RING), CLAIM_UNITS), 0
    while done < count:
        if near_room(world.near) <= 0:
            world.dequeue_get.thread.need = NEAR_FULL
            break
        at = ((head + done) & (RING_COUNT - 1)) * LATE_COLUMNS
        slot, magic, message = ring[at + LATE_SLOT], ring[at + LATE_MAGIC], ring[at + LATE_MESSAGE]
        near_take(world, slot, magic, message, ring[at + LATE_SIZE], ring[at + LATE_DUE_MS], False)
        done += 1
    store_release(world.ring_words, LATE_RING + RING_HEAD, head + done)
    return done


@inlined
def near_take(
    world: World, slot: int, magic: int, message: int, size: int, due_ms: int, in_front: bool
) -> None:
    """Take a unit of a claimed slot into the near wheel. O(1)."""
    near = world.near
    if magic & UNIT_DELETE != 0 and magic & UNIT_ROLL == 0:
        near_insert_delete(near, message, size, slot, magic)
        return
    precision = world.settings.precision_ms
    bucket_ms = slot * precision
    if magic & UNIT_ROLL == 0:
        # Not before its slot, which may stand in for its own, and at most one later (a broker's).
        bucket_ms = min(max(due_ms, bucket_ms), (slot + 2) * precision)
    else:
        due_ms = bucket_ms
    near_insert(near, bucket_ms, due_ms, message, size, slot, magic, in_front)
    world.dequeue_get.emptied_ms = min(world.dequeue_get.emptied_ms, bucket_ms)


@inlined
def claim(world: World, now_ms: int, read: int) -> int:
    """Walk chains of slots up to LEAD ahead of the clock into the near wheel."""
    limit = max(now_ms // world.settings.precision_ms, read) + LEAD
    walked = 0
    while walked < CLAIM_UNITS:
        offset = world.dequeue_get.claim_offset
        if offset == NO_UNIT:
            slot = world.dequeue_get.claimed_slot
            if slot > limit or slot >= read + SPAN:
                break
            # Its head is read and C moves as one: what enqueue-put links before is in the chain,
            # and what it links afterwards comes as a late arrival.
            lock_acquire(world.wheel_lock)
            world.dequeue_get.claim_offset = slot_last(world.wheel, slot)
            publish(world.dequeue_get, "claimed_slot", slot + 1)
            lock_release(world.wheel_lock)
            if world.dequeue_get.claim_offset == NO_UNIT:
                publish(world.dequeue_get, "walked_slot", slot + 1)
            walked += 1
            continue
        previous = _claim_unit(world, world.dequeue_get.claimed_slot - 1, offset)
        if previous == _NO_DUE:
            break
        world.dequeue_get.claim_offset = previous
        if previous == NO_UNIT:
            publish(world.dequeue_get, "walked_slot", world.dequeue_get.claimed_slot)
        walked += 1
    return walked


@inlined
def _claim_unit(world: World, slot: int, offset: int) -> int:
    """Take one unit into the near wheel; return the one before it, or _NO_DUE with a need."""
    mine = world.dequeue_get.thread
    if 0 <= offset < world.cleaning.timerlog_start:  # it was removed, and all before it
        return NO_UNIT
    if offset < 0 or offset >= world.timerlog.words[END]:
        mine.need = DAMAGED_TIMERLOG
        mine.need_offset = offset
        return _NO_DUE
    buf = segment_at(world.timerlog, offset)
    if len(buf) == 0:
        mine.need = TIMERLOG_SEGMENT
        mine.need_offset = offset
        return _NO_DUE
    if near_room(world.near) <= 0:
        mine.need = NEAR_FULL
        return _NO_DUE
    at = offset % world.timerlog.words[SEGMENT_BYTES]
    precision = world.settings.precision_ms
    sound = check_unit(buf, at, offset, mine.scratch) == UNIT_GOOD
    if not sound or unit_ms(buf, at) // precision != slot:
        mine.need = DAMAGED_TIMERLOG
        mine.need_offset = offset
        return _NO_DUE
    message = get_i64(buf, at + UNIT_MESSAGE_AT)
    if is_superseded(world.cleaning, message, slot):  # its message may be gone
        return get_i64(buf, at + UNIT_PREV_AT)
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
    # A source that an earlier life copied is not counted: L is kept back for it otherwise.
    if find_done(world.done, message) < 0:
        near_take(world, slot, magic, message, size, due_ms, True)
        world.near.slots[slot_word(slot, SLOT_CHAIN)] += 1
    return get_i64(buf, at + UNIT_PREV_AT)


@inlined
def message_due_ms(world: World, message: int, otherwise_ms: int) -> int:
    """Read a timer's exact due time from its message; _NO_DUE with a need where unmapped."""
    mine, found = world.dequeue_get.thread, world.dequeue_get.thread.found
    if message < 0 or message >= world.commitlog.words[END]:
        return otherwise_ms
    buf = segment_at(world.commitlog, message)
    if len(buf) == 0:
        mine.need = COMMITLOG_READ
        mine.need_offset = message
        return _NO_DUE
    position = message % world.commitlog.words[SEGMENT_BYTES]
    if read_message(buf, position, found, False) != GOOD or found[DUE_MS] < 0:
        return otherwise_ms  # named when it is taken
    return exact_due_ms(buf, found, world.settings.store_tag, world.settings.precision_ms)


@inlined
def take(world: World, now_ms: int, read: int) -> int:
    """Move what is due, and rolls whose slot has begun, to the dequeue-put queue."""
    near, ring = world.near, world.dequeue_ring
    precision = world.settings.precision_ms
    limit = min(now_ms, read * precision + len(near.head) - 1)
    limit = min(limit, world.callers.take_limit_ms)
    world.dequeue_get.emptied_ms = max(world.dequeue_get.emptied_ms, read * precision)
    if (
        world.dequeue_get.claim_offset != NO_UNIT
    ):  # the newest slot is only half claimed: not from it yet
        limit = min(limit, (world.dequeue_get.claimed_slot - 1) * precision - 1)
    if near.words[NEAR_COUNT] == 0:
        world.dequeue_get.emptied_ms = max(world.dequeue_get.emptied_ms, limit + 1)
        return 0
    taken = 0
    room = min(RING_COUNT - ring_count(world.ring_words, DEQUEUE_RING), TAKE_COUNT)
    bucket_ms = world.dequeue_get.emptied_ms
    behind = now_ms < read * precision  # the clock was set back: firing looks at it alone
    if behind:
        bucket_ms = read * precision
        if bucket_ms > world.callers.take_limit_ms:  # a broker will read that slot again
            return 0
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
        store_release(world.ring_words, DEQUEUE_RING + RING_TAIL, tail + 1)
        taken += 1
    if not behind:
        world.dequeue_get.emptied_ms = bucket_ms
    return taken


@inlined
def _hand_on_deletes(world: World, now_ms: int, read: int) -> int:
    """Hand on the plain deletes of slots that have ended and hold no timer any more, nor before."""
    near, ring = world.near, world.dequeue_ring
    room = RING_COUNT - ring_count(world.ring_words, DEQUEUE_RING)
    handed = 0
    for slot in range(read, world.dequeue_get.walked_slot):
        if (
            now_ms // world.settings.precision_ms <= slot
            or near.slots[slot_word(slot, SLOT_WAITING)] != 0
        ):
            break
        message = near_last_delete(near, slot)
        while message != NONE and handed < room:
            tail = world.ring_words[DEQUEUE_RING + RING_TAIL]
            at = (tail & (RING_COUNT - 1)) * DEQUEUE_COLUMNS
            ring[at + DEQUEUE_MESSAGE] = message
            ring[at + DEQUEUE_INFO] = pack_info(0, slot, UNIT_DELETE)
            ring[at + DEQUEUE_MS] = slot
            near_drop_delete(near, slot)
            store_release(world.ring_words, DEQUEUE_RING + RING_TAIL, tail + 1)
            handed += 1
            message = near_last_delete(near, slot)
    return handed
