"""Compiling what stores need before there is one: for an image, or before tests.

Opening a store does the same for what calls on it need, see `ahead.py`. Here comes what only an
opening after a crash runs.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from timerstore.ahead import load_kernels
from timerstore.config import Config
from timerstore.services.clock import ManualClock
from timerstore.store import TimerStore

_SMALL = Config(
    durability="process",
    wheel_slot_count=1_024,
    roll_window_slots=60,
    commitlog_segment_bytes=1 << 16,
    consumequeue_segment_bytes=2_000,
    timerlog_segment_bytes=5_200,
)


def compile_kernels() -> None:
    """Have all kernels in the cache; a short life of a small store calls those of recovery.

    A second where they are there.
    """
    load_kernels()
    clock = ManualClock()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="timerstore-"))
        path = Path(folder) / "store"
        stack.enter_context(quiet(folder))
        store = TimerStore(path, config=_SMALL, clock=clock)
        ids = store.put_many([b"a", b"b", b"c"], delay_ms=[10, 20, 600_000])
        store.put(b"d", delay=timedelta(seconds=90), key="k", tag="t")
        store.cancel_many(ids[1:2])
        store.reschedule(ids[2], delay=timedelta(seconds=80))
        list(store.pending())
        clock.advance(timedelta(seconds=1))
        store.pull("default", timeout=0).ack()
        store.flush()
        store.put(b"e", delay=timedelta(seconds=1))
        clock.advance(timedelta(seconds=2))
        store.abandon()
        store = TimerStore(path, config=_SMALL, clock=clock)
        clock.advance(timedelta(seconds=90))
        for delivery in store.consume("default", timeout=0):
            delivery.ack()
        store.close()


@contextmanager
def quiet(folder: str) -> Iterator[None]:
    """Keep a store out of the log: that it was not closed cleanly is meant."""
    log = logging.getLogger("timerstore")

    def concerns_others(record: logging.LogRecord) -> bool:
        return folder not in record.getMessage()

    log.addFilter(concerns_others)
    try:
        yield
    finally:
        log.removeFilter(concerns_others)
