"""Group commits for an event loop: tasks wait for one thread, which takes part in them.

Ground rules: `_waiting` belongs to the loop's thread. `_asked` is set there and taken back by the
thread before it looks how long the log is, so what it then makes durable serves everybody who asked
before. The thread takes part in the group commit like any other that puts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from copy import copy
from queue import SimpleQueue

from timerstore.core.core import Core
from timerstore.errors import TimerStoreError
from timerstore.services.world.background import BackgroundThread


class Commits:
    """Tells tasks of one loop when what they appended is durable."""

    def __init__(self, core: Core, loop: asyncio.AbstractEventLoop) -> None:
        self._core, self._loop = core, loop
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # by the log's end
        self._calls: SimpleQueue[bool] = SimpleQueue()  # True: commit; False: end
        self._asked = self._stopped = False
        self._thread = BackgroundThread("timerstore-aio-commit", self._run, self._ended)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Serve those who wait, then end the thread; may be called twice, by any thread."""
        self._stopped = True
        self._calls.put(False)
        self._thread.join()

    async def wait(self) -> None:
        """Return once all that was appended is durable. Raises FlushFailedError."""
        end = self._core.engine.commitlog.end
        if self._core.flusher.durable_end >= end:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((end, future))
        self._ask()
        if self._stopped:  # the thread may have ended before it was asked
            future.cancel()
            self._core.check_open()
            self._core.flusher.sync_log()
            return
        await future

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._calls.put(True)

    def _run(self) -> None:
        while self._calls.get():
            self._asked = False
            try:
                self._core.flusher.sync_log()
            except TimerStoreError as e:
                self._tell(e)
            else:
                self._tell(None)

    def _tell(self, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._resolve, error)
        except RuntimeError:  # the loop is closed: nobody waits
            return

    def _resolve(self, error: BaseException | None) -> None:
        """Let those go whose bytes are durable; all of them, if nothing will be any more."""
        waiting, durable_end = self._waiting, self._core.flusher.durable_end
        while waiting and (error is not None or waiting[0][0] <= durable_end):
            end, future = waiting.popleft()
            if future.done():
                continue  # its task was cancelled
            if end <= durable_end or error is None:
                future.set_result(None)
            else:
                future.set_exception(copy(error))  # each task adds its own trace
        if waiting:
            self._ask()

    def _ended(self, error: BaseException) -> None:
        """Have the store's next call raise what ended the thread."""
        self._core.stop(error)
        self._tell(error)
