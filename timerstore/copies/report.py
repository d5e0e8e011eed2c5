"""What verifying a store found: problems, warnings, counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

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
