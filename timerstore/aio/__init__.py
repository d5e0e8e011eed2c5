"""The store for asyncio: the same names, awaited.

    loopstore.py    the public class, with what it hands out
    loopconsumer.py handlers that are coroutines, and who runs them: the public class
    loop_calls.py   one store as one event loop sees it: what runs in the loop, what apart from it

A loop's thread makes each call that waits for nothing itself. It stands above the store, as a
client of it.
"""

from __future__ import annotations

from timerstore.aio.loopconsumer import Consumer
from timerstore.aio.loopstore import Batch, Delivery, TimerStore, attach, open

__all__ = ["Batch", "Consumer", "Delivery", "TimerStore", "attach", "open"]
