"""The store for asyncio: the same names, awaited.

    loopstore.py    the public class
    batches.py      what it hands out
    loopconsumer.py handlers that are coroutines: the public class
    handlers.py     who runs them
    loop_calls.py   one store as one event loop sees it: what runs in the loop, what apart from it

A loop's thread makes each call that waits for nothing itself. It stands above the store, as a
client of it.
"""

from __future__ import annotations

from timerstore.aio.batches import Batch, Delivery
from timerstore.aio.loopconsumer import Consumer
from timerstore.aio.loopstore import TimerStore, attach, open

__all__ = ["Batch", "Consumer", "Delivery", "TimerStore", "attach", "open"]
