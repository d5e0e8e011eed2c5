"""What is pending, as a slow model: by the digits of an id."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests import naive

HEX = "0123456789ABCDEF"


@dataclass
class Pending:
    """Timers of one store with what was decided about them; `by_id`: its first puts."""

    tag: int
    by_id: dict[str, naive.Message]
    cancelled: set[str] = field(default_factory=set)
    frontier_ms: int = 0
    linked_index: int = 0

    def put_at(self, id: str) -> naive.Message | None:
        """The timer that an id names exactly as its put returned it."""
        if len(id) != 32 or any(each not in HEX for each in id):
            return None
        return self.by_id.get(id)

    def is_ahead(self, id: str) -> bool:
        """Whether it was certainly not taken."""
        due_ms, index = int(id[:12], 16), self.by_id[id].queue_offset
        return due_ms > self.frontier_ms or index >= self.linked_index

    def get(self, id: str) -> naive.Message | None:
        """What the short way returns; None: the long way has to look."""
        if self.put_at(id) is None or id in self.cancelled or not self.is_ahead(id):
            return None
        return self.by_id[id]

    def is_cancelled(self, id: str) -> bool:
        """Whether the short way knows that it was cancelled."""
        return self.put_at(id) is not None and id in self.cancelled and self.is_ahead(id)

    def cancel(self, id: str, now_ms: int) -> str:
        """What becomes of it by the short way: "now", "before", or "long" for the long way.

        "passed": before, and its time has passed.
        """
        if self.put_at(id) is None:
            return "long"
        if id in self.cancelled:
            return "before" if int(id[:12], 16) > now_ms else "passed"
        if not self.is_ahead(id):
            return "long"
        self.cancelled.add(id)
        return "now"
