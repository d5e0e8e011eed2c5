"""Lines of an ordered consumer: in each the next message starts when the one before is done.

A line is a topic, or a key of one. Its first message is ready, or being handled, or waits for its
next attempt; the others wait here. A message without a line waits for nobody.

Ground rules: any thread may call anything; one lock, held for a few steps. Tasks come in the order
of firing, from one thread at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from timerstore.consumer.consumersettings import Ordered
from timerstore.consumer.subscription import Task
from timerstore.jit.guards import Lock

WHOLE: Final = ""
"""The one line of a topic."""


def line_of(task: Task, ordered: Ordered) -> str | None:
    """Return the line that a task belongs to, None for none."""
    return task.deliveries[0].key if ordered == "key" else WHOLE


class Lines:
    """The lines of one topic."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Task]] = {}
        self._lock = Lock()

    def enter(self, tasks: Sequence[Task]) -> list[Task]:
        """Take tasks in; return those that are the first of their line."""
        first = []
        with self._lock.guard():
            for task in tasks:
                if task.line is not None:
                    waiting = self._waiting.get(task.line)
                    if waiting is not None:
                        waiting.append(task)
                        continue
                    self._waiting[task.line] = deque()
                first.append(task)
        return first

    def leave(self, task: Task) -> Task | None:
        """Let the first of a line go; return the next one, if there is any."""
        if task.line is None:
            return None
        with self._lock.guard():
            waiting = self._waiting.get(task.line)
            if waiting:
                return waiting.popleft()
            self._waiting.pop(task.line, None)
            return None

    def take_all(self) -> list[Task]:
        """Return all that wait; the lines are gone."""
        with self._lock.guard():
            found = [task for waiting in self._waiting.values() for task in waiting]
            self._waiting.clear()
        return found

    def __len__(self) -> int:
        return len(self._waiting)
