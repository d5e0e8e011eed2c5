"""Space: what may be put under `max_bytes`, so that all that is in the store has room to fire.

A message takes disk when it is put, and once more when it fires: that may be the whole store within
one second, and nothing of it can go before. So what is pending counts twice. A put is refused
unless what the store takes, and what firing is going to write, leave two segments of `max_bytes`
free. These are for a pass of cleaning, for blocks that are allocated ahead, and for what threads
put at the same time.

What firing writes is never counted too low: whole messages, deletes and cancelled timers until they
are settled or cleaned away, an allowance for what each timer has beside its message, a block of the
queue of each topic, and what stays empty at the end of segments because the next message is too
long for it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from timerstore.core.core import Core
from timerstore.errors import StoreFullError
from timerstore.jit.guards import Guard, RLock
from timerstore.timelog.files.blocks import step_bytes
from timerstore.values.ids import Int64s

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
        engine, cleaner = self.engine, self.core.cleaner
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
