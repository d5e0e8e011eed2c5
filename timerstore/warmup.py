"""Compiling every kernel ahead of its first use.

Numba compiles a kernel when it is first called, which takes about 20 s for all of them, then keeps
the machine code on disk: once for each version, each machine and each user.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from timerstore.config import Config
from timerstore.services.clock import ManualClock
from timerstore.services.steps import run
from timerstore.store import TimerStore
from timerstore.timelog.kernel import INTERPRETED

_SMALL = Config(
    durability="process",
    wheel_slot_count=1_024,
    roll_window_slots=60,
    commitlog_segment_bytes=1 << 16,
    consumequeue_segment_bytes=2_000,
    timerlog_segment_bytes=5_200,
)


def kernels_are_cached() -> bool:
    """Tell whether the largest kernel's machine code is at hand; True where nobody can tell."""
    if INTERPRETED or getattr(run, "signatures", None):
        return True
    # These are internals of Numba; without them nothing but the word to the user is lost.
    cache_file: Any = getattr(getattr(run, "_cache", None), "_cache_file", None)
    return not hasattr(cache_file, "_load_index") or bool(cache_file._load_index())


def compile_kernels() -> None:
    """Play a short life of a small store in a temporary folder, so that every kernel is called.

    About 20 s with an empty cache, about one with a full one.
    """
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
