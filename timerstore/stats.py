"""Statistics: what a store tells about itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from timerstore.services.levels import LEVEL_COUNT
from timerstore.services.world import (
    DEQUEUE_RING,
    ENQUEUE_RING,
    RING_HEAD,
    RING_TAIL,
    bucket_lateness_ms,
)
from timerstore.wheel import state
from timerstore.wheel.near import NEAR_COUNT

if TYPE_CHECKING:
    from timerstore.store import TimerStore


@dataclass(frozen=True, slots=True)
class LevelStats:
    """A look at one delay level.

    `offset` is the index of the first message that it has not delivered, `end` the one behind the
    last; `lag_count` lie between. `overdue_ms`: how long the first of them has been due.
    """

    level: int
    delay_ms: int
    offset: int
    end: int
    lag_count: int
    overdue_ms: int


@dataclass(frozen=True, slots=True)
class Stats:
    """A look at a store; counters are since it was opened."""

    pending_count: int
    linked_count: int
    fired_count: int
    rolled_count: int
    dropped_count: int
    unreadable_count: int
    cancelled_count: int
    collision_count: int
    read_ms: int
    claimed_ms: int
    queue_index: int
    queue_end: int
    commitlog_start: int
    commitlog_end: int
    durable_end: int
    timerlog_end: int
    enqueue_queue_count: int
    dequeue_queue_count: int
    near_count: int
    lateness_p50_ms: int
    lateness_p99_ms: int
    lateness_max_ms: int
    sync_count: int
    checkpoint_count: int
    disk_bytes: int
    open_s: float
    recovery: dict[str, Any]
    levels: tuple[LevelStats, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return asdict(self)


def lateness_quantile_ms(histogram: np.ndarray[Any, np.dtype[np.int64]], share: float) -> int:
    """Return a quantile of a lateness histogram: the smallest lateness of its bucket."""
    total = int(histogram.sum())
    if total == 0:
        return 0
    bucket = int(np.searchsorted(np.cumsum(histogram), max(1, -(-total * share // 1))))
    return bucket_lateness_ms(bucket)


def read_stats(store: TimerStore) -> Stats:
    """Collect the statistics. O(queues)."""
    engine, words, world = store.engine, store.engine.words, store.engine.world
    rings = world.ring_words
    return Stats(
        pending_count=engine.pending_count(),
        linked_count=int(words[state.COUNT_LINKED]),
        fired_count=int(words[state.COUNT_FIRED]),
        rolled_count=int(words[state.COUNT_ROLLED]),
        dropped_count=int(words[state.COUNT_DROPPED]),
        unreadable_count=int(words[state.COUNT_UNREADABLE]),
        cancelled_count=int(words[state.CANCELLED_COUNT]),
        collision_count=int(words[state.COUNT_COLLISIONS]),
        read_ms=engine.read_slot * engine.precision_ms,
        claimed_ms=int(words[state.CLAIMED]) * engine.precision_ms,
        queue_index=int(words[state.LINKED]),
        queue_end=engine.queues.next_index(0),
        commitlog_start=engine.commitlog.start,
        commitlog_end=engine.commitlog.end,
        durable_end=store.flusher.durable_end,
        timerlog_end=engine.timerlog.end,
        enqueue_queue_count=int(rings[ENQUEUE_RING + RING_TAIL] - rings[ENQUEUE_RING + RING_HEAD]),
        dequeue_queue_count=int(rings[DEQUEUE_RING + RING_TAIL] - rings[DEQUEUE_RING + RING_HEAD]),
        near_count=int(engine.near.words[NEAR_COUNT]),
        lateness_p50_ms=lateness_quantile_ms(world.lateness, 0.5),
        lateness_p99_ms=lateness_quantile_ms(world.lateness, 0.99),
        lateness_max_ms=int(words[state.LATENESS_MAX_MS]),
        sync_count=store.flusher.sync_count,
        checkpoint_count=store.flusher.checkpoint_count,
        disk_bytes=engine.disk_bytes,
        open_s=store.open_s,
        recovery=asdict(store.findings),
        levels=read_levels(store),
    )


def read_levels(store: TimerStore) -> tuple[LevelStats, ...]:
    """Collect what each delay level does. O(levels)."""
    engine, levels, now_ms = store.engine, store.engine.levels, store.clock.now_ms
    found = []
    for i in range(int(levels.words[LEVEL_COUNT])):
        row = int(levels.row[i])
        with engine.step_lock:
            offset = int(levels.offset[i])
            end = engine.queues.next_index(row) if row >= 0 else 0
        overdue_ms = 0
        if offset < end:
            entry = engine.queues.read(row, offset, 1)[0]
            overdue_ms = max(0, now_ms - int(entry["tags_code"]))
        delay_ms = int(levels.level_ms[i])
        found.append(LevelStats(i + 1, delay_ms, offset, end, end - offset, overdue_ms))
    return tuple(found)
