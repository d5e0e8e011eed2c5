"""Following a store within the program that has it open: a thread of its own."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Final

from timerstore.backups.followed import CopyStatus
from timerstore.services.world.background import BackgroundThread, Failure, Flag

if TYPE_CHECKING:
    from timerstore.backups.follower import Follower


log = logging.getLogger("timerstore")

END_S: Final = 60.0
"""So long its end is waited for."""


class Following:
    """A copy elsewhere that is kept up to date by a thread; `store.follow` returns one.

    It ends with the store, or by `close`; as a context manager, with its block. What it cannot do
    just now stands in `status` and in `store.health()`, and is tried again. What refuses the store
    for good, such as another one that has taken over the destination, ends it, stands there too,
    and is raised by `close`.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower, self._stop, self._failure = follower, Flag(), Failure()
        self._thread = BackgroundThread(
            "follow", lambda: follower.run(self._stop), self._failure.keep
        )
        try:
            self._thread.start()
        except BaseException:
            follower.close()
            raise

    @property
    def status(self) -> CopyStatus:
        """What it said last."""
        return self._follower.status

    def close(self) -> None:
        """Ship what is new once more, and end; twice does nothing more.

        It waits for one look at most, and no longer than a minute. Raises what had ended
        it before: InvalidArgumentError, StoreLockedError, NotAStoreError.
        """
        self.end()
        self._failure.check()

    def end(self) -> None:
        """End as `close` does, and raise nothing; a destination that hangs is left to itself."""
        self._stop.set()
        self._thread.join(END_S)
        if self._thread.is_alive:
            log.warning(
                "%s does not answer: its follower's thread was left running", self.status.dest
            )

    def __enter__(self) -> Following:
        """Return it; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it; an error of the block comes before its own."""
        if error is None:
            self.close()
        else:
            self.end()
