"""The errors that timerstore raises, each with a class of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TimerStoreError(Exception):
    """The base of all errors of this package.

    `ids`: if a `put_many` failed half-way, the ids of the timers that it put, which are the first
    ones. They fire; put the rest again. From a FlushFailedError: timers that are in the log, but
    may not survive a power cut. Otherwise it is empty.
    """

    ids: Sequence[str] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it holds, so that it crosses processes whatever its class is made of."""
        system = {
            name: getattr(self, name) for name in ("errno", "filename") if hasattr(self, name)
        }
        return _made_again, (type(self), self.args), self.__dict__ | system


def _made_again(kind: type[TimerStoreError], args: tuple[Any, ...]) -> TimerStoreError:
    """Return a pickled error; what else it held follows."""
    error = kind.__new__(kind)
    error.args = args
    return error


class InvalidArgumentError(TimerStoreError, ValueError):
    """An argument or a setting cannot be used; nothing was changed."""


class NotAStoreError(TimerStoreError):
    """The path is not a timer store, or not one that this version can open."""


class StoreAccessError(TimerStoreError, OSError):
    """The operating system refuses a file of the store, because of its rights or its place."""

    __str__ = Exception.__str__


class MissingFileError(StoreAccessError, FileNotFoundError):
    """A file of the store is gone."""


class StoreClosedError(TimerStoreError):
    """The store was closed, or a service of it failed and stopped it."""


class StoreLockedError(TimerStoreError):
    """Another process has the store open."""


class ForkedProcessError(TimerStoreError):
    """A forked child used the store of its parent."""


class ReadOnlyError(TimerStoreError):
    """A store opened read-only was asked to change."""


class PausedError(TimerStoreError):
    """Putting was paused (`pause("putting")`); nothing was put."""


class StoreFullError(TimerStoreError):
    """The disk, `max_bytes` or a limit of the configuration leaves no room; nothing was lost."""


class CongestedError(StoreFullError):
    """The timer's slot already holds as many timers as `congestion_slot_count` allows."""


class FlushFailedError(TimerStoreError):
    """The operating system could not make bytes durable; what was not acknowledged may be lost."""


class CorruptStoreError(TimerStoreError):
    """Bytes on disk are not what was written there."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        """Name the file, the byte offset (over all segments) and what is wrong there."""
        self.file, self.offset, self.reason = file, offset, reason
        super().__init__(
            f"{file} is damaged at offset {offset}: {reason}. "
            "Keep a copy of the directory and run `timerstore verify` on it."
        )


class UnknownTimerError(TimerStoreError, KeyError):
    """The id is not of this store."""

    __str__ = Exception.__str__


class TooLateError(TimerStoreError):
    """The timer was fired, or is being fired; nothing was changed."""


class ClusterError(TimerStoreError):
    """A RocketMQ cluster refused a call, or did not answer.

    `unsure`: the ids of timers that it may have all the same, because no answer came. `busy`: it
    refused the call because it has too much to do.
    """

    unsure: Sequence[str] = ()
    busy: bool = False
