"""What taking a backup did."""

from __future__ import annotations

from dataclasses import dataclass

from timerstore.copies.points import BackupPoint
from timerstore.copies.report import Problem, Report, shown_problems


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
