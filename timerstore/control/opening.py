"""The calls of a TimerStore that others may make."""

from __future__ import annotations

from functools import partial

from timerstore.control.calls import calls_of
from timerstore.control.door import open_door
from timerstore.store import TimerStore
from timerstore.watching.fired import read_fired


def let_others_ask(store: TimerStore) -> TimerStore:
    """Open a store's door; return the store."""
    try:
        open_door(store.core, calls_of(store) | {"fired": partial(read_fired, store.core)})
    except BaseException:
        store.close()
        raise
    return store
