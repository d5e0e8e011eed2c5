"""Congestion: timers are refused if too many of one slot would fall due together.

Off unless `Config(congestion_slot_count=…)` sets a limit n₀. A slot with up to n₀ timers accepts,
one with 2 n₀ refuses; between, the chance of refusal rises linearly from 0 to 1. A timer is judged
by the slot in which its unit will lie: its own, or that of its first hop.

What counts: the slot's units, however they came there (a put, a reschedule, a retry with a delay,
a hop), and what was put but has no unit yet; otherwise a burst would pass before any of it counts.
What is refused: a put, and a reschedule; then nothing was changed. A retry was taken, and a hop is
under way: they have nowhere else to go, and only count.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import TYPE_CHECKING

import numpy as np

from timerstore.errors import CongestedError
from timerstore.jit.guards import RLock
from timerstore.values.ids import Int64s
from timerstore.wheel.place import place_all

if TYPE_CHECKING:
    from timerstore.services.engine.engine import Engine


class Congestion:
    """Counts timers by slot; any number of threads may use it."""

    def __init__(self, engine: Engine) -> None:
        """Nothing was put yet that has no unit."""
        self.engine, self.limit = engine, engine.config.congestion_slot_count
        self._rng = random.Random()
        self._lock = RLock()  # a signal's handler may put meanwhile
        self._unlinked: deque[tuple[int, dict[int, int]]] = deque()
        """What was let in: the timer queue's end then, and how many for each slot."""
        self._counts: Counter[int] = Counter()

    def check(self, due_ms: Int64s | int, now_ms: int) -> None:
        """Let timers in, or refuse all of them by chance: surely at twice the limit."""
        if self.limit is not None:
            self._let_in(self._by_slot(due_ms, now_ms), self.limit)

    def count(self, due_ms: int, now_ms: int) -> None:
        """Let in a timer that cannot be refused."""
        if self.limit is not None:
            self._let_in(self._by_slot(due_ms, now_ms), None)

    def _by_slot(self, due_ms: Int64s | int, now_ms: int) -> dict[int, int]:
        due = np.array(due_ms, np.int64, ndmin=1)
        slots = np.empty(len(due), np.int64)
        world = self.engine.world
        passed_slot, checkpointed_slot = self.engine.read_slot, world.flush.checkpointed_slot
        top = checkpointed_slot + 2 * world.settings.slot_count  # see wheel/place.py
        now_slot = now_ms // self.engine.precision_ms
        base = max(now_slot, passed_slot, world.dequeue_get.claimed_slot - 1)
        place_all(world.settings, base, passed_slot, top, due, slots)
        found, counts = np.unique(slots, return_counts=True)
        return dict(zip(found.tolist(), counts.tolist(), strict=True))

    def _let_in(self, more: dict[int, int], limit: int | None) -> None:
        with self._lock.guard():
            end = self._forget_linked()
            if limit is not None:
                for slot, count in more.items():
                    self._judge(slot, count, limit)
            self._counts.update(more)
            self._unlinked.append((end, more))

    def _forget_linked(self) -> int:
        """Forget what has a unit by now, which its slot counts; return the timer queue's end."""
        linked = self.engine.world.enqueue_put.linked_index
        end = self.engine.queues.next_index(0)
        while self._unlinked and (linked >= end or self._unlinked[0][0] < linked):
            _, counts = self._unlinked.popleft()
            self._counts.subtract(counts)
            for slot in counts:
                if self._counts[slot] <= 0:
                    del self._counts[slot]
        if not self._unlinked:
            self._counts.clear()  # a signal's exception may have come between
        return end

    def _judge(self, slot: int, more: int, limit: int) -> None:
        present = self.engine.wheel.count(slot) + self._counts[slot]
        chance = (present + more - 1 - limit) / limit
        if chance > 0 and (chance >= 1 or self._rng.random() < chance):
            raise CongestedError(
                f"The slot of {slot * self.engine.precision_ms} (epoch ms) holds {present} "
                f"timers already. Spread the due times, or raise congestion_slot_count ({limit})."
            )
