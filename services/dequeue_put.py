"""Dequeue-put: appends copies of what was taken, fired or rolled.

It empties the dequeue-put queue in order, and moves `passed_slot` over slots that are settled.
After RocketMQ's `TimerMessageStore.TimerDequeuePutMessageService` and `doPut`.
"""

from __future__ import annotations

from typing import Any, Final

from timerstore.services.aside import base_slot, is_aside
from timerstore.services.copying import (
    CANCELLED,
    FOUND,
    UNREADABLE,
    WAIT,
    append_staged,
    count_fired,
    find_destination,
    find_source,
    prefetch_message,
    read_source,
    stage_copy,
    stage_is_full,
)
from timerstore.services.needs import (
    FLUSHED,
    LOST,
)
from timerstore.services.stages import READ_MESSAGES, count_stage
from timerstore.services.world import (
    DEQUEUE_COLUMNS,
    DEQUEUE_INFO,
    DEQUEUE_MESSAGE,
    DEQUEUE_MS,
    DEQUEUE_RING,
    RING_COUNT,
    RING_HEAD,
    World,
    note_lost,
    ring_count,
)
from timerstore.timelog.append import (
    BATCH_BYTES,
    STAGE_COUNT_MAX,
)
from timerstore.timelog.format import UNIT_DELETE, UNIT_ROLL
from timerstore.timelog.frame import FIRED, ROLLED
from timerstore.timelog.jit.intrinsics import get_i64, load_acquire, store_release
from timerstore.timelog.jit.kernel import inlined
from timerstore.timelog.jit.locks import lock_acquire, lock_release
from timerstore.timelog.jit.record import Words, observe, publish
from timerstore.timelog.jit.system import steady_ns
from timerstore.timelog.message import (
    DUE_MS,
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    REAL_TOPIC_BYTES,
    exact_due_ms,
    identify_target,
    identify_timer,
    read_message,
    stored_at,
)
from timerstore.timelog.segmenttable import SEGMENT_BYTES, segment_at
from timerstore.wheel.cancelled import cancelled_contains, cancelled_pass_delete
from timerstore.wheel.near import (
    KEPT_PLACE,
    NO_COPY,
    SLOT_CHAIN,
    SLOT_FIRST_COPY,
    SLOT_LATE,
    SLOT_ROLL_INDEX,
    SLOT_SETTLED,
    info_place,
    info_size,
    slot_place,
    slot_word,
)

PASS_SLOTS: Final = 4_096
_AHEAD: Final = 12

_FORGET: Final = -4
"""What became of a plain delete, see copying.py: its target leaves the cancelled set."""


@inlined
def dequeue_put(world: World, now_ms: int, is_timed: bool, clock: Words) -> int:
    """Append a batch, then move R; return the work done. Takes fire, then wheel. O(bytes).

    `is_timed`: count what reading messages takes. `clock`: scratch of this thread.
    """
    done = 0
    waits = ring_count(world.ring_words, DEQUEUE_RING) > 0
    if waits or world.dequeue_put.thread.lost_count > 0:
        lock_acquire(world.fire_lock)
        done = _append_taken(world, now_ms, is_timed, clock)
        lock_release(world.fire_lock)
    return done + _pass_slots(world, now_ms)


@inlined
def _append_taken(world: World, now_ms: int, is_timed: bool, clock: Words) -> int:
    stage, mine = world.stage, world.dequeue_put.thread
    if mine.lost_count > 0:
        mine.need = LOST
        return 0
    head = world.ring_words[DEQUEUE_RING + RING_HEAD]
    waiting = ring_count(world.ring_words, DEQUEUE_RING)
    staged, staged_bytes, seen = 0, 0, 0
    stamp_ms, began_ns = now_ms, 0
    if is_timed:
        began_ns = steady_ns(clock)
    while seen < waiting and staged < STAGE_COUNT_MAX and staged_bytes < BATCH_BYTES:
        at = ((head + seen) & (RING_COUNT - 1)) * DEQUEUE_COLUMNS
        info = world.dequeue_ring[at + DEQUEUE_INFO]
        if seen + _AHEAD < waiting:
            ahead = ((head + seen + _AHEAD) & (RING_COUNT - 1)) * DEQUEUE_COLUMNS
            prefetch_message(world, world.dequeue_ring[ahead + DEQUEUE_MESSAGE])
        if stage_is_full(staged, staged_bytes, info_size(info)):
            break
        message = world.dequeue_ring[at + DEQUEUE_MESSAGE]
        outcome = _stage(world, message, info, staged, staged_bytes, now_ms)
        if outcome == WAIT:
            break
        world.outcome[seen] = outcome
        if outcome == _FORGET:
            found = world.dequeue_put.thread.found
            world.targets[2 * seen] = found[IDENTITY_HIGH]
            world.targets[2 * seen + 1] = found[IDENTITY_LOW]
        if outcome == FIRED:  # taken when it was due; the clock may have stepped back since
            stamp_ms = max(stamp_ms, world.staged_due[staged])
        if outcome >= 0:
            staged_bytes += stage.size[staged]
            staged += 1
        seen += 1
    read_ns = 0
    if is_timed:
        read_ns = steady_ns(clock) - began_ns
    appended = append_staged(world, mine, staged, stamp_ms)
    done = _settle(world, head, seen, appended)
    if is_timed and done > 0:  # else it is all read again
        count_stage(world.stages, READ_MESSAGES, done, read_ns)
    return done


@inlined
def _stage(world: World, message: int, info: int, i: int, at: int, now_ms: int) -> int:
    """Decide about one taken timer, and frame its copy as number `i` of the stage, at `at`."""
    mine, found = world.dequeue_put.thread, world.dequeue_put.thread.found
    buf = segment_at(world.commitlog, message)
    outcome = find_source(world, mine, buf, message)
    if outcome != FOUND:
        return outcome
    if info & (UNIT_DELETE | UNIT_ROLL) == UNIT_DELETE:
        _read_target(world, buf, message)
        return _FORGET
    if not read_source(world, buf, found, message, info_size(info)):
        return UNREADABLE
    if found[DUE_MS] < 0 or found[REAL_TOPIC_BYTES] < 0:
        return UNREADABLE
    due_ms = exact_due_ms(buf, found, world.settings.store_tag, world.settings.precision_ms)
    kind = FIRED
    if info & UNIT_ROLL != 0 and (due_ms > now_ms or info & UNIT_DELETE != 0):
        kind = ROLLED
    row = 0
    if info & UNIT_DELETE == 0:
        if world.cancelled.count > 0:
            identify_timer(buf, found, world.settings.store_tag)
            if cancelled_contains(world.cancelled, found[IDENTITY_HIGH], found[IDENTITY_LOW]):
                return CANCELLED
        row = find_destination(world, mine, buf, message)
        if row < 0:
            return WAIT
    pending_row = row
    if kind == ROLLED:
        row, pending_row = 0, -1
    stored_ms = get_i64(buf, stored_at(buf, message % world.commitlog.words[SEGMENT_BYTES]))
    return stage_copy(
        world, buf, found, kind, row, pending_row, message, due_ms, due_ms, stored_ms, now_ms, i, at
    )


@inlined
def _settle(world: World, head: int, seen: int, appended: int) -> int:
    """Count what became of the first `seen` entries, up to the last that was appended."""
    near, stage = world.near, world.stage
    staged, done, settled_bytes = 0, 0, 0
    frontier_ms = world.dequeue_put.frontier_ms
    while done < seen:
        at = ((head + done) & (RING_COUNT - 1)) * DEQUEUE_COLUMNS
        info = world.dequeue_ring[at + DEQUEUE_INFO]
        place = info_place(info)
        outcome = world.outcome[done]
        until_ms = world.dequeue_ring[at + DEQUEUE_MS]
        if outcome >= 0:
            if staged == appended:
                break
            first = slot_word(place, SLOT_FIRST_COPY)
            near.slots[first] = min(near.slots[first], stage.offset[staged])
            if outcome == ROLLED:
                near.slots[slot_word(place, SLOT_ROLL_INDEX)] = stage.index[staged] + 1
                world.dequeue_put.rolled_count += 1
                world.dequeue_put.rolled_bytes += stage.size[staged]
            else:
                until_ms = max(until_ms, world.staged_due[staged])
                count_fired(world, world.dequeue_put.counts, staged)
            staged += 1
        elif outcome == CANCELLED:
            world.dequeue_put.counts.dropped_count += 1
        elif outcome == _FORGET:
            # Whoever cancels a timer of this slot from now on looks for it: its entry may be gone.
            until_ms = (until_ms + 1) * world.settings.precision_ms - 1
            high, low = world.targets[2 * done], world.targets[2 * done + 1]
            if high != 0 or low != 0:
                message = world.dequeue_ring[at + DEQUEUE_MESSAGE]
                cancelled_pass_delete(world.cancelled, high, low, message)
        else:
            message = world.dequeue_ring[at + DEQUEUE_MESSAGE]
            note_lost(world.dequeue_put.thread, message, world.dequeue_ring[at + DEQUEUE_INFO])
        frontier_ms = max(frontier_ms, until_ms)
        near.slots[slot_word(place, SLOT_SETTLED)] += 1
        settled_bytes += info_size(info)
        done += 1
    world.dequeue_put.settled_bytes += settled_bytes
    world.dequeue_put.frontier_ms = frontier_ms
    store_release(world.ring_words, DEQUEUE_RING + RING_HEAD, head + done)
    return done


# --- moving R


@inlined
def _pass_slots(world: World, now_ms: int) -> int:
    """Move the front, and R, over slots that have ended and hold nothing more to do; count them."""
    passed = 0
    for aside in range(2):
        while passed < PASS_SLOTS and _is_passable(world, aside, now_ms):  # a look without the lock
            lock_acquire(world.wheel_lock)
            moves = _is_passable(world, aside, now_ms)
            if moves:
                _pass(world, aside)
                passed += 1
            lock_release(world.wheel_lock)
            if not moves:
                break
    return passed


@inlined
def _pass(world: World, aside: int) -> None:
    """Move the front over its slot, or R over one that was put aside. Under wheel."""
    own, slots = world.dequeue_put, world.near.slots
    slot, waits = base_slot(world, aside), is_aside(world)
    place = slot_place(slot, aside)
    own.rolled_index = max(own.rolled_index, slots[slot_word(place, SLOT_ROLL_INDEX)])
    if waits and aside == 0:
        own.front_copy = min(own.front_copy, slots[slot_word(place, SLOT_FIRST_COPY)])
    slots[slot_word(place, SLOT_FIRST_COPY)] = NO_COPY
    slots[slot_word(place, SLOT_ROLL_INDEX)] = 0
    if aside == 0:
        publish(own, "front_slot", slot + 1)
    if not waits or (aside == 1 and slot + 1 == own.aside_stop):
        own.front_copy = NO_COPY
        publish(own, "passed_slot", own.front_slot)
    elif aside == 1:
        publish(own, "passed_slot", slot + 1)


@inlined
def has_passable(world: World, now_ms: int) -> bool:
    """Tell whether any range's first slot may be passed, as anyone can see without a lock."""
    if _is_near(world) and _is_settled(world, 0, now_ms):
        return True
    return is_aside(world) and _is_settled(world, 1, now_ms)


@inlined
def _is_passable(world: World, aside: int, now_ms: int) -> bool:
    """Tell whether a range's first slot can be passed; to be relied on under wheel alone.

    Where only the durable R is in the way, a checkpoint is asked for.
    """
    if aside == 1 and not is_aside(world):
        return False
    if not _is_settled(world, aside, now_ms):
        return False
    if aside == 0 and not _is_near(world):
        publish(world.dequeue_put, "flush_wanted", 1)
        world.dequeue_put.thread.need = FLUSHED
        return False
    return True


@inlined
def _is_near(world: World) -> bool:
    """Tell whether the front is less than the wheel's length ahead of the durable R."""
    durable = observe(world.flush, "checkpointed_slot")
    return observe(world.dequeue_put, "front_slot") < durable + world.settings.slot_count


@inlined
def _is_settled(world: World, aside: int, now_ms: int) -> bool:
    """Tell whether a range's first slot has ended, and all that came into it is done with."""
    slot = base_slot(world, aside)
    walked = observe(world.dequeue_get, "walked_slot")
    if aside == 1:
        walked = observe(world.aside, "walked_slot")
    if now_ms // world.settings.precision_ms <= slot or walked <= slot:
        return False
    if not _is_balanced(world, slot_place(slot, aside)):
        return False
    if observe(world.enqueue_put, "linked_index") < world.dequeue_put.rolled_index:
        return False
    if aside == 0 or slot + 1 < observe(world.dequeue_put, "aside_stop"):
        return True
    # R joins the front: only behind stragglers, and with the deletes that were kept.
    straggler = observe(world.enqueue_put, "straggler_slot")
    return _is_balanced(world, KEPT_PLACE) and observe(world.dequeue_put, "front_slot") > straggler


@inlined
def _is_balanced(world: World, place: int) -> bool:
    """Tell whether all units that came into a place are settled."""
    slots = world.near.slots
    came = load_acquire(slots, slot_word(place, SLOT_CHAIN))
    came += load_acquire(slots, slot_word(place, SLOT_LATE))
    return came == slots[slot_word(place, SLOT_SETTLED)]


@inlined
def _read_target(world: World, buf: Any, message: int) -> None:
    """Read whom a delete cancels into `found`; nobody, two zeros, where it is damaged."""
    found = world.dequeue_put.thread.found
    position = message % world.commitlog.words[SEGMENT_BYTES]
    if read_message(buf, position, found, False) == GOOD:
        identify_target(buf, found, world.settings.store_tag)
    else:
        found[IDENTITY_HIGH] = found[IDENTITY_LOW] = 0
