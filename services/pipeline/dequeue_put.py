"""Dequeue-put: appends copies of what was taken: it fires.

It empties the dequeue-put queue in order, and moves `passed_slot` over slots that are settled.
After RocketMQ's `TimerMessageStore.TimerDequeuePutMessageService` and `doPut`.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.intrinsics import get_i64, load_acquire
from timerstore.jit.kernel import inlined
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.mapping import PAGE_BYTES
from timerstore.jit.record import Bytes, Words, observe, publish
from timerstore.jit.system import steady_ns
from timerstore.services.pipeline.copying import (
    SOURCE_CANCELLED,
    SOURCE_FOUND,
    SOURCE_UNREADABLE,
    SOURCE_WAIT,
    Counted,
    append_staged,
    count_fired,
    find_destination,
    find_source,
    message_at,
    prefetch_message,
    read_source,
    stage_copy,
    stage_is_full,
    touch_message,
)
from timerstore.services.world.needs import LOST
from timerstore.services.world.state import place_of, waiting_count
from timerstore.services.world.world import READ_MESSAGES, World, count_stage, note_lost
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import (
    GOOD,
    exact_due_ms,
    identify_target,
    identify_timer,
    read_message,
    stored_at,
)
from timerstore.timelog.files.segmenttable import ask_for, segment_at
from timerstore.timelog.writing.append import BATCH_BYTES, STAGE_COUNT_MAX
from timerstore.timelog.writing.frame import FIRED, CopySays
from timerstore.wheel.cancelled import cancelled_contains, cancelled_pass_delete
from timerstore.wheel.near import info_place, info_size, slot_place

PASS_SLOTS: Final = 4_096
MESSAGES_TOUCH_NS: Final = 2_000_000
"""So long a step waits for pages before it fires what has come."""
ASK_BYTES: Final = 128 << 10
"""So much is asked for at once; the system reads no more, on a disk as Linux sets it."""
_AHEAD: Final = 12

_FORGET: Final = -4
"""What became of a plain delete, see copying.py: its target leaves the cancelled set."""


@inlined
def dequeue_put(world: World, now_ms: int, is_timed: bool, clock: Words) -> int:
    """Append a batch, move the read cursor; return the work done. Takes fire, wheel. O(bytes).

    `is_timed`: count what reading messages takes. `clock`: scratch of this thread.
    """
    done = 0
    waits = waiting_count(world.dequeue_ring.ends) > 0
    if waits or world.dequeue_put.thread.lost_count > 0:
        ready = _touch_taken(world, clock)
        lock_acquire(world.fire_lock)
        done = _append_taken(world, now_ms, ready, is_timed, clock)
        lock_release(world.fire_lock)
    return done + _pass_slots(world, now_ms)


@inlined
def _touch_taken(world: World, clock: Words) -> int:
    """Wait for the pages of what is fired next, without a lock; return how many entries that is.

    If pages were missing lately, all that waits is asked for first, so that the disk reads many
    pages at the same time; then it waits for MESSAGES_TOUCH_NS at most.
    """
    ring = world.dequeue_ring
    head, waiting = ring.ends.head, waiting_count(ring.ends)
    is_cold, until_ns = observe(world.prefetch, "is_active") != 0, 0
    if is_cold:
        _ask_for_taken(world, head, head + waiting)
        until_ns = steady_ns(clock) + MESSAGES_TOUCH_NS
    count, touched_bytes = 0, 0
    while count < min(waiting, STAGE_COUNT_MAX) and touched_bytes < BATCH_BYTES:
        at = place_of(head + count)
        touched_bytes += touch_message(world.commitlog, ring.message[at], info_size(ring.info[at]))
        count += 1
        if is_cold and steady_ns(clock) >= until_ns:
            break
    return count


@inlined
def _ask_for_taken(world: World, head: int, tail: int) -> None:
    """Ask for the pages of what waits in the ring; of messages side by side at one asking."""
    mine, ring, log = world.dequeue_put, world.dequeue_ring, world.commitlog
    start, stop = 0, 0
    for entry in range(max(head, mine.asked_tail), tail):
        message, info = ring.message[place_of(entry)], ring.info[place_of(entry)]
        _, size = message_at(log, message, info_size(info))
        if size > 0:
            # A range stays within a segment, because a message does.
            is_beside = start <= message <= stop + PAGE_BYTES
            is_beside = is_beside and message // log.segment_bytes == start // log.segment_bytes
            if not is_beside or message + size - start > ASK_BYTES:
                _ask(world, start, stop)
                start, stop = message, message
            stop = max(stop, message + size)
            mine.asked_count += 1
    _ask(world, start, stop)
    mine.asked_tail = tail


@inlined
def _ask(world: World, start: int, stop: int) -> None:
    """Have a range of the log read if some of it is not in memory; nothing if it is empty."""
    mine, log = world.dequeue_put, world.commitlog
    if start < stop:
        buf = segment_at(log, start)
        at = start % log.segment_bytes
        if len(buf) > 0 and not ask_for(buf, at, stop - start, mine.pages):
            mine.missing_count += 1


@inlined
def _append_taken(world: World, now_ms: int, ready: int, is_timed: bool, clock: Words) -> int:
    stage, mine, ring = world.stage, world.dequeue_put.thread, world.dequeue_ring
    if mine.lost_count > 0:
        mine.need = LOST
        return 0
    head, waiting = ring.ends.head, waiting_count(ring.ends)
    staged, staged_bytes, seen = 0, 0, 0
    stamp_ms, began_ns = now_ms, 0
    if is_timed:
        began_ns = steady_ns(clock)
    while seen < min(ready, waiting) and staged < STAGE_COUNT_MAX and staged_bytes < BATCH_BYTES:
        at = place_of(head + seen)
        info = ring.info[at]
        if seen + _AHEAD < ready:
            prefetch_message(world, ring.message[place_of(head + seen + _AHEAD)])
        if stage_is_full(staged, staged_bytes, info_size(info)):
            break
        outcome = _stage(world, at, staged, staged_bytes, now_ms)
        if outcome == SOURCE_WAIT:
            break
        world.outcome[seen] = outcome
        if outcome == _FORGET:
            found = world.dequeue_put.thread.found
            world.targets[2 * seen] = found.identity_high
            world.targets[2 * seen + 1] = found.identity_low
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
def _stage(world: World, place: int, i: int, at: int, now_ms: int) -> int:
    """Decide about what was taken, and frame its copy as number `i` of the stage, at `at`.

    `place`: of its entry in the dequeue-put queue.
    """
    ring = world.dequeue_ring
    message, info = ring.message[place], ring.info[place]
    mine, found = world.dequeue_put.thread, world.dequeue_put.thread.found
    buf = segment_at(world.commitlog, message)
    outcome = find_source(world, mine, buf, message)
    if outcome != SOURCE_FOUND:
        return outcome
    if info & fmt.UNIT_DELETE != 0:
        return _FORGET if _read_target(world, buf, message) else SOURCE_UNREADABLE
    if not read_source(world, buf, found, message, info_size(info)):
        return SOURCE_UNREADABLE
    if found.due_ms < 0 or found.real_topic_bytes < 0:
        return SOURCE_UNREADABLE
    due_ms = exact_due_ms(buf, found, world.settings.store_tag, world.settings.precision_ms)
    if world.cancelled.count > 0:
        identify_timer(buf, found, world.settings.store_tag)
        if cancelled_contains(world.cancelled, found.identity_high, found.identity_low):
            return SOURCE_CANCELLED
    row = find_destination(world, mine, buf, message)
    if row < 0:
        return SOURCE_WAIT
    stored_ms = get_i64(buf, stored_at(buf, message % world.commitlog.segment_bytes))
    says = CopySays(FIRED, message, stored_ms, now_ms)
    counts = Counted(row, row, due_ms, due_ms)
    return stage_copy(world, buf, found, says, counts, i, at)


@inlined
def _settle(world: World, head: int, seen: int, appended: int) -> int:
    """Count what became of the first `seen` entries, up to the last that was appended."""
    near, stage, ring = world.near, world.stage, world.dequeue_ring
    staged, done, settled_bytes = 0, 0, 0
    frontier_ms = world.dequeue_put.frontier_ms
    while done < seen:
        at = place_of(head + done)
        info = ring.info[at]
        place = info_place(info)
        outcome = world.outcome[done]
        until_ms = ring.bucket_ms[at]
        if outcome >= 0:
            if staged == appended:
                break
            near.first_copy[place] = min(near.first_copy[place], stage.offset[staged])
            until_ms = max(until_ms, world.staged_due[staged])
            count_fired(world, world.dequeue_put.counts, staged)
            staged += 1
        elif outcome == SOURCE_CANCELLED:
            world.dequeue_put.counts.dropped_count += 1
        elif outcome == _FORGET:
            # A call that cancels a timer of this slot from now on looks for it: its entry may be
            # gone.
            until_ms = (until_ms + 1) * world.settings.precision_ms - 1
            high, low = world.targets[2 * done], world.targets[2 * done + 1]
            if high != 0 or low != 0:
                cancelled_pass_delete(world.cancelled, high, low, ring.message[at])
        else:
            note_lost(world.dequeue_put.thread, ring.message[at], info)
        frontier_ms = max(frontier_ms, until_ms)
        near.settled[place] += 1
        settled_bytes += info_size(info)
        done += 1
    world.dequeue_put.settled_bytes += settled_bytes
    world.dequeue_put.frontier_ms = frontier_ms
    publish(ring.ends, "head", head + done)
    return done


# --- moving the read cursor


@inlined
def _pass_slots(world: World, now_ms: int) -> int:
    """Move the read cursor over slots that have ended and hold nothing more to do; count them."""
    passed = 0
    while passed < PASS_SLOTS and is_passable(world, now_ms):  # a look without the lock
        lock_acquire(world.wheel_lock)
        moves = is_passable(world, now_ms)
        if moves:
            publish(world.dequeue_put, "passed_slot", world.dequeue_put.passed_slot + 1)
            passed += 1
        lock_release(world.wheel_lock)
        if not moves:
            break
    return passed


@inlined
def is_passable(world: World, now_ms: int) -> bool:
    """Tell whether the read cursor's slot has ended, owes nothing, and all in it is settled.

    As anyone can see without a lock; rely on it only under wheel.
    """
    slot, near = observe(world.dequeue_put, "passed_slot"), world.near
    walked = observe(world.dequeue_get, "walked_slot")
    if now_ms // world.settings.precision_ms <= slot or walked <= slot:
        return False
    place = slot_place(near, slot)
    came = load_acquire(near.chain, place) + load_acquire(near.late, place)
    return came == near.settled[place]


@inlined
def _read_target(world: World, buf: Bytes, message: int) -> bool:
    """Read whom a delete cancels into `found`; False if it is damaged."""
    found = world.dequeue_put.thread.found
    position = message % world.commitlog.segment_bytes
    if read_message(buf, position, message, found, False) != GOOD:
        return False
    identify_target(buf, found, world.settings.store_tag)
    return True
