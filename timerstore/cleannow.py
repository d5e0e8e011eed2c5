"""When cleaning is done: by hand, all that can go; by itself, before each checkpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from timerstore.errors import StoreFullError
from timerstore.services.cleaning import Cleaner
from timerstore.services.clock import ManualClock
from timerstore.services.reach import Committed, Reach
from timerstore.services.retention import Retention

if TYPE_CHECKING:
    from timerstore.store import TimerStore


def clean_by_itself(
    store: TimerStore, committed: Callable[[], Committed]
) -> tuple[Cleaner, Retention]:
    """Let the flusher clean before its checkpoints, piece by piece between, and remove behind them.

    `committed`: returns the groups' offsets.
    """
    flusher = store.flusher
    cleaner = Cleaner(store.engine, Reach(store.engine, committed))
    cleaner.on_copies = store.runner.wake_for
    retention = Retention(store.engine, flusher)
    flusher.before = lambda: _before_flush(store)
    flusher.on_tick, flusher.after = cleaner.go_on, retention.run
    return cleaner, retention


def _before_flush(store: TimerStore) -> None:
    """Do what the next checkpoint shall make durable: groups' offsets, and F."""
    store.write_offsets()
    if not store.closed:
        # Where there is no room, the flush goes on: it is what makes some.
        with contextlib.suppress(StoreFullError):
            store.cleaner.run(at_once=store.clock.manual)


def clean(store: TimerStore) -> int:
    """Clean a store; see `TimerStore.clean`."""
    before = store.engine.disk_bytes
    store.flusher.flush()
    until = store.cleaner.reach.find(store.engine.world.cleaning.floor)
    store.cleaner.run(at_once=True, everything=True)
    while store.engine.world.cleaning.floor < until and store.cleaner.is_waiting:
        if isinstance(store.clock, ManualClock):
            break  # nobody moves it meanwhile
        store.check_open()
        time.sleep(0.05)
        store.cleaner.run(at_once=True, everything=True)
    store.flusher.flush()
    store.retention.run()
    return max(0, before - store.engine.disk_bytes)
