"""What an audit of a store found: problems, warnings, counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from timerstore.timelog.reader import Fault, StoreReader

PROBLEMS_MAX: Final = 1_000
"""Problems that a report names one by one; all are counted."""
_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong at one place; `offset` counts bytes over all segments of `file`."""

    file: str
    offset: int
    reason: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.file} at {self.offset}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return {"file": self.file, "offset": self.offset, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found; `ok` where there is no problem."""

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
    """Timers that opening would find pending; None where there is damage."""
    queue_count: int
    bytes_count: int
    was_open: bool
    """`abort` exists: the store is open, or was not closed."""
    by_broker: bool
    """RocketMQ wrote last."""

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return self.problem_count == 0

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        names = [name for name in self.__slots__ if name not in ("problems", "warnings")]
        return {
            "ok": self.ok,
            **{name: getattr(self, name) for name in names},
            "problems": [each.to_dict() for each in self.problems],
            "warnings": [each.to_dict() for each in self.warnings],
        }

    def __str__(self) -> str:
        """Return a summary, with the first problems."""
        verdict = "no damage" if self.ok else f"DAMAGED: {self.problem_count} problems"
        lines = [
            f"{self.path}: {verdict}",
            f"  {self.message_count} messages, {self.entry_count} entries in {self.queue_count} "
            f"queues, {self.unit_count} units, {self.slot_count} slots, {self.bytes_count} bytes",
        ]
        if self.pending_count is not None:
            lines.append(f"  {self.pending_count} timers are pending")
        if self.was_open:
            lines.append("  abort exists: the store is open, or was not closed")
        lines += shown_problems("  ", self.problems, self.problem_count)
        lines += shown_problems("  warning: ", self.warnings, self.warning_count)
        return "\n".join(lines)


def shown_problems(prefix: str, problems: tuple[Problem, ...], count: int) -> Iterator[str]:
    """Yield a line for each of the first problems, and one for how many more there are."""
    for problem in problems[:_SHOWN_MAX]:
        yield f"{prefix}{problem}"
    if count > _SHOWN_MAX:
        yield f"{prefix}… {count - min(count, _SHOWN_MAX)} more"


@dataclass
class Audit:
    """What the parts of an audit share: the store, how strict to be, what was found."""

    reader: StoreReader
    clean: bool = False
    by_broker: bool = False
    cleaned: bool = False
    """Chains of slots ahead can lead to units that were removed, for they are superseded."""
    of_backup: bool = False
    """There are no indexes, which a restore makes anew."""
    durable: int = 0
    """Before this commit log offset everything was flushed: damage there is damage."""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    warning_count: int = 0
    progress: Callable[[int, int], None] | None = None
    bytes_total: int = 0
    """Of the commit log, then of the timer log."""

    def step(self, done: int) -> None:
        """Tell how many bytes are done."""
        if self.progress is not None:
            self.progress(min(done, self.bytes_total), self.bytes_total)

    def problem(self, file: str, offset: int, reason: str) -> None:
        """Note damage."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(file, offset, reason))

    def warning(self, file: str, offset: int, reason: str) -> None:
        """Note what the next opening mends."""
        self.warning_count += 1
        if len(self.warnings) < PROBLEMS_MAX:
            self.warnings.append(Problem(file, offset, reason))

    def torn(self, file: str, offset: int, reason: str, *, behind: bool) -> None:
        """Note damage, or a torn tail where it lies `behind` what was flushed before a kill."""
        if behind and not self.clean:
            self.warning(file, offset, f"{reason} (not flushed before the store ended)")
        else:
            self.problem(file, offset, reason)

    def faults(self, faults: list[Fault]) -> None:
        """Note what a reader found about files."""
        for fault in faults:
            self.problem(fault.file, fault.offset, fault.reason)
