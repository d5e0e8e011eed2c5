"""The calls of a TimerStore that others may make."""

from __future__ import annotations

from timerstore.control.calls import calls_of
from timerstore.control.door import open_door
from timerstore.store import TimerStore


def let_others_ask(store: TimerStore) -> TimerStore:
    """Open a store's door; return the store."""
    try:
        open_door(store.core, calls_of(store))
    except BaseException:
        store.close()
        raise
    return store
