"""Laying a log down in a thread, while somebody reads what is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from timerstore.services.world.background import Flag
from timerstore.timelog.files.names import INT64_MAX

_LOOK_S: Final = 0.1


class Laid:
    """How far a log is there, from its beginning: one thread lays it down, one reads it."""

    def __init__(self) -> None:
        self._changed, self._end, self._is_given_up = Flag(), -1, False
        self._future: Future[None] | None = None

    def reach(self, end: int) -> None:
        """Say that the log is there up to `end`. Raises InterruptedError if nobody reads on."""
        if self._is_given_up:
            raise InterruptedError
        self._end = max(self._end, end)
        self._changed.set()

    def wait(self, offset: int) -> int:
        """Return how far the log is there, once that is behind `offset`; INT64_MAX: all of it is.

        Raises what ended the laying.
        """
        while (end := self._end) <= offset:
            self._changed.wait(_LOOK_S)
            self._changed.clear()  # before it looks
        if end == INT64_MAX and self._future is not None:
            self._future.result()
        return end

    def follow(self, future: Future[None]) -> None:
        """Take the laying; however it ends, nobody waits for more of the log from then on."""
        self._future = future
        future.add_done_callback(lambda _: self._finish())

    def _finish(self) -> None:
        self._end = INT64_MAX
        self._changed.set()

    def give_up(self) -> None:
        """Have the laying end at its next step."""
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
