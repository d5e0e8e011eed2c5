"""What verifying a store found: problems, warnings, counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

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
class VerifyReport:
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
            lines.append(f"  {self.pending_count} timers are pending.")
        if self.was_open:
            lines.append("  The file abort exists: the store is open, or was not closed.")
        lines += shown_problems("  ", self.problems, self.problem_count)
        lines += shown_problems("  warning: ", self.warnings, self.warning_count)
        return "\n".join(lines)


def shown_problems(prefix: str, problems: tuple[Problem, ...], count: int) -> Iterator[str]:
    """Yield a line for each of the first problems, and one for how many more there are."""
    for problem in problems[:_SHOWN_MAX]:
        yield f"{prefix}{problem}"
    if count > _SHOWN_MAX:
        yield f"{prefix}… {count - min(count, _SHOWN_MAX)} more"
