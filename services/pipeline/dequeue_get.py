"""Dequeue-get: takes what is due out of the wheel.

Claiming walks slots' chains in the timer log, newest first, into the near wheel; what was linked
afterwards comes from enqueue-put as late arrivals. What is met in time goes into the near wheel's
first ring, with these; what was left, because a page was missing, is owed, and goes into the second
(`services/world/claims.py`). Taking moves what the clock has reached, in the order of due time, to
the dequeue ring, of the first ring first; a slot's plain deletes follow once it has ended, and all
timers of it and of the slots before were handed on. The near wheel is its own. It moves the claim
cursor, and the read cursor with it over slots without units. After `TimerDequeueGetService`.

How rolls hop (`tests/models/rules_model.py` has each rule with a wrong variant):

- A roll hops while its slot's chain is walked, at any time of the clock; so does a delete, and what
  was cancelled. What is overdue fires from its own slot, so no roll ever waits in the near wheel.
- Of the units of one message the one linked last counts. The checkpoint holds the hops cursor: the
  oldest unit that a hop linked from a slot which was not passed. Opening reads hops from there on.
- A unit does not say from which slot it hopped. So the hops cursor of an earlier life stays in each
  checkpoint until the read cursor has passed all that was claimed when it was captured.
- A hop's unit is linked in the hold of wheel in which the roll is taken from its slot, so the read
  cursor passes a slot only once every hop from it has its unit.
- The new slot is behind all that is claimed (`wheel/timerwheel.py`). There is always room for it: a
  window is at least 60 slots shorter than the wheel, and no more than half of that is claimed.
- A hop reads no message if the unit says in which second its timer is due. A broker's roll, one of
  the year 2106 or later, and one in a store with very short hops do not say it.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.intrinsics import get_i32, get_i64, get_u32, touch_to_read
from timerstore.jit.kernel import inlined
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Bytes, Words, observe, publish
from timerstore.jit.system import is_resident, steady_ns
from timerstore.services.pipeline.enqueue_put import has_unit_room, write_unit
from timerstore.services.world import needs
from timerstore.services.world.claims import claim_last, jump, owed_stop, ring_stop
from timerstore.services.world.floor import find_in, is_superseded
from timerstore.services.world.state import (
    RING_COUNT,
    note_walked,
    place_of,
    tell_need,
    waiting_count,
)
from timerstore.services.world.world import READ_UNITS, World, count_stage
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, exact_due_ms, read_message
from timerstore.timelog.bytes.unit import (
    NO_UNIT,
    NOT_SAID,
    UNIT_GOOD,
    NewUnit,
    check_unit,
    leads_to,
    said_due_ms,
    unit_ms,
)
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.wheel.near import (
    ENTRY_DUE,
    ENTRY_INFO,
    ENTRY_MESSAGE,
    FRONT,
    NO_DELETE,
    NONE,
    OWED,
    NearTimer,
    bucket_at,
    near_begin_slot,
    near_drop_delete,
    near_first_of,
    near_has_room,
    near_insert,
    near_insert_delete,
    near_last_delete,
    near_pop,
    near_room,
    overdue_bucket,
    pack_info,
    ring_buckets,
    ring_count,
    slot_place,
)
from timerstore.wheel.timerwheel import place, slot_last

CLAIM_UNITS: Final = 2_048
"""Units that one step walks at most: near is held for tens of microseconds."""
CLAIM_SLOTS: Final = 256  # that one step claims: it comes to a clock far ahead in a second
TAKE_COUNT: Final = 1_024
COLD_COUNT: Final = 256
"""If pages were missing lately, so many wait for theirs before what falls due now, at most."""
HOP_COUNT: Final = 64
"""Units that hop in one hold of wheel: some 15 µs."""
# What reading a unit, or its message, comes to.
NO_DUE: Final = -2
_DAMAGED: Final = -3
IS_ROLL: Final = -4
_OVER: Final = -5
_COUNTS: Final = 0


@inlined
def dequeue_get(world: World, now_ms: int, is_timed: bool, clock: Words) -> int:
    """Claim, then take; return the work done. Takes near, to claim wheel too. O(1) each unit.

    `is_timed`: count what reading units takes. `clock`: scratch of this thread.
    """
    get, jumped, taken = world.dequeue_get, jump(world, now_ms), 0
    is_cold = observe(world.prefetch, "is_active") != 0
    last, owed_to = claim_last(world, now_ms), min(owed_stop(world), ring_stop(world, OWED))
    front_ready = _touch_chains(world, FRONT, last + 1, now_ms, is_cold, clock)
    owed_ready = _touch_chains(world, OWED, owed_to, now_ms, is_cold, clock)
    lock_acquire(world.near_lock)
    done = jumped + _take_late(world, now_ms)
    began_ns = steady_ns(clock) if is_timed else 0
    claimed = claim(world, last, now_ms, front_ready, is_cold)
    claimed += _claim_owed(world, owed_to, now_ms, owed_ready)
    if is_timed and claimed > 0:
        count_stage(world.stages, READ_UNITS, claimed, steady_ns(clock) - began_ns)
    if get.owed_slot >= owed_stop(world) and world.near.owed_count == 0:
        get.first_count = get.first_max
    first = not is_cold and get.first_count > 0 and _is_owed_next(world, now_ms)
    for turn in range(2):
        ring = OWED if first == (turn == 0) else FRONT
        if ring == OWED or not (first and _is_owed_next(world, now_ms)):
            taken += take(world, ring, now_ms, is_cold)
    if first:
        get.first_count -= claimed + taken
    done += claimed + taken + _hand_on_deletes(world, now_ms)
    # It is work too to empty the second ring as far as the slot that is owed next waits for.
    done += int(owed_to <= get.owed_slot < min(owed_stop(world), ring_stop(world, OWED)))
    lock_release(world.near_lock)
    return done


@inlined
def _is_owed_next(world: World, now_ms: int) -> bool:
    """Tell whether what is owed, if it has room, or was, is due, and not later than the front's."""
    get, near, precision = world.dequeue_get, world.near, world.settings.precision_ms
    until_ms = now_ms
    if ring_count(near, FRONT) > 0:
        until_ms = min(until_ms, get.emptied_ms[FRONT])
    if near_room(near) > 0 and get.owed_slot * precision <= until_ms:
        if get.owed_slot < min(owed_stop(world), now_ms // precision):
            return True
    is_due = get.emptied_ms[OWED] <= until_ms or near.head[overdue_bucket(near, OWED)] != NONE
    return near.owed_count > 0 and is_due


@inlined
def _take_late(world: World, now_ms: int) -> int:
    """Take late arrivals into the near wheel; return how many."""
    ring, head = world.late_ring, world.late_ring.ends.head
    count, done = min(waiting_count(ring.ends), CLAIM_UNITS), 0
    while done < count and near_has_room(world.near):
        at = place_of(head + done)
        due_ms, slot = ring.due_ms[at], ring.slot[at]
        timer = NearTimer(due_ms, ring.message[at], ring.size[at], slot, ring.magic[at], FRONT)
        # What its slot holds may be far behind what is taken now: it does not wait for that.
        _take_in(world, timer, now_ms, now_ms // world.settings.precision_ms > slot, False)
        done += 1
    publish(ring.ends, "head", head + done)
    return done


@inlined
def _take_in(world: World, timer: NearTimer, now_ms: int, is_overdue: bool, in_front: bool) -> None:
    """Take a unit of a claimed slot, no roll, into the near wheel. O(1).

    `is_overdue`: if it is due, it is taken next, and not in the order of its due time.
    """
    near, (due_ms, message, size, slot, magic, ring) = world.near, timer
    if magic & fmt.UNIT_DELETE != 0:
        near_insert_delete(near, message, size, slot_place(near, slot), magic)
        return
    precision, emptied_ms = world.settings.precision_ms, world.dequeue_get.emptied_ms
    # A later slot stands in for its own: if it is due, it is behind that.
    if due_ms <= now_ms and (is_overdue or due_ms < slot * precision):
        near_insert(near, overdue_bucket(near, ring), timer, in_front)
        return
    due_ms = min(due_ms, (slot + 2) * precision)  # at most one slot later (a broker's)
    timer = NearTimer(due_ms, message, size, slot, magic, ring)
    near_insert(near, bucket_at(near, due_ms, ring), timer, in_front)
    emptied_ms[ring] = min(emptied_ms[ring], due_ms)


@inlined
def _touch_chains(
    world: World, ring: int, stop: int, now_ms: int, is_cold: bool, clock: Words
) -> int:
    """Return how many units before slot `stop` that a ring takes next have their pages in memory.

    What is linked before these meanwhile is in memory. Without a lock it waits for the pages; if
    some were missing lately `touch_ns` at most, and of the front not at all: what is due fires
    meanwhile. There the message's page is to be in memory as well.
    """
    get, near, log = world.dequeue_get, world.near, world.timerlog
    slot = get.owed_slot
    if ring == FRONT:
        slot = get.claimed_slot - 1
        if get.is_walking == 0:  # a slot that has ended is owed
            slot = max(get.claimed_slot, now_ms // world.settings.precision_ms)
    offset, count, until_ns = NO_UNIT, 0, 0
    if is_cold and ring == OWED:
        until_ns = steady_ns(clock) + get.touch_ns
    while count < CLAIM_UNITS:
        if offset < world.cleaning.timerlog_start:  # NO_UNIT, or it was removed
            if slot >= stop:
                return CLAIM_UNITS
            offset = near.owed[slot_place(near, slot)]
            if slot >= get.claimed_slot:
                offset = slot_last(world.wheel, slot)
            slot += 1
            continue
        buf = segment_at(log, offset)
        at = offset % log.segment_bytes
        if not _is_there(world, offset) or at + fmt.UNIT_BYTES > len(buf):
            return CLAIM_UNITS  # who claims it stops there
        if is_cold and ring == FRONT:
            if not _is_in_memory(world, buf, at):
                return count
        else:
            touch_to_read(buf, at + fmt.UNIT_BYTES - 1)
        previous = get_i64(buf, at + fmt.UNIT_PREV_AT)
        count += 1
        if until_ns > 0 and steady_ns(clock) >= until_ns:
            return count
        if previous >= offset:
            return CLAIM_UNITS
        offset = previous
    return count


@inlined
def _is_in_memory(world: World, buf: Bytes, at: int) -> bool:
    """Tell whether a unit is, and its message's first page; also where there is no such message."""
    pages, log = world.dequeue_get.pages, world.commitlog
    if not is_resident(buf, at, fmt.UNIT_BYTES, pages):
        return False
    if get_i32(buf, at + fmt.UNIT_MAGIC_AT) & fmt.UNIT_ROLL != 0:
        return True  # it hops
    message = get_i64(buf, at + fmt.UNIT_MESSAGE_AT)
    if not 0 <= message < observe(log, "end"):
        return True
    held = segment_at(log, message)
    return len(held) > 0 and is_resident(held, message % log.segment_bytes, 1, pages)


@inlined
def claim(world: World, last: int, now_ms: int, ready: int, is_cold: bool) -> int:
    """Move the claim cursor up to the slot `last`; return the work done.

    The front walks chains into the first ring; rolls hop on. `ready`: units that are in memory.
    """
    get, near, precision, done = world.dequeue_get, world.near, world.settings.precision_ms, 0
    last = min(last, get.claimed_slot + CLAIM_SLOTS - 1)
    while done < CLAIM_UNITS:
        if get.is_walking == 0:
            slot = get.claimed_slot
            if slot > last:
                break
            place = slot_place(near, slot)
            if ring_count(near, FRONT) == 0:
                get.emptied_ms[FRONT] = max(get.emptied_ms[FRONT], slot * precision)
            # Its head is read and the claim cursor moves as one: what enqueue-put links before is
            # in the chain, and what it links afterwards comes as a late arrival.
            lock_acquire(world.wheel_lock)
            near_begin_slot(near, slot, slot_last(world.wheel, slot), world.timerlog.end)
            in_time = now_ms // precision <= slot < ring_stop(world, FRONT)
            if in_time and near.owed[place] != NO_UNIT:
                publish(get, "is_walking", 1)
            publish(get, "claimed_slot", slot + 1)
            lock_release(world.wheel_lock)
            done += 1
            continue
        slot = get.claimed_slot - 1
        walked = _walk(world, slot, FRONT, now_ms, min(ready, CLAIM_UNITS - done))
        ready, done = ready - walked, done + walked
        if near.owed[slot_place(near, slot)] != NO_UNIT and not (ready <= 0 and is_cold):
            break
        publish(get, "is_walking", 0)
    return done


@inlined
def _claim_owed(world: World, stop: int, now_ms: int, ready: int) -> int:
    """Walk what is owed before `stop` into the second ring, the oldest slot first. Count the work.

    `ready`: units whose pages are in memory.
    """
    get, near, done = world.dequeue_get, world.near, 0
    while get.owed_slot < owed_stop(world):
        slot = get.owed_slot
        if near.owed[slot_place(near, slot)] != NO_UNIT:
            if slot >= stop:
                break
            done += _walk(world, slot, OWED, now_ms, min(ready, CLAIM_UNITS) - done)
            if near.owed[slot_place(near, slot)] != NO_UNIT:
                break
        publish(get, "owed_slot", slot + 1)
    note_walked(get, near)
    return done


@inlined
def _walk(world: World, slot: int, ring: int, now_ms: int, most: int) -> int:
    """Take up to `most` units of a claimed slot's chain into a ring, or hop with them; count them.

    Less if there is a need, or no room, or no unit any more.
    """
    near, done = world.near, 0
    place = slot_place(near, slot)
    while done < most and near.owed[place] != NO_UNIT:
        offset = near.owed[place]
        previous = claim_unit(world, slot, ring, offset, now_ms)
        if previous == NO_DUE:
            break
        if previous == IS_ROLL:
            hopped = _hop_on(world, slot, now_ms, most - done)
            if hopped == 0:
                break
            done += hopped
        else:
            near.owed[place], near.below[place] = previous, offset
            done += 1
    return done


@inlined
def _is_there(world: World, offset: int) -> bool:
    """Tell whether a unit can stand at an offset."""
    return max(0, world.cleaning.timerlog_start) <= offset < world.timerlog.end


@inlined
def _look_at_unit(world: World, buf: Bytes, at: int, slot: int, offset: int) -> int:
    """Tell whether a slot's unit counts: _COUNTS, _OVER, or NO_DUE with a need."""
    mine, precision = world.dequeue_get.thread, world.settings.precision_ms
    sound = check_unit(buf, at, offset) == UNIT_GOOD
    if not sound or unit_ms(buf, at) // precision != slot:
        tell_need(mine, needs.DAMAGED_TIMERLOG, offset)
        return NO_DUE
    message = get_i64(buf, at + fmt.UNIT_MESSAGE_AT)
    lead = leads_to(buf, at, precision, world.settings.hop_slots * precision)
    # Asked first: its message may be gone. A source that an earlier life copied is not counted:
    # The copies cursor is kept back for it otherwise.
    if is_superseded(world, message, lead, offset) or find_in(world.done, message) >= 0:
        return _OVER
    if lead == NOT_SAID and world.cleaning.pass_count > 0:
        due_ms = message_due_ms(world, message, _DAMAGED)
        if due_ms == NO_DUE:
            return NO_DUE
        lead = mine.found.due_ms // precision
        if due_ms != _DAMAGED and is_superseded(world, message, lead, offset):
            return _OVER
    return _COUNTS


@inlined
def claim_unit(world: World, slot: int, ring: int, offset: int, now_ms: int) -> int:
    """Take one unit into the near wheel; return the one before it, or NO_DUE with a need.

    IS_ROLL, and nothing done, of one that is to hop.
    """
    mine = world.dequeue_get.thread
    if 0 <= offset < world.cleaning.timerlog_start:  # it was removed, and all before it
        return NO_UNIT
    if not _is_there(world, offset):
        tell_need(mine, needs.DAMAGED_TIMERLOG, offset)
        return NO_DUE
    buf = segment_at(world.timerlog, offset)
    at = offset % world.timerlog.segment_bytes
    if len(buf) == 0:
        tell_need(world.dequeue_get.thread, needs.TIMERLOG_SEGMENT, offset)
        return NO_DUE
    found = _look_at_unit(world, buf, at, slot, offset)
    if found == NO_DUE:
        return NO_DUE
    if found == _OVER:
        return get_i64(buf, at + fmt.UNIT_PREV_AT)
    magic = get_i32(buf, at + fmt.UNIT_MAGIC_AT)
    if magic & fmt.UNIT_ROLL != 0:
        return IS_ROLL
    if not near_has_room(world.near):
        return NO_DUE
    message, due_ms = get_i64(buf, at + fmt.UNIT_MESSAGE_AT), said_due_ms(buf, at)
    if due_ms == NOT_SAID:
        due_ms = message_due_ms(world, message, unit_ms(buf, at))
        if due_ms == NO_DUE:
            return NO_DUE
    size = get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT)
    _take_in(world, NearTimer(due_ms, message, size, slot, magic, ring), now_ms, False, True)
    world.near.chain[slot_place(world.near, slot)] += 1
    return get_i64(buf, at + fmt.UNIT_PREV_AT)


@inlined
def message_due_ms(world: World, message: int, otherwise_ms: int) -> int:
    """Read a timer's exact due time from its message; NO_DUE with a need if unmapped."""
    mine, found = world.dequeue_get.thread, world.dequeue_get.thread.found
    if message < 0 or message >= world.commitlog.end:
        return otherwise_ms
    buf = segment_at(world.commitlog, message)
    if len(buf) == 0:
        tell_need(mine, needs.COMMITLOG_READ, message)
        return NO_DUE
    position = message % world.commitlog.segment_bytes
    if read_message(buf, position, message, found, False) != GOOD or found.due_ms < 0:
        return otherwise_ms  # named when it is taken
    return exact_due_ms(buf, found, world.settings.store_tag, world.settings.precision_ms)


# --- hops


@inlined
def _hop_on(world: World, slot: int, now_ms: int, most: int) -> int:
    """Hop with the rolls that come next in a chain, `most` at most; return how many. Takes wheel.

    O(1) for each.
    """
    near, done = world.near, 0
    place = slot_place(near, slot)
    # Each is linked in the hold in which the claim passes it, and before its slot is walked.
    lock_acquire(world.wheel_lock)
    while done < min(HOP_COUNT, most) and _is_there(world, near.owed[place]):
        previous = hop(world, slot, near.owed[place], now_ms)
        if previous == NO_DUE:
            break
        near.below[place] = near.owed[place]
        near.owed[place] = previous
        done += 1
    lock_release(world.wheel_lock)
    return done


@inlined
def hop(world: World, slot: int, offset: int, now_ms: int) -> int:
    """Link one more unit for a roll; return the one before it in its chain. O(1).

    NO_DUE if it is no roll, or with a need. It does so at any time of the clock: what is due fires
    from the slot to which it hops. Its message may not be in memory: where that slot is claimed, it
    is owed as well.
    """
    mine, settings = world.dequeue_get.thread, world.settings
    buf = segment_at(world.timerlog, offset)
    at = offset % world.timerlog.segment_bytes
    if len(buf) == 0:
        tell_need(world.dequeue_get.thread, needs.TIMERLOG_SEGMENT, offset)
        return NO_DUE
    found = _look_at_unit(world, buf, at, slot, offset)
    if found == NO_DUE:
        return NO_DUE
    if found == _OVER:
        return get_i64(buf, at + fmt.UNIT_PREV_AT)
    magic = get_i32(buf, at + fmt.UNIT_MAGIC_AT)
    if magic & fmt.UNIT_ROLL == 0:
        return NO_DUE
    precision, hop_ms = settings.precision_ms, settings.hop_slots * settings.precision_ms
    message = get_i64(buf, at + fmt.UNIT_MESSAGE_AT)
    size = get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT)
    # Of a broker's timer the due time may be up to one precision later than what its hops lead to,
    # which is on a whole one: then its message says it.
    lead = leads_to(buf, at, precision, hop_ms)
    out_ms = unit_ms(buf, at) + (lead - slot) * precision
    due_ms = out_ms
    is_said = lead != NOT_SAID and out_ms % precision != 0
    if lead == NOT_SAID:
        due_ms = message_due_ms(world, message, _DAMAGED)
        if due_ms == NO_DUE:
            return NO_DUE
        out_ms, is_said = mine.found.due_ms, True
        if due_ms == _DAMAGED:
            out_ms = due_ms = 0
    passed, claimed = world.dequeue_put.passed_slot, world.dequeue_get.claimed_slot
    base = max(now_ms // precision, passed, claimed - 1)
    to, hops = place(settings, base, passed, out_ms)
    if to <= slot and hops == 0:
        to = slot  # damaged, or a broker's that leads nowhere: it is named, or fires, from here
    elif not has_unit_room(world, mine):
        return NO_DUE
    is_late = to < claimed
    if is_late:
        if not near_has_room(world.near):
            return NO_DUE
        if not is_said:
            due_ms = message_due_ms(world, message, due_ms)
            if due_ms == NO_DUE:
                return NO_DUE
            is_said = True
    new_magic = fmt.UNIT_PLAIN | (magic & fmt.UNIT_DELETE)
    if to > slot:
        ms = out_ms - hops * hop_ms
        if not is_said:
            due_ms = ms + fmt.EXTRA_READ_MESSAGE
        if hops > 0:
            new_magic |= fmt.UNIT_ROLL
            if lead != NOT_SAID:
                due_ms = get_u32(buf, at + fmt.UNIT_EXTRA_AT) * 1000
        unit = NewUnit(
            slot_last(world.wheel, to),
            new_magic | fmt.UNIT_HOP,
            now_ms // precision * precision,
            ms,
            to * precision,
            message,
            size,
            get_i32(buf, at + fmt.UNIT_HASH_AT),
            due_ms,
        )
        linked = write_unit(world, to, unit)
        from_place = slot_place(world.near, slot)
        world.near.first_hop[from_place] = min(world.near.first_hop[from_place], linked)
        world.dequeue_get.hop_count += 1
    if is_late:
        timer = NearTimer(due_ms, message, size, to, new_magic, OWED)
        _take_in(world, timer, now_ms, False, False)
        world.near.chain[slot_place(world.near, to)] += 1
    return get_i64(buf, at + fmt.UNIT_PREV_AT)


@inlined
def take(world: World, ring: int, now_ms: int, is_cold: bool) -> int:
    """Move what is due in a ring to the dequeue-put queue; return how much."""
    get, near, precision = world.dequeue_get, world.near, world.settings.precision_ms
    popped, overdue, taken = near.popped, overdue_bucket(near, ring), 0
    # A slot is only half walked: not from it yet, unless it holds more than there is room for. Then
    # it fires in parts.
    slot, waits = get.owed_slot, get.owed_slot < owed_stop(world)
    if ring == FRONT:
        slot, waits = get.claimed_slot - 1, get.is_walking != 0
    waits = waits and near_room(near) > 0
    limit = min(now_ms, slot * precision - 1) if waits else now_ms
    if ring_count(near, ring) == 0:
        get.emptied_ms[ring] = max(get.emptied_ms[ring], limit + 1)
        return 0
    if now_ms < world.callers.fire_from_ms:
        return 0
    length = RING_COUNT
    if ring == OWED and is_cold:
        length = min(RING_COUNT, COLD_COUNT)
    room = min(length - waiting_count(world.dequeue_ring.ends), TAKE_COUNT)
    while taken < room and not waits and near_pop(near, overdue, now_ms):
        _hand_on(world, popped[ENTRY_MESSAGE], popped[ENTRY_INFO], popped[ENTRY_DUE])
        taken += 1
    bucket_ms = get.emptied_ms[ring]
    round_ms = bucket_ms + ring_buckets(near)
    while taken < room and bucket_ms <= limit:
        if near_pop(near, bucket_at(near, bucket_ms, ring), bucket_ms):
            _hand_on(world, popped[ENTRY_MESSAGE], popped[ENTRY_INFO], bucket_ms)
            taken += 1
        elif ring_count(near, ring) == 0:
            bucket_ms = limit + 1
        elif bucket_ms == round_ms:  # the clock was set on, perhaps by years
            bucket_ms = near_first_of(near, ring, limit + 1)
            round_ms = bucket_ms + ring_buckets(near)
        else:
            bucket_ms += 1
    get.emptied_ms[ring] = bucket_ms
    return taken


@inlined
def _hand_on(world: World, message: int, info: int, ms: int) -> None:
    """Put an entry into the dequeue-put queue, which has room."""
    ring, tail = world.dequeue_ring, world.dequeue_ring.ends.tail
    at = place_of(tail)
    ring.message[at] = message
    ring.info[at] = info
    ring.bucket_ms[at] = ms
    publish(ring.ends, "tail", tail + 1)


# --- deletes


@inlined
def _hand_on_deletes(world: World, now_ms: int) -> int:
    """Hand on the plain deletes of slots that have ended and hold no timer any more, nor before."""
    near, handed = world.near, 0
    stop = min(world.dequeue_get.walked_slot, now_ms // world.settings.precision_ms)
    # An old read cursor is as good: of slots that were passed since there are none.
    for slot in range(observe(world.dequeue_put, "passed_slot"), stop):
        place = slot_place(near, slot)
        if near.waiting[place] != 0:
            break
        room = RING_COUNT - waiting_count(world.dequeue_ring.ends)
        message = near_last_delete(near, place)
        while message != NO_DELETE and room > 0:
            near_drop_delete(near, place)
            _hand_on(world, message, pack_info(0, place, fmt.UNIT_DELETE), slot)
            handed, room = handed + 1, room - 1
            message = near_last_delete(near, place)
    return handed
