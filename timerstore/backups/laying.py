"""Laying a log down in a thread, while somebody reads what is there already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from timerstore.timelog.files.names import INT64_MAX


class Laid:
    """How far a log is there, from its beginning; any thread may use it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._changed, self._end, self._is_given_up = threading.Condition(), -1, False
        self._future: Future[None] | None = None

    def reach(self, end: int) -> None:
        """Say that the log is there up to `end`. Raises InterruptedError if nobody reads on."""
        with self._changed:
            if self._is_given_up:
                raise InterruptedError
            self._end = max(self._end, end)
            self._changed.notify_all()

    def wait(self, offset: int) -> int:
        """Return how far the log is there, once that is behind `offset`; INT64_MAX: all of it is.

        Raises what ended the laying.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._end > offset)
            end = self._end
        if end == INT64_MAX and self._future is not None:
            self._future.result()
        return end

    def follow(self, future: Future[None]) -> None:
        """Take the laying; however it ends, nobody waits for more of the log from then on."""
        self._future = future
        future.add_done_callback(lambda _: self._finish())

    def _finish(self) -> None:
        with self._changed:
            self._end = INT64_MAX
            self._changed.notify_all()

    def give_up(self) -> None:
        """Have the laying end at its next step."""
        with self._changed:
            self._is_given_up = True


@contextmanager
def laying(lay: Callable[[Callable[[int], None]], None]) -> Iterator[Laid]:
    """Run `lay` in a thread beside the block; it is called with what it tells how far it is.

    When the block has ended, so has `lay`. What it raises is raised by `Laid.wait`, or here.
    """
    laid = Laid()
    with ThreadPoolExecutor(1, "lay") as pool:
        future = pool.submit(lay, laid.reach)
        laid.follow(future)
        try:
            yield laid
        except BaseException:
            laid.give_up()
            raise
        future.result()
