"""Exit statuses: what the end of a command tells the shell."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from timerstore.errors import (
    CorruptStoreError,
    FlushFailedError,
    InvalidArgumentError,
    NotAStoreError,
    StoreAccessError,
    StoreLockedError,
    TimerStoreError,
    TooLateError,
    UnknownTimerError,
)

if TYPE_CHECKING:
    from timerstore.services.world.background import Flag


class Status(IntEnum):
    """A status that a command chose; one of the same number that is no `Status` is an accident."""

    FINE = 0
    DAMAGED = 1
    TOO_LATE = 1
    WRONG_USAGE = 2
    NO_STORE = 3
    REFUSED = 4
    WARNED = 5
    OWN_ERROR = 70
    INTERRUPTED = 130


DAMAGED = Status.DAMAGED
"""Damage was found. With 1 Python ends for any uncaught exception too; see `end_of`."""
WARNED = Status.WARNED
"""Of `health --strict`: the store runs, but messages wait for somebody. Of `pipeline`: a rule of
distribution warns."""
TOO_LATE = Status.TOO_LATE
"""Of `get`, `cancel`, `reschedule`: the timer was fired or cancelled before. The same number, for a
script asks each command one question, to which 1 is "no"; of all other commands it is damage."""

MEANING = (
    "Exit status: 0 fine, 1 damage found (of get, cancel, reschedule: the timer is not pending "
    "any more), 2 wrong usage, 3 locked or not a store, 4 no room or a failing disk, 5 a warning "
    "(of health --strict, pipeline), 70 a fault of timerstore, 130 interrupted."
)

_OF_ERRORS: tuple[tuple[tuple[type[Exception], ...], Status], ...] = (
    ((CorruptStoreError,), Status.DAMAGED),
    ((TooLateError,), Status.TOO_LATE),
    ((InvalidArgumentError, UnknownTimerError), Status.WRONG_USAGE),
    ((FlushFailedError,), Status.REFUSED),
    ((StoreLockedError, NotAStoreError, StoreAccessError), Status.NO_STORE),
    ((TimerStoreError, MemoryError), Status.REFUSED),
)


def status_of(error: Exception) -> Status:
    """Return the exit status that an error means; OWN_ERROR for what should not have come here."""
    for kinds, status in _OF_ERRORS:
        if isinstance(error, kinds):
            return status
    return Status.OWN_ERROR


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def told_to_end(*, hurries: bool = False) -> Iterator[Flag]:
    """Yield a flag that SIGTERM and SIGINT set for as long as the block runs.

    The handler only takes note. `hurries`: a second one does what it did before.
    """
    from timerstore.services.world.background import Flag

    told = Flag()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def as_before() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(*_: object) -> None:
        if hurries:
            as_before()
        told.set()

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield told
    finally:
        as_before()
