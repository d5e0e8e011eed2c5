"""Closing a store: nobody gets in any more, who is inside leaves, then its files are let go.

Each step may be ended by an exception, a signal's say; the next call goes on where it stopped.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from timerstore.errors import TimerStoreError
from timerstore.services.clock import ManualClock
from timerstore.services.flush import remove_abort

if TYPE_CHECKING:
    from timerstore.store import TimerStore


def give_up_opening(store: TimerStore) -> None:
    """Let go of what `open` had begun."""
    store.closed = store.ended = True
    if hasattr(store, "runner"):
        store.runner.stop()
        store.flusher.stop()
    if hasattr(store, "engine"):
        store.engine.close_files()
    store.lock_file.release()


def close(store: TimerStore, *, flush: bool) -> None:
    """Close a store; see `TimerStore.close`. Without `flush` as a crash of the process would."""
    if store.forked or (store.closed and store.ended):
        return
    if store.gate.is_inside() or any(each.is_held for each in list(store._retries.values())):
        raise TimerStoreError(
            "close() was called inside another call of the same thread, as a signal's handler "
            "may do. Raise an exception there instead, and close when it has come out."
        )
    with store.closing:
        if store.ended:
            return
        store.closed = True
        store.end_short_way()
        while store.gate.others_inside():
            time.sleep(0.0005)
        if isinstance(store.clock, ManualClock):
            store.clock.unlisten(store.clock_moved)
        store.runner.stop()
        store.flusher.stop()
        try:
            if flush and store.failure.error is None and not store.flushed:
                store.flusher.flush(clean=True)
                remove_abort(store.path)
        finally:
            store.flushed = True
            _let_go(store)
    if flush:
        store.failure.check()


def _let_go(store: TimerStore) -> None:
    store.waiters.close()
    store.admission.close()
    store.engine.close_files()
    store.lock_file.release()
    store.ended = True
