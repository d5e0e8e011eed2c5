"""The store for asyncio: the same names, awaited.

    opening.py      open a directory, or attach to an open store
    loopstore.py    the public class
    batches.py      what it hands out
    loopconsumer.py handlers that are coroutines: the public class
    loopsource.py   where their messages come from
    handlers.py     who runs them
    side.py         one store as one event loop sees it: what runs in the loop, what apart from it
    commits.py      one thread that waits for group commits
    wakeups.py      an eventfd in the loop, for tasks that wait until a kernel has done something

A loop's thread makes each call that waits for nothing itself. It stands above the store, as a
client of it.
"""

from __future__ import annotations

from timerstore.aio.batches import Batch, Delivery
from timerstore.aio.loopconsumer import Consumer
from timerstore.aio.loopstore import TimerStore
from timerstore.aio.opening import attach, open

__all__ = ["Batch", "Consumer", "Delivery", "TimerStore", "attach", "open"]
