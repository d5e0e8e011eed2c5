"""The calls of a TimerStore that others may make."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from timerstore.consuming.dead_letters import redrive
from timerstore.control.calls import calls_of
from timerstore.control.door import open_door
from timerstore.store import TimerStore


def let_others_ask(store: TimerStore) -> TimerStore:
    """Open a store's door; return the store."""
    more: dict[str, Callable[..., Any]] = {"redrive": partial(redrive, store.consuming)}
    try:
        open_door(store.core, calls_of(store, more))
    except BaseException:
        store.close()
        raise
    return store
