"""The calls of a TimerStore that others may make."""

from __future__ import annotations

from functools import partial

from timerstore.control.calls import calls_of
from timerstore.control.door import open_door
from timerstore.store import TimerStore
from timerstore.watching.fired import read_fired
from timerstore.watching.topics import read_seconds_ahead


def let_others_ask(store: TimerStore) -> TimerStore:
    """Open a store's door; return the store."""
    calls = calls_of(store)
    calls["fired"] = partial(read_fired, store.core)
    calls["seconds_ahead"] = partial(read_seconds_ahead, store.core)
    try:
        open_door(store.core, calls)
    except BaseException:
        store.close()
        raise
    return store
