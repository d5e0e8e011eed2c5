"""Dequeue-get: takes what is due out of the wheel.

Claiming walks a slot's chain in the timer log, newest first, into the near wheel; what was linked
afterwards comes from enqueue-put as late arrivals. Taking moves what the clock has reached, in the
order of due time, to the dequeue-put queue; a slot's plain deletes follow once it has ended and all
of its timers were handed on. The near wheel is its own. It moves `claimed_slot`, and R with it over
slots without units. What was put aside when the store was opened is a second range of slots beside
that, see `aside.py`. After RocketMQ's `TimerMessageStore.TimerDequeueGetService`.

How rolls hop (`tests/models/rules_model.py` has each rule with a wrong variant):

- A roll hops while its slot's chain is walked, at any time of the clock; so does a delete, and what
  was cancelled. What is overdue fires from its own slot, so no roll ever waits in the near wheel.
- Of the units of one message the one linked last counts. The checkpoint holds T, the oldest unit
  that a hop linked from a slot that R has not passed; opening reads hops from T on.
- A unit does not say from which slot it hopped. So T of an earlier life stays in each checkpoint
  until R has passed all that was claimed when that T was captured.
- A hop's unit is linked in the hold of wheel in which the roll is taken from its slot, so R passes
  a slot only once every hop from it has its unit.
- The new slot is behind all that is claimed (`wheel/place.py`). There is always room for it: a
  window is at least 60 slots shorter than the wheel, and R is never further from its checkpoint
  than the wheel is long. If it were, the claim would stop and ask for a checkpoint.
- A hop reads no message if the unit says in which second its timer is due. A broker's roll, one of
  the year 2106 or later, and one in a store with very short hops do not say it.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.intrinsics import get_i32, get_i64, get_u32, touch_to_read
from timerstore.jit.kernel import inlined
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Bytes, Words, observe, publish
from timerstore.jit.system import steady_ns
from timerstore.services.pipeline.jump import jump
from timerstore.services.pipeline.link_units import has_unit_room, write_unit
from timerstore.services.world import needs
from timerstore.services.world.aside import (
    aside_of,
    base_slot,
    claim_limit,
    is_aside,
    last_straggler,
    near_slot,
)
from timerstore.services.world.floor import find_in, is_superseded
from timerstore.services.world.rings import RING_COUNT, place_of, waiting_count
from timerstore.services.world.stages import READ_UNITS, count_stage
from timerstore.services.world.state import DequeueGet, note_walked, tell_need
from timerstore.services.world.world import World
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
    KEPT_PLACE,
    NONE,
    SPAN,
    NearTimer,
    bucket_at,
    near_drop_delete,
    near_has_room,
    near_insert,
    near_insert_delete,
    near_keep_deletes,
    near_last_delete,
    near_pop,
    near_room,
    overdue_bucket,
    pack_info,
    ring_buckets,
    slot_place,
)
from timerstore.wheel.place import place, ring_top
from timerstore.wheel.timerwheel import slot_last

CLAIM_UNITS: Final = 2_048
"""Units that one step walks at most: near is held for tens of microseconds."""
TOUCH_NS: Final = 500_000
"""So long a step waits for pages; at 100 µs each a disk brings some of them."""
TAKE_COUNT: Final = 1_024
COLD_COUNT: Final = 256
"""If pages were missing lately, so many wait for theirs before what falls due now, at most."""
_KEEP_CHUNKS: Final = 64
"""Chunks of deletes that are kept in one hold of wheel."""
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
    jumped = jump(world, now_ms)
    front_ready, aside_ready = _touch_chain(world, world.dequeue_get, 0, now_ms, clock), 0
    if is_aside(world):
        aside_ready = _touch_chain(world, world.aside, 1, now_ms, clock)
    lock_acquire(world.near_lock)
    done = jumped + _take_late(world, now_ms)
    # An old R only makes it wait. R is read before slots are claimed: if the ring has wrapped, what
    # follows must not look at the buckets before R.
    front, read, waits = base_slot(world, 0), base_slot(world, 1), is_aside(world)
    goes_first = waits and world.aside.first_count > 0
    for turn in range(2):
        aside = 1 - turn if goes_first else turn
        get, base, ready = world.dequeue_get, front, front_ready
        if aside == 1:
            get, base, ready = world.aside, read, aside_ready
        if aside == 1 and not waits:
            break
        began_ns = 0
        if is_timed:
            began_ns = steady_ns(clock)
        limit = claim_limit(world, aside, base, now_ms)
        worked = claim(world, get, aside, limit, now_ms, ready)
        if is_timed and worked > 0:
            count_stage(world.stages, READ_UNITS, worked, steady_ns(clock) - began_ns)
        is_second = waits and aside == 0 and world.aside.first_count > 0
        if not is_second or _is_handed_on(world) or near_room(world.near) <= 0:
            worked += take(world, get, aside, now_ms, base)
            if aside == 0 and waits:
                worked += _keep_deletes(world, now_ms, base)
            else:
                worked += _hand_on_deletes(world, get, aside, now_ms, base)
        if aside == 1:
            worked += _hand_on_kept(world, read)
            world.aside.first_count -= worked
        done += worked
    lock_release(world.near_lock)
    return done


@inlined
def _is_handed_on(world: World) -> bool:
    """Tell whether all timers that were put aside were handed on."""
    waiting = 0
    for i in range(SPAN, 2 * SPAN):
        waiting += world.near.waiting[i]
    return waiting == 0 and world.aside.walked_slot >= world.dequeue_put.aside_stop


@inlined
def _take_late(world: World, now_ms: int) -> int:
    """Take late arrivals into the near wheel; return how many."""
    ring, head = world.late_ring, world.late_ring.ends.head
    count, done = min(waiting_count(ring.ends), CLAIM_UNITS), 0
    while done < count:
        at = place_of(head + done)
        slot, aside = near_slot(world, ring.slot[at]), aside_of(world, ring.slot[at])
        if not near_has_room(world.near, slot_place(slot, aside)):
            break
        due_ms, message, size = ring.due_ms[at], ring.message[at], ring.size[at]
        timer = NearTimer(due_ms, message, size, slot, ring.magic[at], aside)
        _take_in(world, timer, now_ms, False)
        done += 1
    publish(ring.ends, "head", head + done)
    return done


@inlined
def _take_in(world: World, timer: NearTimer, now_ms: int, in_front: bool) -> None:
    """Take a unit of a claimed slot, no roll, into the near wheel. O(1)."""
    near, (due_ms, message, size, slot, magic, aside) = world.near, timer
    if magic & fmt.UNIT_DELETE != 0:
        near_insert_delete(near, message, size, slot_place(slot, aside), magic)
        return
    precision = world.settings.precision_ms
    if due_ms < slot * precision and due_ms <= now_ms:  # a later slot stands in for its own
        near_insert(near, overdue_bucket(near, aside), timer, in_front)
        return
    due_ms = min(due_ms, (slot + 2) * precision)  # at most one slot later (a broker's)
    timer = NearTimer(due_ms, message, size, slot, magic, aside)
    near_insert(near, bucket_at(near, due_ms, aside), timer, in_front)
    get = world.aside if aside == 1 else world.dequeue_get
    get.emptied_ms = min(get.emptied_ms, due_ms)


@inlined
def _touch_chain(world: World, get: DequeueGet, aside: int, now_ms: int, clock: Words) -> int:
    """Wait for the pages of the units that are claimed next, without a lock; return how many.

    What is linked before these meanwhile is in memory. If pages were missing lately it waits for
    TOUCH_NS at most: what is due fires meanwhile.
    """
    slot, last = get.claimed_slot, claim_limit(world, aside, base_slot(world, aside), now_ms)
    offset, count, is_cold = get.claim_offset, 0, observe(world.prefetch, "is_active") != 0
    until_ns = 0
    if is_cold:
        until_ns = steady_ns(clock) + TOUCH_NS
    while count < CLAIM_UNITS:
        if offset < world.cleaning.timerlog_start:  # NO_UNIT, or it was removed
            if slot > last:
                break
            offset = slot_last(world.wheel, slot)
            slot += 1
            continue
        buf = segment_at(world.timerlog, offset)
        at = offset % world.timerlog.segment_bytes
        if not _is_there(world, offset) or at + fmt.UNIT_BYTES > len(buf):
            break  # who claims it stops there
        touch_to_read(buf, at + fmt.UNIT_BYTES - 1)
        previous = get_i64(buf, at + fmt.UNIT_PREV_AT)
        count += 1
        if is_cold and steady_ns(clock) >= until_ns:
            return count
        if previous >= offset:
            break
        offset = previous
    return CLAIM_UNITS


@inlined
def claim(world: World, get: DequeueGet, aside: int, last: int, now_ms: int, ready: int) -> int:
    """Walk chains of a range's slots, up to `last`, into the near wheel; what rolls hops on.

    `ready`: units whose pages are in memory.
    """
    walked = 0
    while walked < CLAIM_UNITS:
        offset = get.claim_offset
        if offset == NO_UNIT:
            slot = get.claimed_slot
            if slot > last:
                break
            # Its head is read and C moves as one: what enqueue-put links before is in the chain,
            # and what it links afterwards comes as a late arrival.
            lock_acquire(world.wheel_lock)
            get.claim_offset = slot_last(world.wheel, slot)
            get.claim_below = world.timerlog.end
            publish(get, "claimed_slot", slot + 1)
            lock_release(world.wheel_lock)
            if get.claim_offset == NO_UNIT:
                note_walked(get)
            walked += 1
            continue
        if ready <= 0:
            break
        previous = claim_unit(world, get.claimed_slot - 1, aside, offset, now_ms)
        if previous == NO_DUE:
            break
        if previous == IS_ROLL:
            hopped = _hop_on(world, get, aside, now_ms, ready)
            walked += hopped
            ready -= hopped
            if hopped == 0:
                break
        else:
            get.claim_offset, get.claim_below = previous, offset
            walked += 1
            ready -= 1
        if get.claim_offset == NO_UNIT:
            note_walked(get)
    return walked


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
    # L is kept back for it otherwise.
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
def claim_unit(world: World, slot: int, aside: int, offset: int, now_ms: int) -> int:
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
    if not near_has_room(world.near, slot_place(slot, aside)):
        return NO_DUE
    message, due_ms = get_i64(buf, at + fmt.UNIT_MESSAGE_AT), said_due_ms(buf, at)
    if due_ms == NOT_SAID:
        due_ms = message_due_ms(world, message, unit_ms(buf, at))
        if due_ms == NO_DUE:
            return NO_DUE
    size = get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT)
    _take_in(world, NearTimer(due_ms, message, size, slot, magic, aside), now_ms, True)
    world.near.chain[slot_place(slot, aside)] += 1
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
    if read_message(buf, position, found, False) != GOOD or found.due_ms < 0:
        return otherwise_ms  # named when it is taken
    return exact_due_ms(buf, found, world.settings.store_tag, world.settings.precision_ms)


# --- hops


@inlined
def _hop_on(world: World, get: DequeueGet, aside: int, now_ms: int, ready: int) -> int:
    """Hop with the rolls that come next in a chain, `ready` at most; return how many. Takes wheel.

    O(1) for each.
    """
    done = 0
    # Each is linked in the hold in which the claim passes it, and before its slot is walked.
    lock_acquire(world.wheel_lock)
    while done < min(HOP_COUNT, ready) and _is_there(world, get.claim_offset):
        previous = hop(world, get.claimed_slot - 1, aside, get.claim_offset, now_ms)
        if previous == NO_DUE:
            break
        get.claim_offset, get.claim_below = previous, get.claim_offset
        done += 1
    lock_release(world.wheel_lock)
    return done


@inlined
def hop(world: World, slot: int, aside: int, offset: int, now_ms: int) -> int:
    """Link one more unit for a roll; return the one before it in its chain. O(1).

    NO_DUE if it is no roll, or with a need. It does so at any time of the clock: what is due fires
    from the slot to which it hops.
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
    top = ring_top(settings, observe(world.flush, "checkpointed_slot"))
    to, hops = place(settings, base, passed, top, out_ms)
    if to <= slot and hops == 0:
        to = slot  # damaged, or a broker's that leads nowhere: it is named, or fires, from here
    elif not has_unit_room(world, mine):
        return NO_DUE
    if hops > 0 and to < claimed:  # the ring has no room ahead: R's checkpoint makes it
        publish(world.dequeue_put, "flush_wanted", 1)
        mine.need = needs.FLUSHED
        return NO_DUE
    to_aside, stands_in = aside_of(world, to), near_slot(world, to)
    if to_aside == 1:
        claimed = world.aside.claimed_slot
    is_late = stands_in < claimed or stands_in > to
    if is_late:
        if not near_has_room(world.near, slot_place(stands_in, to_aside)):
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
        from_place = slot_place(slot, aside)
        world.near.first_hop[from_place] = min(world.near.first_hop[from_place], linked)
        world.dequeue_get.hop_count += 1
    if is_late:
        timer = NearTimer(due_ms, message, size, stands_in, new_magic, to_aside)
        _take_in(world, timer, now_ms, False)
        world.near.chain[slot_place(stands_in, to_aside)] += 1
        if stands_in > to:
            world.dequeue_get.straggler_slot = max(world.dequeue_get.straggler_slot, stands_in)
    return get_i64(buf, at + fmt.UNIT_PREV_AT)


@inlined
def take(world: World, get: DequeueGet, aside: int, now_ms: int, read: int) -> int:
    """Move what is due to the dequeue-put queue.

    `read`: where the range begins.
    """
    near, precision = world.near, world.settings.precision_ms
    popped, overdue, taken = near.popped, overdue_bucket(near, aside), 0
    limit = min(now_ms, read * precision + ring_buckets(near) - 1)
    # The newest slot is only half claimed: not from it yet, unless it holds more than there is room
    # for. Then it fires in parts.
    waits = get.claim_offset != NO_UNIT and near_room(near) > 0
    if waits:
        limit = min(limit, (get.claimed_slot - 1) * precision - 1)
    if near.count == 0:
        get.emptied_ms = max(get.emptied_ms, limit + 1)
        return 0
    if now_ms < world.callers.fire_from_ms:
        return 0
    length = RING_COUNT
    if aside == 1 and observe(world.prefetch, "is_active") != 0:
        length = min(RING_COUNT, COLD_COUNT)
    room = min(length - waiting_count(world.dequeue_ring.ends), TAKE_COUNT)
    while taken < room and not waits and near_pop(near, overdue, now_ms):
        _hand_on(world, popped[ENTRY_MESSAGE], popped[ENTRY_INFO], popped[ENTRY_DUE])
        taken += 1
    bucket_ms = get.emptied_ms
    while taken < room and bucket_ms <= limit:
        if near_pop(near, bucket_at(near, bucket_ms, aside), bucket_ms):
            _hand_on(world, popped[ENTRY_MESSAGE], popped[ENTRY_INFO], bucket_ms)
            taken += 1
        else:
            bucket_ms += 1
    get.emptied_ms = bucket_ms
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
def _is_emptied(world: World, slot: int, aside: int, now_ms: int) -> bool:
    """Tell whether a walked slot has ended, and all of its timers were handed on."""
    waiting = world.near.waiting[slot_place(slot, aside)]
    return now_ms // world.settings.precision_ms > slot and waiting == 0


@inlined
def _hand_on_deletes(world: World, get: DequeueGet, aside: int, now_ms: int, read: int) -> int:
    """Hand on the plain deletes of slots that have ended and hold no timer any more, nor before."""
    handed = 0
    for slot in range(read, get.walked_slot):
        if not _is_emptied(world, slot, aside, now_ms):
            break
        handed += _hand_on_deletes_of(world, slot_place(slot, aside), slot)
    return handed


@inlined
def _hand_on_deletes_of(world: World, place: int, slot: int) -> int:
    """Hand on the plain deletes of a place, as far as there is room, as those of a slot."""
    near, handed = world.near, 0
    room = RING_COUNT - waiting_count(world.dequeue_ring.ends)
    message = near_last_delete(near, place)
    while message != NONE and handed < room:
        near_drop_delete(near, place)
        _hand_on(world, message, pack_info(0, place, fmt.UNIT_DELETE), slot)
        handed += 1
        message = near_last_delete(near, place)
    return handed


@inlined
def _keep_deletes(world: World, now_ms: int, front: int) -> int:
    """Keep the front's deletes whose slot is emptied, until nothing is left aside; count them."""
    near, chunks, kept = world.near, 0, 0
    for slot in range(front, world.dequeue_get.walked_slot):
        if not _is_emptied(world, slot, 0, now_ms):
            break
        place = slot_place(slot, 0)
        if near_last_delete(near, place) == NONE:
            continue
        lock_acquire(world.wheel_lock)  # R stays as it is meanwhile, and sees both counts or none
        while is_aside(world) and chunks < _KEEP_CHUNKS and near_last_delete(near, place) != NONE:
            count = near_keep_deletes(near, place)
            near.chain[KEPT_PLACE] += count
            near.chain[place] -= count
            world.dequeue_get.kept_slot = max(world.dequeue_get.kept_slot, slot)
            chunks += 1
            kept += count
        lock_release(world.wheel_lock)
    return kept


@inlined
def _hand_on_kept(world: World, read: int) -> int:
    """Hand on what was kept of the front's deletes, once nothing is left aside before them.

    Nor in the front: what a roll hopped to late may be their target.
    """
    last = world.dequeue_put.aside_stop - 1
    late = max(world.dequeue_get.kept_slot, last_straggler(world))
    if observe(world.dequeue_put, "front_slot") <= late:
        return 0
    place = slot_place(last, 1)
    if read != last or world.aside.walked_slot <= last:
        return 0
    if world.near.waiting[place] != 0:
        return 0
    if near_last_delete(world.near, place) != NONE or waiting_count(world.late_ring.ends) > 0:
        return 0
    return _hand_on_deletes_of(world, KEPT_PLACE, world.dequeue_get.kept_slot)
