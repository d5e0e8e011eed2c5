"""Exit statuses: what the end of a command tells the shell."""

from __future__ import annotations

from enum import IntEnum

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


class Status(IntEnum):
    """A status that a command chose; one of the same number that is no `Status` is an accident."""

    FINE = 0
    DAMAGED = 1
    WRONG_USAGE = 2
    NO_STORE = 3
    REFUSED = 4
    OWN_ERROR = 70
    INTERRUPTED = 130


DAMAGED = Status.DAMAGED
"""Damage was found; the only meaning of 1, with which Python ends for any uncaught exception."""

_OF_ERRORS: tuple[tuple[tuple[type[Exception], ...], Status], ...] = (
    ((CorruptStoreError,), Status.DAMAGED),
    ((InvalidArgumentError, UnknownTimerError, TooLateError), Status.WRONG_USAGE),
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
