"""What recovery found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Findings:
    """What recovery found and did; part of `stats()`."""

    clean: bool = True
    by_broker: bool = False
    rebuilt: list[str] = field(default_factory=list)
    restored_sizes: bool = False
    """`timerstore.json` was lost or damaged, and written again from its copy."""
    scanned_count: int = 0
    torn_bytes: int = 0
    cut_slots: int = 0
    relinked_count: int = 0
    copies_count: int = 0
    cancelled_count: int = 0
    pending_count: int = 0
    removed_count: int = 0
    """Timers whose messages stood before the log's start: a broker's clean-up removed them."""
    repaired_reschedule: bool = False
    restarted_counters: int = 0
    """Topics whose counters were damaged, and began anew."""
    corrected_levels: list[int] = field(default_factory=list)
