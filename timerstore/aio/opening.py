"""Opening a store for an event loop; or attaching one to a store that is open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from timerstore.aio.loopstore import TimerStore
from timerstore.aio.side import LoopSide, new_pool
from timerstore.services.world.clock import ManualClock
from timerstore.share.opening import open as open_store
from timerstore.store.store import TimerStore as PlainStore
from timerstore.values.config import Config
from timerstore.values.kinds import check_kind


class Opening:
    """A store that is being opened: `await` it, or enter it with `async with`."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, TimerStore]]) -> None:
        """`begin` opens."""
        self._begin = begin
        self._store: TimerStore | None = None

    def __await__(self) -> Generator[Any, None, TimerStore]:
        """Open; close the store yourself."""
        return self._begin().__await__()

    async def __aenter__(self) -> TimerStore:
        """Open; leaving the block closes."""
        self._store = await self._begin()
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._store is not None:
            await self._store.close()


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    config: Config | None = None,
    clock: ManualClock | None = None,
) -> Opening:
    """Open a timer store for the running event loop; see `timerstore.open`.

    `async with timerstore.aio.open(path) as store:`, or `store = await timerstore.aio.open(path)`.
    Another thread opens it, since recovery and kernels take their time. If the task is cancelled
    meanwhile, that thread closes it again.
    """

    async def begin() -> TimerStore:
        pool = new_pool()
        opening = pool.submit(
            open_store, path, create=create, read_only=read_only, config=config, clock=clock
        )
        try:
            store = await asyncio.shield(asyncio.wrap_future(opening))
            return await _begin(store, pool, owns=True)
        except BaseException:
            opening.add_done_callback(_close)
            pool.shutdown(wait=False)
            raise

    return Opening(begin)


def attach(store: PlainStore) -> Opening:
    """Use an open store in the running event loop, too; leaving the block leaves it open.

    Threads may go on using `store`, and other loops attach to it.
    """
    check_kind(store, PlainStore, "store")
    store.core.check_open()

    async def begin() -> TimerStore:
        return await _begin(store, new_pool(), owns=False)

    return Opening(begin)


async def _begin(store: PlainStore, pool: ThreadPoolExecutor, *, owns: bool) -> TimerStore:
    side = LoopSide(store, pool)
    try:
        await side.apart(side.start)
    except BaseException:
        side.give_up()
        raise
    return TimerStore(side, owns=owns)


def _close(opening: Future[PlainStore]) -> None:
    """Close what was opened for nobody, in a thread that ends with it."""
    if not opening.cancelled() and opening.exception() is None:
        pool = new_pool()
        pool.submit(opening.result().close)
        pool.shutdown(wait=False)
