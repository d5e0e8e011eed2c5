"""An ordered consumer's subscription: messages are pulled ahead, each waits for its turn.

What fails is held back in memory: it is handed out, and not acknowledged, so the queue's offset
stays before it, and after a crash it comes first again. What was done behind it is kept with the
offset, how often it failed beside the groups' counters (`consuming/tallyfile.py`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from timerstore.config import Config
from timerstore.consumer.lines import Lines, Ordered, line_of
from timerstore.consumer.subscription import Handler, Held, Limits, Subscription, Task
from timerstore.consuming.consuming import Consuming
from timerstore.consuming.failures import first_failed_ms
from timerstore.consuming.group import Delivery
from timerstore.consuming.retries import RetryCursor
from timerstore.errors import InvalidArgumentError
from timerstore.timelog.format import PROPERTY_FIRST_FAILED

log = logging.getLogger("timerstore")

SPANS_AHEAD: Final = 10
"""By key: so many times `inflight_span_max` may lie between what is held back and what is read."""
_FIRST_FAILED: Final = PROPERTY_FIRST_FAILED.decode()


def ordered_limits(config: Config, ordered: Ordered, pull_count: int) -> Limits:
    """Return how much of a queue is read ahead: of one line little, of many what memory allows."""
    limits = Limits.of(config)
    if ordered == "key":
        span = limits.span
        return replace(limits, count=max(limits.count, span), span=SPANS_AHEAD * span)
    return replace(limits, count=min(limits.count, 2 * pull_count))


class OrderedSubscription(Subscription):
    """One topic with its handler, and its lines."""

    def __init__(self, topic: str, handler: Handler, tags: str, ordered: Ordered) -> None:
        """Nobody waits."""
        super().__init__(topic, handler, tags)
        self._ordered, self.lines = ordered, Lines()
        self._closed = self._told = False
        self.hold_back: Callable[[Task, float], None]
        """Called with a task, and for how many ms it is not to begin."""

    def open(
        self, consuming: Consuming, group: str, limits: Limits, held: defaultdict[int, Held]
    ) -> None:
        """Begin to read, alone."""
        super().open(consuming, group, limits, held)
        reader, self._held_back = self.group, consuming.held_back(self.topic, group)
        with reader.lock:
            reader._find_queues()
            handed_out = sum(
                cursor.in_flight_count
                for cursor in reader.cursors.values()
                if not isinstance(cursor, RetryCursor)
            )
            if reader.owner is not None or handed_out:
                raise InvalidArgumentError(
                    f"The group {group!r} has {handed_out} messages of {self.topic!r} handed out "
                    "elsewhere. An ordered consumer reads alone: close the others before."
                )
            reader.owner = self._room
            reader.keeps_ahead = True

    # --- pulling

    def pull(self, count_max: int, batch_count: int) -> list[Task]:
        """Return tasks whose turn it is; what has to wait is read all the same, within limits."""
        while tasks := super().pull(count_max, batch_count):
            self._told = False
            try:
                for task in tasks:
                    task.line = line_of(task, self._ordered)
                    self._go_on_from(task)
            except BaseException:
                for task in reversed(tasks):
                    self.give_back(task)
                raise
            ready = [task for task in self.lines.enter(tasks) if not self._is_early(task)]
            if ready:
                return ready
        if self.limited and not self._told and self._ordered == "key":
            self._told = True
            text = "%s: no more is read until something is done of what waits in %d lines"
            log.warning(text, self.topic, len(self.lines), extra={"topic": self.topic})
        return []

    def _go_on_from(self, task: Task) -> None:
        """Go on counting where an earlier life held the message back."""
        known = self._held_back.get(self._place(task) or (-1, -1))
        if known is not None:
            attempt, first_ms, task.again_ms, task.wait_ms = known
            _say_failed(task, attempt, first_ms)

    def _is_early(self, task: Task) -> bool:
        left_ms = task.again_ms - self.group.core.clock.now_ms
        if left_ms <= 0:
            return False
        self.hold_back(task, min(left_ms, task.wait_ms))  # the clock may have been set
        return True

    def _place(self, task: Task) -> tuple[int, int] | None:
        """Return queue id and index of a message; None of one that was sent back before."""
        cursor, delivery = task.batch._cursor, task.deliveries[0]
        if cursor is None or isinstance(cursor, RetryCursor):
            return None
        queue_id = int(self.group.core.engine.queues.table.queue_id[cursor.row])
        return queue_id, int(task.batch._indexes[delivery._i])

    # --- what became of them

    def hold(self, task: Task, wait_ms: int) -> None:
        """Have a message that failed come again, the first of its line, with an attempt more."""
        now_ms, delivery = self.group.core.clock.now_ms, task.deliveries[0]
        message = delivery._batch.message(delivery._i)
        first_ms = first_failed_ms(message.properties) or now_ms
        attempt = message.reconsume_times + 1
        _say_failed(task, attempt, first_ms)
        place = self._place(task)
        if place is not None:
            with self.group.lock:
                self._held_back[place] = attempt, first_ms, now_ms + wait_ms, wait_ms
        self.group.count_failed(0, 1, 0)
        self.hold_back(task, wait_ms)

    def done(
        self, task: Task, deliveries: list[Delivery], length: int, *, handled: bool = True
    ) -> None:
        """Settle the message of a task."""
        super().done(task, deliveries, length, handled=handled)
        place = self._place(task)
        if place in self._held_back:
            with self.group.lock:
                self._held_back.pop(place, None)

    def next_after(self, task: Task) -> Task | None:
        """Return what comes next in the line of a task that is done."""
        return self.lines.leave(task)

    def waiting(self) -> list[Task]:
        """Return all that wait for their turn; they are to be given back."""
        return self.lines.take_all()

    def close(self) -> None:
        """Let others read, once nothing is handed out any more."""
        self._closed = True
        self._let_go()

    def _release(self, cursor_row: int, count: int, length: int) -> None:
        super()._release(cursor_row, count, length)
        if self._closed:
            self._let_go()

    def _let_go(self) -> None:
        with self.group.lock:
            if self.group.owner == self._room and not any(h.count for h in self._held.values()):
                self.group.owner = None


def _say_failed(task: Task, attempt: int, first_ms: int) -> None:
    """Have a message in memory say how often it failed, and since when."""
    batch, i = task.batch, task.deliveries[0]._i
    message = batch.message(i)
    properties = message.properties | {_FIRST_FAILED: str(first_ms)}
    batch._decoded[i] = message._replace(reconsume_times=attempt, properties=properties)
