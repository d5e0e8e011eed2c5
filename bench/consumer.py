"""How many messages a second the concurrent consumer handles."""

from __future__ import annotations

import time
from typing import Any

import machine

from timerstore import Consumer, TimerStore

THREADS = 20
_POLL_S = 0.001


def _handle(_: Any) -> None:
    """Do nothing: what is measured is all that is around a handler."""


def handled_per_second(
    store: TimerStore, bodies: list[bytes], batch_count: int, warm_bytes: int
) -> float:
    """Handle messages that are all in the log when the clock starts; it stops when all are done."""
    topic = f"handled{batch_count}"
    before = store.stats().fired_count
    store.put_many(bodies, topic=topic)
    while store.stats().fired_count < before + len(bodies):
        time.sleep(0.01)
    store.flush()
    machine.warm_memory(warm_bytes)
    consumer = Consumer(store, "bench", threads=THREADS, batch_count=batch_count)
    consumer.subscribe(topic, _handle)
    row = store.core.engine.queues.row(topic.encode())
    group = store.consuming.group(topic, "bench")
    end = store.core.engine.queues.next_index(row)
    start = time.perf_counter()
    with consumer:
        while group.committed().get((topic, 0), 0) < end:
            time.sleep(_POLL_S)
        return len(bodies) / (time.perf_counter() - start)
