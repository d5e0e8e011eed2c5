"""When a put waits, or is refused: for the services, for a full slot, for space.

What is bounded is the timer topic's queue on disk: the entries that enqueue-get has not read. All
that stands behind it is bounded by rings, each of which stops its producer when it is full. What
must not wait passes by: cancels, which make room, and what services append themselves (hops), or
the two would wait for each other. So the bound is one on putting: `admission_count_max` entries,
with up to a piece (PIECE_COUNT_MAX at most) more for each further thread that puts at the moment.

A thread waits inside the store's gate, without any lock and without the GIL. Its wait ends when
enqueue-get has read half of what may wait, when the store is closed, handed over or stopped, when
services find no space on the disk, after `admission_timeout_ms`, or by a signal's exception.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from copy import copy
from typing import TYPE_CHECKING, Final

import numpy as np

from timerstore.core.core import Core
from timerstore.errors import CongestedError, StoreFullError, TimerStoreError
from timerstore.jit.guards import Guard, RLock
from timerstore.services.world.state import ENQUEUE_GET
from timerstore.services.world.world import PUTTERS_WOKEN_AT
from timerstore.timelog.files.blocks import step_bytes
from timerstore.timelog.writing.append import STAGE_COUNT_MAX
from timerstore.values.ids import Int64s
from timerstore.wheel.timerwheel import place_all

if TYPE_CHECKING:
    from timerstore.services.engine.engine import Engine


UNLIMITED: Final = 1 << 62
"""The room if nothing is bounded."""
PIECE_COUNT_MAX: Final = STAGE_COUNT_MAX
"""Timers that one look for room admits."""
_POLL_MS: Final = 50
"""Who waits looks up at least this often: services may have stopped."""


class WouldWaitError(TimerStoreError):
    """There is no room, in a call that may not wait for it; the caller has put nothing more."""


class Admission:
    """Lets timers into the timer topic's queue."""

    def __init__(self, core: Core) -> None:
        engine, config = core.engine, core.engine.config
        self.core, self.engine = core, engine
        self.is_limited = config.admission == "wait"
        self.count_max = config.admission_count_max if self.is_limited else UNLIMITED
        self._timeout_ms = config.admission_timeout_ms
        engine.world.putters[PUTTERS_WOKEN_AT] = self.count_max // 2 if self.is_limited else -1

    def enter(self) -> int:
        """Return how many timers the caller may put now, at least one; wait for that.

        Called by those who put, inside the store, without any lock. Raises what ends the wait; then
        the caller has put nothing more.
        """
        if not self.is_limited:
            return UNLIMITED
        room = self._room()
        if room == 0 and self.core.clock.manual:
            room = self._play()
        if room == 0:
            room = self._wait()
        return min(room, PIECE_COUNT_MAX)

    def backlog(self) -> int:
        """Return how many entries of the timer topic's queue enqueue-get has not read."""
        return self.engine.queues.next_index(0) - self.engine.world.enqueue_get.fetched_index

    def _room(self) -> int:
        return max(0, self.count_max - self.backlog())

    def _play(self) -> int:
        """On a manual clock, run the services within the call; nobody else does."""
        now_ms = self.core.clock.now_ms
        self.core.runner.play(now_ms, now_ms)
        room = self._room()
        if room == 0:
            raise StoreFullError(
                f"{self.backlog()} timers wait to be linked, and the manual clock stands still, "
                "so no service links them. Advance the clock, or raise admission_count_max "
                f"({self.count_max})."
            )
        return room

    def _wait(self) -> int:
        if self.core.is_deferring:
            raise WouldWaitError("There is no room at the moment.")
        started = time.monotonic()
        with self.core.putters.waiter() as waiter:
            while True:
                waiter.arm()
                self.core.check_writable()
                room = self._room()
                if room > 0:
                    return room
                waiter.wait(self.next_look_ms((time.monotonic() - started) * 1000))

    def next_look_ms(self, waited_ms: float) -> float:
        """Return after how long who waits for room looks again, and see to it that it is made.

        Raises what ends the wait: there is no space on the disk, or the time is over.
        """
        self._check_space()
        wait_ms = float(_POLL_MS)
        if self._timeout_ms is not None:
            wait_ms = min(wait_ms, self._timeout_ms - waited_ms)
            if wait_ms <= 0:
                raise StoreFullError(
                    f"{self.backlog()} timers wait to be linked, and there was no room for "
                    f"{self._timeout_ms} ms. Put more slowly, or raise admission_count_max "
                    f"({self.count_max}) or admission_timeout_ms."
                )
        self.core.engine.wake(ENQUEUE_GET)
        return wait_ms

    def _check_space(self) -> None:
        """Raise if services wait for space: there may be no room before somebody makes some."""
        error = self.core.runner.waiting_for_space
        if error is not None:
            raise copy(error)  # others may raise it too


# --- refusing a put into a slot that is full
#
# Off unless `Config(congestion_slot_count=…)` sets a limit n₀. A slot with up to n₀ timers accepts,
# one with 2 n₀ refuses; between, the chance of refusal rises linearly from 0 to 1. A timer is
# judged by the slot in which its unit will lie: its own, or that of its first hop.
#
# What counts: the slot's units, however they came there (a put, a reschedule, a retry with a delay,
# a hop), and what was put but has no unit yet; otherwise a burst would pass before any of it
# counts. What is refused: a put, and a reschedule; then nothing was changed. A retry was taken, and
# a hop is under way: they have nowhere else to go, and only count.


class Congestion:
    """Counts timers by slot; any number of threads may use it."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.limit = engine, engine.config.congestion_slot_count
        self._rng = random.Random()
        self._lock = RLock()  # a signal's handler may put meanwhile
        self._unlinked: deque[tuple[int, dict[int, int]]] = deque()
        """What was let in: the timer queue's end then, and how many for each slot."""
        self._counts: Counter[int] = Counter()

    def check(self, due_ms: Int64s | int, now_ms: int) -> None:
        """Let timers in, or refuse all of them by chance: surely at twice the limit."""
        if self.limit is not None:
            self._let_in(self._by_slot(due_ms, now_ms), self.limit)

    def count(self, due_ms: int, now_ms: int) -> None:
        """Let in a timer that cannot be refused."""
        if self.limit is not None:
            self._let_in(self._by_slot(due_ms, now_ms), None)

    def _by_slot(self, due_ms: Int64s | int, now_ms: int) -> dict[int, int]:
        due = np.array(due_ms, np.int64, ndmin=1)
        slots = np.empty(len(due), np.int64)
        world = self.engine.world
        passed_slot = self.engine.read_slot
        now_slot = now_ms // self.engine.precision_ms
        base = max(now_slot, passed_slot, world.dequeue_get.claimed_slot - 1)
        place_all(world.settings, base, passed_slot, due, slots)
        found, counts = np.unique(slots, return_counts=True)
        return dict(zip(found.tolist(), counts.tolist(), strict=True))

    def _let_in(self, more: dict[int, int], limit: int | None) -> None:
        with self._lock.guard():
            end = self._forget_linked()
            if limit is not None:
                for slot, count in more.items():
                    self._judge(slot, count, limit)
            self._counts.update(more)
            self._unlinked.append((end, more))

    def _forget_linked(self) -> int:
        """Forget what has a unit by now, which its slot counts; return the timer queue's end."""
        linked = self.engine.world.enqueue_put.linked_index
        end = self.engine.queues.next_index(0)
        while self._unlinked and (linked >= end or self._unlinked[0][0] < linked):
            _, counts = self._unlinked.popleft()
            self._counts.subtract(counts)
            for slot in counts:
                if self._counts[slot] <= 0:
                    del self._counts[slot]
        if not self._unlinked:
            self._counts.clear()  # a signal's exception may have come between
        return end

    def _judge(self, slot: int, more: int, limit: int) -> None:
        present = self.engine.wheel.count(slot) + self._counts[slot]
        chance = (present + more - 1 - limit) / limit
        if chance > 0 and (chance >= 1 or self._rng.random() < chance):
            raise CongestedError(
                f"The slot of {slot * self.engine.precision_ms} (epoch ms) holds {present} "
                f"timers already. Spread the due times, or raise congestion_slot_count ({limit})."
            )


# --- refusing a put for which `max_bytes` leaves no room
#
# A message takes disk when it is put, and once more when it fires: that may be the whole store
# within one second, and nothing of it can go before. So what is pending counts twice. A put is
# refused unless what the store takes, and what firing is going to write, leave two segments of
# `max_bytes` free. These are for a pass of cleaning, for blocks that are allocated ahead, and for
# what threads put at the same time.
#
# What firing writes is never counted too low: whole messages, deletes and cancelled timers until
# they are settled or cleaned away, an allowance for what each timer has beside its message, a block
# of the queue of each topic, and what stays empty at the end of segments because the next message
# is too long for it.


TIMER_BYTES: Final = 256
"""Beside its message, a timer may take so much: units of 52 bytes for its place and for two hops,
an entry of 20 in its topic's queue, and what its delete has more than its copy would."""
COST_FACTOR: Final = 4
"""A put takes at most so many times its message: that, its copy, TIMER_BYTES, ends of segments."""
_CHUNK_BYTES: Final = 64 << 10
_ENTRIES_AT_ONCE: Final = 1 << 16


class Waiting:
    """Sums the sizes of a queue's messages from an index on, which only grows."""

    def __init__(self) -> None:
        self.largest_bytes = self._bytes = self._stop = 0
        self._chunks: deque[tuple[int, int]] = deque()  # the index behind each, and its bytes

    def sum(self, core: Core, row: int, start: int) -> int:
        """Return the bytes from index `start` on, or up to a chunk more. O(what came since)."""
        queues, chunks = core.engine.queues, self._chunks
        stop = queues.next_index(row)
        self._stop = max(self._stop, start)
        while self._stop < stop:
            count = min(stop - self._stop, _ENTRIES_AT_ONCE)
            sizes = np.maximum(queues.read(row, self._stop, count)["size"].astype(np.int64), 0)
            ends = np.flatnonzero(np.diff(np.cumsum(sizes) // _CHUNK_BYTES, append=-1)) + 1
            for each, end in zip(np.split(sizes, ends[:-1]), ends.tolist(), strict=True):
                self._add(self._stop + end, int(each.sum()))
            self.largest_bytes = max(self.largest_bytes, int(sizes.max()))
            self._stop += count
        while chunks and chunks[0][0] <= start:
            self._bytes -= chunks.popleft()[1]
        return self._bytes

    def _add(self, stop: int, size: int) -> None:
        self._bytes += size
        if self._chunks and self._chunks[-1][1] + size <= _CHUNK_BYTES:
            size += self._chunks.pop()[1]
        self._chunks.append((stop, size))


class Space:
    """What may be put into one store; any number of threads may ask."""

    def __init__(self, core: Core) -> None:
        self.core, self.engine = core, core.engine
        self._lock, self._puts = RLock(), RLock()
        self._timers = Waiting()
        self._levels = [Waiting() for _ in range(len(core.engine.levels.row))]

    def putting(self) -> Guard:
        """Keep others from putting many until the block ends. Firing never waits for it."""
        return self._puts.guard()

    def check(self) -> None:
        """Raise StoreFullError if `max_bytes` leaves no room for a put. O(queues + levels)."""
        self.room_bytes()

    def room_bytes(self) -> int | None:
        """Return how much disk puts may still take, with what firing them does; None: any.

        Raises StoreFullError if there is none.
        """
        limit = self.engine.config.max_bytes
        if limit is None:
            return None
        firing_bytes = self.firing_bytes()
        taken_bytes = self.engine.disk_bytes  # last: what fired meanwhile counts twice, not never
        kept_bytes = 2 * self.engine.commitlog.segment_bytes
        room_bytes = limit - kept_bytes - taken_bytes - firing_bytes
        if room_bytes <= 0:
            raise StoreFullError(
                f"The store takes {taken_bytes} bytes, needs {firing_bytes} more to fire what is "
                f"pending, keeps {kept_bytes} free, and may take {limit} (max_bytes). Consume and "
                "acknowledge messages, wait until timers have fired, or raise max_bytes."
            )
        return room_bytes

    def firing_bytes(self) -> int:
        """Return at least how much disk it takes to fire, or cancel, all that is pending."""
        engine, cleaner = self.engine, self.core.upkeep.cleaner
        world, levels = engine.world, engine.levels
        if cleaner.waits_bytes is None:
            cleaner.learn()
        with self._lock.guard():
            # What gets its unit meanwhile counts twice.
            size = self._timers.sum(self.core, 0, int(world.enqueue_put.linked_index))
            for waiting, row, start in zip(self._levels, levels.row, levels.offset, strict=True):
                if row >= 0:
                    size += waiting.sum(self.core, int(row), int(start))
            largest = max(each.largest_bytes for each in (self._timers, *self._levels))
        waits_bytes = cleaner.waits_bytes
        if waits_bytes is None:  # damage keeps it from knowing
            waits_bytes = engine.commitlog.end - engine.commitlog.start
        size += waits_bytes + TIMER_BYTES * engine.pending_count()
        segment_bytes = engine.commitlog.segment_bytes
        largest = min(max(largest, cleaner.largest_bytes), segment_bytes // 2)
        count = len(engine.queues.files)
        topic_count = int(engine.queues.table.pending.reshape(2, -1)[:, :count].any(0).sum())
        queue_bytes = topic_count * step_bytes(engine.queues.files[0].segment_bytes)
        return size * segment_bytes // (segment_bytes - largest) + queue_bytes

    def count_that_fit(self, sizes: Int64s) -> int:
        """Return how many messages of these sizes may be put before looking again, at least one.

        Raises StoreFullError if there is no room for any.
        """
        room_bytes = self.room_bytes()
        if room_bytes is None:
            return len(sizes)
        stop = np.searchsorted(np.cumsum(sizes), room_bytes // COST_FACTOR, "right")
        return max(1, int(stop))
