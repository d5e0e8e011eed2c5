"""What was done, or found: points of a backup, reports, how far a long work is."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from timerstore.errors import StoreLockedError
from timerstore.jit.guards import Lock
from timerstore.values.amounts import Moment

PROBLEMS_MAX: Final = 1_000
"""Problems that a report names one by one; all are counted."""
_SHOWN_MAX: Final = 20


class Report:
    """A dataclass that says what was done, or found."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        told: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        lists = {name: [*value] for name, value in told.items() if isinstance(value, tuple)}
        return ({"ok": self.ok} if hasattr(self, "ok") else {}) | told | lists


@dataclass(frozen=True, slots=True)
class Problem(Report):
    """Something wrong at one place; `offset` counts bytes over all segments of `file`."""

    file: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} at {self.offset}: {self.reason}"


@dataclass(frozen=True, slots=True)
class VerifyReport(Report):
    """What `verify` found; `ok` if there is no problem."""

    path: str
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    problem_count: int
    warning_count: int
    message_count: int
    entry_count: int
    unit_count: int
    slot_count: int
    pending_count: int | None
    """Timers that opening would find pending; None if there is damage."""
    queue_count: int
    bytes_count: int
    was_open: bool
    """`abort` exists: the store is open, or was not closed."""
    by_broker: bool
    """RocketMQ wrote last."""
    unread: tuple[str, ...]
    """Queues of RocketMQ that timerstore does not read; their messages are compared with none."""

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return self.problem_count == 0

    def __str__(self) -> str:
        verdict = "no damage" if self.ok else f"DAMAGED: {self.problem_count} problems"
        lines = [
            f"{self.path}: {verdict}",
            f"  {self.message_count} messages, {self.entry_count} entries in {self.queue_count} "
            f"queues, {self.unit_count} units, {self.slot_count} slots, {self.bytes_count} bytes",
        ]
        if self.pending_count is not None:
            lines.append(f"  {self.pending_count} timers are pending.")
        if self.was_open:
            lines.append("  The file abort exists: the store is open, or was not closed.")
        lines += [f"  not read: {each}" for each in self.unread]
        lines += shown_problems("  ", self.problems, self.problem_count)
        lines += shown_problems("  warning: ", self.warnings, self.warning_count)
        return "\n".join(lines)


def shown_problems(prefix: str, problems: tuple[Problem, ...], count: int) -> Iterator[str]:
    """Yield a line for each of the first problems, and one for how many more there are."""
    for problem in problems[:_SHOWN_MAX]:
        yield f"{prefix}{problem}"
    if count > _SHOWN_MAX:
        yield f"{prefix}… {count - min(count, _SHOWN_MAX)} more"


# --- a point; the lock of a folder


TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupPoint(Report):
    """What a backup holds of one moment."""

    number: int
    time_ms: int
    """When it was taken."""
    chain: int
    log_start: int
    log_end: int
    """The commit log as it was: from its first segment to the end of its last message."""

    time = Moment[datetime]("When it was taken, in UTC.")

    @property
    def bytes_count(self) -> int:
        """Bytes of the log that it needs."""
        return self.log_end - self.log_start


class CopyLock:
    """A lock of who writes a copy, among processes of this machine, while this object lives."""

    def __init__(self, fd: int, refusal: str) -> None:
        """Lock an open file or folder, which is closed with it. Raises StoreLockedError."""
        self._fd, self._pid = fd, os.getpid()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            self.release()
            raise StoreLockedError(refusal) from e

    def release(self) -> None:
        """Let it go; twice does nothing. In a process that was forked it stays its parent's."""
        fd, self._fd = self._fd, -1  # first: closed twice, it may be another's
        if fd >= 0:
            if os.getpid() == self._pid:
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.release()


class BackupLock(CopyLock):
    """The right to write into the folder of a backup or standby."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        who = "Another backup, follower or standby"
        super().__init__(fd, f"{who} is using {path}. Wait until it has ended, or stop it.")


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupReport(Report):
    """What a backup did."""

    path: str
    dest: str
    point: BackupPoint
    copied_bytes: int
    """Of the log; what the backup held before was not copied again."""
    message_count: int
    """Messages in what was copied."""
    problems: tuple[Problem, ...]
    """Damage in what was copied: it is in the store, and in the backup as it is there."""
    point_count: int
    """Points that the backup holds now."""

    @property
    def ok(self) -> bool:
        """Whether no damage was met."""
        return not self.problems

    def __str__(self) -> str:
        end = f"point {self.point.number} of {self.point_count} in {self.dest}"
        lines = [
            f"{self.path}: {end}; {self.message_count:,} messages, {self.copied_bytes:,} bytes "
            f"were new, of {self.point.bytes_count:,}"
        ]
        return "\n".join(
            [*lines, *shown_problems("  DAMAGED: ", self.problems, len(self.problems))]
        )


Progress = Callable[[int, int], None]
"""Takes how many bytes are done, of how many."""
Told = Callable[[int], None]
"""Takes how many bytes were done since the last call; any thread may call it."""


class Summed:
    """Adds up what threads have done, and tells the sum."""

    def __init__(self, progress: Progress | None, total: int = 1) -> None:
        """Tell nobody if `progress` is None. `total`: it may be set later, and anew."""
        self._progress, self._done, self.total = progress, 0, total
        self._lock = Lock()

    def __call__(self, count: int) -> None:
        """Add what was done since the last call."""
        with self._lock.guard():
            self._done += count
            if self._progress is not None:
                self._progress(self._done, max(self.total, self._done))
