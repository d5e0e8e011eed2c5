"""What a consumer needs of a store, wherever that is: here, in a loop, in another process.

A consumer is threads (`Threads`), the rules (`Handling`), one `Subscription` for each topic. Who
has another store replaces three things, and leaves the rest as it is:

    Store          is it open, what time is it, wake me when something is fired
    Subscription   pull tasks; what became of them: done, given back; its `group` counts them
    Handling       `_append_again`, which sends a message back or to the dead letters, and
                   `_wait_through`, which waits until that is durable

Each call may come from any thread, but `pull`, which one thread makes at a time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Clock(Protocol):
    """Tells whether time stands still until it is moved."""

    @property
    def manual(self) -> bool:
        """Whether handlers run in `step` and `advance`, not in threads."""


class Waiter(Protocol):
    """Sleeps until something was fired since it was armed."""

    def arm(self) -> None:
        """Notice what is fired from now on."""

    def wait(self, timeout_ms: float) -> object:
        """Return when something was fired, when `wake` was called, or after this time."""

    def wake(self) -> None:
        """End the wait; from any thread."""


class Waiters(Protocol):
    """Makes them."""

    def waiter(self) -> AbstractContextManager[Waiter]:
        """Lend one."""


class Store(Protocol):
    """An open store, as threads and rules see it; `timerstore/core.py` is one."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    @property
    def clock(self) -> Clock:
        """Its clock."""

    @property
    def waiters(self) -> Waiters:
        """Who sleeps until something is fired."""

    def steady_ms(self) -> float:
        """Return a time that is never set, or the manual one."""

    def check_process(self) -> None:
        """Raise in a forked child."""

    def check_open(self) -> None:
        """Raise where nothing can be read any more."""

    def check_writable(self) -> None:
        """Raise where nothing can be sent back."""
