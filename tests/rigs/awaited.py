"""A store in an event loop, whose calls somebody makes who is in no loop and awaits nothing."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import timerstore.aio

R = TypeVar("R")
PATIENCE_S = 60


class Awaited:
    """Something of `timerstore.aio`: what it returns is awaited, also each of what is iterated."""

    def __init__(self, of: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._of, self._loop = of, loop

    @property
    def __class__(self) -> type:
        """For who asks whether it is a Batch."""
        return type(self._of)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if not callable(found):
            return found
        return lambda *given, **named: self._plain(self._made(lambda: found(*given, **named)))

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Any]:
        return map(self._plain, self._of)

    def _made(self, call: Callable[[], R]) -> Any:
        async def made() -> Any:
            result = call()
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(made(), self._loop).result(PATIENCE_S)

    def _plain(self, result: Any) -> Any:
        if hasattr(result, "__anext__"):
            return self._each(result)
        if isinstance(result, (timerstore.aio.Batch, timerstore.aio.Delivery)):
            return Awaited(result, self._loop)
        return result

    def _each(self, stream: Any) -> Iterator[Any]:
        try:
            while (each := self._made(lambda: anext(stream, None))) is not None:
                yield self._plain(each)
        finally:
            self._made(stream.aclose)


@contextmanager
def awaited(store: timerstore.TimerStore) -> Iterator[Any]:
    """Attach an open store to a loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    attached = Awaited(timerstore.aio.attach(store), loop)
    try:
        mine = attached.__aenter__()
        yield Awaited(mine, loop)
        attached.__aexit__(None, None, None)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
