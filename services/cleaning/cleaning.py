"""Cleaning: moves what is still pending out of the oldest commit log segments.

One timer that is due in a month would keep everything that was put after it. So a *pass* goes over
the oldest segment: what is pending there and is not due soon is appended again, as a roll is, and
the units it had are superseded (`floor.py`). A cancelled timer is dropped, and its delete with it
(`pass_units.py`). What is due before the pass's *first slot* is left to fire from its place. Once
the read cursor is past the latest slot of that nothing of the segment is needed: the floor moves
behind it, and with the next checkpoint retention removes it. So the first slot is as early as it
can be: behind what is claimed and what was ever fired, and behind what will be while the pass goes
on. If that is reached before, the pass ends there, and the next one leaves more.

A segment in which nothing is pending from that slot on is passed for nothing. One that costs
copies waits until there is enough to win: the log and all units must take more than
`cleaning_factor` times the bytes that are pending, plus `cleaning_slack_bytes`, and the log alone
half of what that factor allows beyond them. What consumers still need counts as well, because what
is copied comes up again only once all of the log has turned over. After a crash passes are
forgotten: cleaning begins again at the floor, and skips the sources that have their copy; it
finishes such a segment even if little is won, because the copies cursor waits for that. How all of
this holds together over crashes is `tests/models/cleaning_model.py`.

It runs in bounded steps on the flush thread. Copies are appended under fire and wheel, 32 KiB at a
time; segments and units are read through maps of its own, before (`pass_units.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from timerstore.errors import CorruptStoreError, TimerStoreError
from timerstore.jit.guards import Guard
from timerstore.jit.intrinsics import get_i64
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.locks import TurnLock, lock_acquire, lock_release
from timerstore.jit.record import Words, act_as, acting_as
from timerstore.services.cleaning.pass_units import (
    NO_TARGET,
    Pass,
    Round,
    UnitRanges,
    Walk,
    linked_by_now,
    live_bytes,
)
from timerstore.services.damage.pass_by import pass_lost
from timerstore.services.looking.read_units import SCAN_UNITS, all_units
from timerstore.services.pipeline.copying import (
    Counted,
    append_staged,
    read_source,
    stage_copy,
    stage_is_full,
    touch_message,
)
from timerstore.services.running.runner import provide
from timerstore.services.world import state
from timerstore.services.world.floor import find_in, read_floor
from timerstore.services.world.state import ServiceThread
from timerstore.services.world.world import World, lock_all, note_lost, release_all
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import exact_due_ms, identify_timer, stored_at
from timerstore.timelog.bytes.unit import NOT_SAID, Units
from timerstore.timelog.files.segmenttable import TABLE_LENGTH, SegmentTable, segment_at
from timerstore.timelog.writing.append import STAGE_COUNT_MAX
from timerstore.timelog.writing.frame import ROLLED, CopySays
from timerstore.wheel.cancelled import cancelled_contains
from timerstore.wheel.near import NO_COPY, pack_info

if TYPE_CHECKING:
    from timerstore.services.cleaning.retention import Reach
    from timerstore.services.engine.engine import Engine

log = logging.getLogger("timerstore")

WAIT_MS: Final = 10_000
"""If all of a segment is due within this time, cleaning waits; a pass leaves at most that."""
WORTH_IT: Final = -1
"""In place of an offset until which all is cleaned: only what it is worth."""
_ALL: Final = 1 << 62
FAR_SLOT: Final = 1 << 48
"""Behind all that a unit can lead to."""
COPY_BYTES: Final = 32 << 10
"""Copied in one hold of the locks: some 30 µs."""
TICK_BYTES: Final = 4 << 20
"""Copied in one go of the flush thread, of which there are twenty a second."""
_TICK_STEPS: Final = 256

_CUT: Final = -1


# --- kernels, each one bounded hold of the locks


@kernel_ahead
def _note_latest(world: World, latest: Words) -> None:
    """Note slots of segments that are later than those known; `latest`: int64[TABLE_LENGTH]."""
    lock_acquire(world.wheel_lock)
    for i in range(len(latest)):
        world.latest_slot[i] = max(world.latest_slot[i], latest[i])
    lock_release(world.wheel_lock)


@kernel_ahead
def _begin_pass(world: World, start: int, first_slot: int) -> None:
    """Enter a pass over messages from `start` on."""
    mine = world.cleaning
    before = act_as(state.CLEANING)
    lock_all(world)
    at = mine.pass_count * state.PASS_COLUMNS
    mine.passes[at + state.PASS_START] = start
    mine.passes[at + state.PASS_CURSOR] = start
    mine.passes[at + state.PASS_FIRST_SLOT] = first_slot
    mine.passes[at + state.PASS_FIRST_COPY] = NO_COPY
    mine.pass_count += 1
    release_all(world)
    act_as(before)


@kernel_ahead
def _move_floor(world: World, floor: int, pass_count: int) -> None:
    """Move the floor, and forget the oldest passes, which it is past; `pass_count` stay."""
    mine = world.cleaning
    before = act_as(state.CLEANING)
    lock_all(world)
    mine.floor = floor
    ended_count = mine.pass_count - pass_count
    for i in range(pass_count * state.PASS_COLUMNS):
        mine.passes[i] = mine.passes[i + ended_count * state.PASS_COLUMNS]
    mine.pass_count = pass_count
    release_all(world)
    act_as(before)


@inlined
def _take_back_lost(thread: ServiceThread) -> None:
    """Forget what was noted as lost: it will be met again."""
    thread.unreadable_count -= thread.lost_count
    thread.lost_count = 0


@inlined
def _touch_units(source: SegmentTable, units: Units, targets: Words) -> int:
    """Wait for the pages of what is copied next, without a lock; return how many units that is."""
    count, touched_bytes = 0, 0
    while count < len(units.offset) and touched_bytes < COPY_BYTES:
        if targets[count] == NO_TARGET:
            touched_bytes += touch_message(source, units.message[count], units.size[count])
        count += 1
    return count


@kernel_ahead
def _copy_units(
    world: World, source: SegmentTable, units: Units, targets: Words, stop_at: int, now_ms: int
) -> int:
    """Copy what the last pass needs of `units`, in one append; return how many are done with.

    `units`: those of its range that lead to its first slot or later, in the order of the log;
    `stop_at` is the cursor's place once all are done with. `targets`: of the deletes that are
    dropped, see `read_targets`. `source`: the commit log's segments. _CUT, and nothing done, if a
    slot from that one on is being claimed, or was fired from. O(bytes).
    """
    mine, thread = world.cleaning, world.cleaning.thread
    found, stage, precision = thread.found, world.stage, world.settings.precision_ms
    last = (mine.pass_count - 1) * state.PASS_COLUMNS
    first_slot = mine.passes[last + state.PASS_FIRST_SLOT]
    before = act_as(state.CLEANING)
    ready = _touch_units(source, units, targets)
    lock_acquire(world.fire_lock)
    staged, staged_bytes, i = 0, 0, 0
    while i < ready and staged < STAGE_COUNT_MAX and staged_bytes < COPY_BYTES:
        message, size = units.message[i], units.size[i]
        magic = units.magic[i]
        slot = units.ms[i] // precision
        if targets[i] != NO_TARGET or find_in(world.done, message) >= 0:
            i += 1
            continue
        if stage_is_full(staged, staged_bytes, size):
            break
        buf = segment_at(source, message)
        sound = len(buf) > 0 and read_source(world, buf, found, message, size)
        if not sound or found.due_ms < 0 or found.real_topic_bytes < 0:
            note_lost(thread, message, pack_info(size, slot, magic))
            break
        if magic & fmt.UNIT_DELETE == 0 and world.cancelled.count > 0:
            identify_timer(buf, found, world.settings.store_tag)
            if cancelled_contains(world.cancelled, found.identity_high, found.identity_low):
                i += 1
                continue
        at = message % world.commitlog.segment_bytes
        due_ms = exact_due_ms(buf, found, world.settings.store_tag, precision)
        stored_ms = get_i64(buf, stored_at(buf, at))
        says = CopySays(ROLLED, message, stored_ms, now_ms)
        counts = Counted(0, -1, due_ms, due_ms)
        kind = stage_copy(world, buf, found, says, counts, staged, staged_bytes)
        if kind != ROLLED:
            note_lost(thread, message, pack_info(size, slot, magic))
            break
        world.outcome[staged] = i
        staged_bytes += stage.size[staged]
        staged += 1
        i += 1
    lock_acquire(world.wheel_lock)
    reached_slot = world.dequeue_put.frontier_ms // precision + 1
    if max(reached_slot, world.dequeue_get.claimed_slot) > first_slot:
        i = _CUT
        _take_back_lost(thread)
    else:
        appended = append_staged(world, thread, staged, now_ms)
        if appended < staged:
            i = world.outcome[appended]
            _take_back_lost(thread)
        i += thread.lost_count  # what cannot be read is passed by, and named
        for each in range(appended):
            mine.copied_bytes += stage.size[each]
        mine.copied_count += appended
        for each in range(i):
            if find_in(world.done, units.message[each]) < 0:
                mine.settled_bytes += units.size[each]
        if appended > 0:
            first = mine.passes[last + state.PASS_FIRST_COPY]
            mine.passes[last + state.PASS_FIRST_COPY] = min(first, stage.offset[0])
        # In the same hold as the append: of each timer either the old unit counts or the copy.
        mine.passes[last + state.PASS_CURSOR] = stop_at
        if i < len(units.offset):
            mine.passes[last + state.PASS_CURSOR] = units.message[i]
    lock_release(world.wheel_lock)
    lock_release(world.fire_lock)
    act_as(before)
    return i


# --- the passes


class Cleaner:
    """Cleans one engine's log. Its calls may come from any thread, one at a time is inside.

    A signal's exception may end them between any two steps; the next call goes on from there. So
    only the kernel's own words say what a kernel has done, and here one assignment decides.
    """

    def __init__(self, engine: Engine, reach: Reach) -> None:
        """`reach`: the offset up to which only pending timers keep the log."""
        self.engine, self.reach = engine, reach
        self.error: CorruptStoreError | None = None
        """Damage that kept it from knowing what is needed; nothing is cleaned since."""
        self.stopped = False
        self.leave_slots = 0
        """Slots behind the claimed ones whose timers a pass leaves to fire: the last one took so
        many."""
        self.wait_slots = max(2, WAIT_MS // engine.precision_ms)
        """Slots behind the claimed ones that are waited for, if nothing later is pending."""
        self.units_at_once = SCAN_UNITS
        """Units that a step reads, or looks at."""
        self.segment_count = 0
        """Commit log segments from which timers were copied."""
        self._lock = TurnLock()
        self._passes: deque[Pass] = deque()
        self._walk: Walk | None = None  # of the last pass, until that has ended
        self._round: Round | None = None
        self._is_known = False
        self._ranges = UnitRanges()
        # Of an earlier life; what came since is counted by the services. None: not known yet.
        self._pending_bytes = 0 if engine.timerlog.end == engine.timerlog.start else None
        self._may_begin = False
        self.largest_bytes = 0
        """Of the messages that were pending when `waits_bytes` was learnt."""

    def run(self, *, at_once: bool = False, until: int = WORTH_IT) -> None:
        """Begin to clean what is worth it, or all that can be before an offset; move the floor.

        `at_once`: as far as the log goes now, so it comes to an end whatever is put meanwhile; else
        `go_on` does the rest, piece by piece. O(units of the segments that are passed + queues).
        Raises StoreFullError if there is no room for a copy.
        """
        self._may_begin = True
        self._go_on(at_once=at_once, until=until)

    def go_on(self) -> None:
        """Do a piece of what is under way: TICK_BYTES at most. As `run`; O(1) if nothing is."""
        if self._may_begin or self._passes:
            self._go_on(at_once=False, until=WORTH_IT)

    def _go_on(self, *, at_once: bool, until: int) -> None:
        if until != WORTH_IT:
            with self._waiting():
                self._step_often(at_once=at_once, until=until)
        elif at_once or not state.reads_units(self.engine.world.prefetch):
            with self._lock.if_free.guard() as taken:
                if taken:
                    self._step_often(at_once=at_once, until=until)

    def _step_often(self, *, at_once: bool, until: int) -> None:
        cleaning, steps = self.engine.world.cleaning, 0
        stop, log_end = cleaning.copied_bytes + TICK_BYTES, self.engine.commitlog.end
        try:
            while at_once or (cleaning.copied_bytes < stop and steps < _TICK_STEPS):
                if not self._step(until, log_end):
                    self._may_begin = False
                    break
                steps += 1
            self._move_floor()
        except CorruptStoreError as e:
            self.error = e
            fields = {"store": str(self.engine.path), "file": e.file, "offset": e.offset}
            log.error(
                "%s: cleaning has stopped, so no file is removed any more: %s",
                *(self.engine.path, e),
                extra=fields,
            )

    def _waiting(self) -> Guard:
        """Take the lock for a caller that waits for it; refused if this thread has it."""
        if self._lock.is_mine():
            raise TimerStoreError(
                "This method was called inside another call of the same thread, for example in a "
                "signal handler. In a signal handler set a flag, and call this method when the "
                "other call has returned."
            )
        return self._lock.guard()

    def step(self) -> bool:
        """Do one bounded step, whether it is worth it or not; False if there is none."""
        done = self._step(_ALL, _ALL)
        self._move_floor()
        return done

    def stop(self) -> None:
        """Begin and copy nothing any more; a pass that was begun ends at its cursor."""
        self.stopped = True
        with self._waiting():
            if self._walk is not None:
                self._enter(self._walk)
                self._cut(self._walk)

    def resume(self) -> None:
        """Go on after `stop`, since when units may have been linked."""
        self._round = None
        self._is_known = self.stopped = False

    def learn(self) -> None:
        """Learn `pending_bytes`, in a store that nothing is cleaned in: O(units), once."""
        with self._waiting(), suppress(CorruptStoreError):  # then it stays unknown
            self._learn()

    @property
    def is_waiting(self) -> bool:
        """Tell whether the floor waits until what was left in place has fired."""
        return bool(self._passes) and self.error is None and not self.stopped

    @property
    def waits_bytes(self) -> int | None:
        """Bytes of the messages whose units are not settled; None before it was learnt.

        Those of cancelled timers, and of deletes, are among them.
        """
        world = self.engine.world
        if self._pending_bytes is None:
            return None
        settled = world.dequeue_put.settled_bytes + world.cleaning.settled_bytes
        return max(0, self._pending_bytes + world.enqueue_put.linked_bytes - settled)

    @property
    def pending_bytes(self) -> int | None:
        """Bytes of the messages of pending timers, about; None before it was learnt."""
        waits_bytes = self.waits_bytes
        if waits_bytes is None:
            return None
        dropped_count = sum(len(each.targets) for each in [*self._passes])
        return live_bytes(self.engine, waits_bytes, dropped_count)

    def _step(self, until: int, log_end: int) -> bool:
        if self.stopped or self.error is not None or self.engine.wanted.keep_from == 0:
            return False
        if self._walk is not None:
            self._enter(self._walk)
            return self._copy(self._walk)
        if self._round is not None and not self._round.is_read:
            self._round.read_on()
            return True
        return (self._may_begin or until != WORTH_IT) and self._begin(until, log_end)

    # --- a pass begins

    def _begin(self, until: int, log_end: int) -> bool:
        """Begin a pass over the oldest segment, or what is left of it, if it is before both."""
        self._move_floor()
        engine, world = self.engine, self.engine.world
        start = self._passes[-1].stop if self._passes else world.cleaning.floor
        number = start // engine.commitlog.segment_bytes
        stop = (number + 1) * engine.commitlog.segment_bytes
        # What an index is to be made anew from is not removed: to copy what is there wins nothing.
        reach = min(self.reach.find(start), engine.wanted.keep_from)
        if stop > reach or WORTH_IT < until <= start or log_end <= start:
            return False
        self._learn()
        latest_slot = int(world.latest_slot[number % TABLE_LENGTH])
        claimed_slot = world.dequeue_get.claimed_slot
        if latest_slot < claimed_slot + self.wait_slots:  # all of it fires soon: it costs nothing
            self._passes.append(Pass(start, stop, latest_slot))
            return True
        if world.cleaning.pass_count == state.PASS_COUNT_MAX or not (
            until != WORTH_IT or self._is_worth_it(start)
        ):
            return False
        if self._round is None or start >= self._round.stop:
            stop, size = self.reach.found, self.units_at_once
            self._round = Round(engine, start, stop, size, self._ranges)
            return True
        reached_slot = world.dequeue_put.frontier_ms // engine.precision_ms + 1
        first_slot = max(claimed_slot, reached_slot) + self.leave_slots
        if self._passes and self._passes[-1].start == start:  # it was cut before it copied any
            first_slot = max(first_slot, self._passes[-1].first_slot + 1)
        stop = min(stop, self._round.stop)
        units, last_slot = self._round.waiting(start, stop, first_slot)
        self._walk = walk = Walk(engine, Pass(start, stop, last_slot, first_slot), units)
        self._enter(walk)
        return True

    def _enter(self, walk: Walk) -> None:
        """Make the last pass known to kernels, then here; each once, whenever this was ended."""
        if not self._is_entered(walk):
            _begin_pass(self.engine.world, walk.mine.start, walk.mine.first_slot)
        if not self._passes or self._passes[-1] is not walk.mine:
            self._passes.append(walk.mine)

    def _is_worth_it(self, start: int) -> bool:
        """Tell whether enough can be won, or the copies cursor waits for a segment's end."""
        engine, config = self.engine, self.engine.config
        if not config.cleaning:
            return False
        if engine.last_recovered_source(engine.read_slot) >= start:
            return True
        log_bytes = engine.commitlog.end - start
        units_bytes = engine.timerlog.end - engine.timerlog.start
        # What has no unit yet, the copies of a pass above all, waits as well: else one pass would
        # make the next one worth it.
        waits_bytes = (self.pending_bytes or 0) + self.reach.unlinked_bytes()
        limit, wanted_bytes = config.max_bytes, waits_bytes + engine.commitlog.segment_bytes
        if self._passes and limit is not None and engine.disk_bytes + wanted_bytes > limit:
            return False  # what is copied before a segment went is never what firing needs
        allowed_bytes = config.cleaning_factor * waits_bytes + config.cleaning_slack_bytes
        # Many hops leave many units, and those no pass removes.
        least_bytes = (config.cleaning_factor + 1) * waits_bytes / 2
        return log_bytes > max(allowed_bytes - units_bytes, least_bytes)

    def _learn(self) -> None:
        """Learn what the units of an earlier life say, once: O(units).

        The latest slot of each commit log segment, which enqueue-put keeps for the units that it
        links; how many bytes are pending; which messages each part of the timer log names.
        """
        if self._is_known:
            return
        engine, world = self.engine, self.engine.world
        linked = linked_by_now(world)
        latest = np.full(TABLE_LENGTH, -1, np.int64)
        ranges, pending_bytes = UnitRanges(), 0
        floor = read_floor(world)
        for units in all_units(engine, engine.timerlog.start, linked.end):
            # What does not say where it leads to may lead anywhere.
            leads_to = np.where(units.leads_to == NOT_SAID, FAR_SLOT, units.leads_to)
            messages, slots = units.message, units.ms // engine.precision_ms
            ranges.note(units)
            numbers = messages // engine.commitlog.segment_bytes
            kept = messages >= floor.offset
            np.maximum.at(latest, numbers[kept] % TABLE_LENGTH, leads_to[kept])
            waits = (slots >= linked.read_slot) & ~floor.superseded(units)
            waits &= ~np.isin(messages, engine.recovered_sources[:, 0])
            pending_bytes += int(units.size[waits].sum())
            self.largest_bytes = max(self.largest_bytes, int(units.size[waits].max(initial=0)))
        _note_latest(world, latest)
        self._ranges = ranges
        if self._pending_bytes is None:  # what has fired in a slot that did not pass is in it
            self._pending_bytes = pending_bytes - linked.linked_bytes + linked.settled_bytes
        self._is_known = True

    # --- a pass goes on, and ends

    def _copy(self, walk: Walk) -> bool:
        """Copy a batch of the pass; end it if all are done with."""
        engine, world = self.engine, self.engine.world
        self._settle(walk)
        units, targets, stop_at = walk.next_units(self.units_at_once)
        now_ms = max(engine.clock.now_ms, engine.queues.table.stored_ms)
        before = world.cleaning.copied_count
        with engine.commitlog.reading():
            done = _copy_units(world, walk.source.table, units, targets, stop_at, now_ms)
        if world.cleaning.copied_count > before:  # enqueue-get may be asleep
            engine.wake_for(walk.mine.first_slot * engine.precision_ms)
        if done == _CUT:
            self._cut(walk)  # another pass begins
            return True
        self._settle(walk)
        if int(self._last_row()[state.PASS_CURSOR]) == walk.mine.stop:
            self._end(walk)
        return True

    def _settle(self, walk: Walk) -> None:
        """Do what the last batch left to Python: what was lost, what is needed, how far it came."""
        thread = self.engine.world.cleaning.thread
        if thread.lost_count:
            with acting_as(state.CLEANING):
                pass_lost(self.engine, thread)
        if thread.need:
            provide(self.engine, state.CLEANING)
        walk.go_to(int(self._last_row()[state.PASS_CURSOR]))

    def _last_row(self) -> Words:
        """Return what kernels know of the last pass that was entered."""
        words = self.engine.world.cleaning
        return words.passes[(words.pass_count - 1) * state.PASS_COLUMNS :][: state.PASS_COLUMNS]

    def _is_entered(self, walk: Walk) -> bool:
        """Tell whether kernels know a pass; no two have the same beginning and first slot."""
        mine = [walk.mine.start, walk.mine.first_slot]
        known = self.engine.world.cleaning.pass_count > 0
        return (
            known and self._last_row()[[state.PASS_START, state.PASS_FIRST_SLOT]].tolist() == mine
        )

    def _cut(self, walk: Walk) -> None:
        """End a pass at its cursor, and let the next one leave twice as much."""
        walk.mine.stop = int(self._last_row()[state.PASS_CURSOR])
        self._end(walk, 2 * self.leave_slots + 1)

    def _end(self, walk: Walk, leave_slots: int = 0) -> None:
        walk.mine.targets = walk.dropped_targets()
        took_slots = self.engine.world.dequeue_get.claimed_slot - walk.claimed_slot
        leave_slots = min(max(leave_slots, took_slots), self.wait_slots)
        left = self._round
        if left is not None and left.stop <= walk.mine.stop:
            left = None
        self.leave_slots, self._round, self._walk = leave_slots, left, None
        self.segment_count += 1

    def _move_floor(self) -> None:
        """Move the floor over the oldest passes of which nothing is needed any more."""
        passes, walk = list(self._passes), self._walk
        mine = None if walk is None else walk.mine
        ended = 0
        while ended < len(passes) and passes[ended] is not mine:
            if self.engine.read_slot <= passes[ended].last_slot:
                break
            ended += 1
        if ended:
            left = sum(each.first_slot >= 0 for each in passes[ended:] if each is not mine)
            left += walk is not None and self._is_entered(walk)
            _move_floor(self.engine.world, passes[ended - 1].stop, left)
        for each in passes[:ended]:
            self.engine.cancelled.remove_ours(each.targets)
        for _ in range(ended):  # if a signal comes in between, the same is done once more
            self._passes.popleft()
