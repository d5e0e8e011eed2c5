"""Cursors: where a group stands in a queue, what became of each entry, what it sent back."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import takewhile
from typing import Final, Literal

import numpy as np

from timerstore.calls.consuming import window as win
from timerstore.calls.consuming.window import DONE, HELD, NO_ROOM, OUT, WAITING, Window
from timerstore.core.core import Core
from timerstore.core.offsets import Ranges, merged
from timerstore.errors import CorruptStoreError
from timerstore.jit.guards import RLock
from timerstore.jit.kernel import caller_on
from timerstore.jit.mapping import lend, new_lent
from timerstore.services.damage.pass_by import is_damaged, leave_entries
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import decode_message, text

HandedState = Literal["waiting", "handed out", "done"]
_STATES: Final[dict[int, HandedState]] = {
    WAITING: "waiting",
    OUT: "handed out",
    DONE: "done",
    HELD: "waiting",
}
_LENGTH_MIN: Final = 1 << 10
_LOOK_COUNT: Final = 32
LOOKED_SPAN_MAX: Final = 1 << 20
"""So far behind the first entry that is not done is looked for what may have its turn."""


class QueueCursor:
    """Where a group stands in one queue.

    `settle`, `state_of` and the counts need no lock; all other calls are under the group's.
    """

    def __init__(self, row: int, committed: int) -> None:
        self.row = row
        self._rings = [np.zeros(_LENGTH_MIN, np.uint8)]
        self.window = window = Window(
            new_lent(2), length=_LENGTH_MIN, first=committed, next=committed
        )
        lend(window.lent, win.RING, self._rings[0])
        self.ready_place = -1
        """Its place in the ready way of its group; −1: it has none."""
        self.back_count = 0
        """How often anything was given back."""
        self._hand_out = caller_on(win.hand_out, window)
        self._mark = caller_on(win.mark, window)
        self._state_at = caller_on(win.state_at, window)
        self._extend = caller_on(win.extend, window)

    @property
    def next(self) -> int:
        """The first index that was never handed out."""
        return self.window.next

    @property
    def committed(self) -> int:
        """The smallest index that is not done."""
        return self.window.first

    @property
    def open_count(self) -> int:
        """How many of those before `next` are not done."""
        window = self.window
        return window.waiting_count + window.out_count + window.held_count

    @property
    def in_flight_count(self) -> int:
        """How many were handed out, and are neither done nor given back."""
        return self.window.out_count

    @property
    def holds_any(self) -> bool:
        """Whether an entry is held, see `hold`: what is done behind it is to be kept."""
        return self.window.held_count > 0

    @property
    def waits_again(self) -> bool:
        """Whether anything waits that was given back, or passed over."""
        return self.window.waiting_count > 0

    def state_of(self, index: int) -> HandedState:
        """Tell what became of one entry. O(1)."""
        return _STATES[self._state_at(index)]

    def has_more(self, topic: str, visible_end: int) -> bool:
        """Tell whether there is anything to hand out."""
        return self.waits_again or visible_end > self.window.next

    def hand_out(self, visible_end: int, count_max: int) -> tuple[int, int]:
        """Return the next run (start, stop); an empty run if nothing is new. O(entries)."""
        while (count := self._hand_out(visible_end, count_max)) == NO_ROOM:
            self._grow(min(visible_end, self.next + count_max))
        start = self.window.told_start  # others may have handed out since, in the ready way
        return start, start + count

    def take(self, index: int) -> bool:
        """Hand out one entry, wherever it stands; False if it is done, or in flight.

        O(entries before it that are not handed out).
        """
        self._pass_over(index + 1, WAITING)
        return self._mark(index, index + 1, OUT) > 0

    def reach(self, stop: int) -> None:
        """Have all before `stop` that was never handed out wait."""
        self._pass_over(stop, WAITING)

    def look(self, topic: str, visible_end: int, start: int) -> tuple[list[int], int]:
        """Return some entries from `start` on that wait, and where to look on. O(entries)."""
        window = self.window
        start = max(start, window.first)
        stop = max(start, min(visible_end, start + _LOOK_COUNT, window.first + LOOKED_SPAN_MAX))
        state_of = self._state_at
        return [i for i in range(start, stop) if i >= window.next or state_of(i) == WAITING], stop

    def pass_done(self, ranges: Ranges) -> None:
        """Take entries that are not handed out yet for done. O(entries before them)."""
        for start, stop in merged(ranges):
            self._pass_over(start, WAITING)
            self._pass_over(stop, DONE)

    def _pass_over(self, stop: int, state: int) -> None:
        """Have all before `stop` that was never handed out wait, or be done."""
        while stop > self.next and self._extend(stop, state) == NO_ROOM:
            self._grow(stop)

    def settle(self, start: int, stop: int) -> int:
        """Say that entries before `next` are done; return how many were not. O(entries)."""
        return self._mark(start, stop, DONE)

    def hold(self, index: int) -> None:
        """Have an entry that was handed out wait for the next opening: it is damaged."""
        self._mark(index, index + 1, HELD)

    def settle_anywhere(self, index: int) -> bool:
        """Say that an entry is done, handed out or not; tell whether it was not done before.

        O(entries before it that are not handed out).
        """
        self._pass_over(index + 1, WAITING)
        return self.settle(index, index + 1) > 0

    def done_ranges(self) -> Ranges:
        """Return what is done behind the committed index. O(entries from there), if any is."""
        window, first = self.window, self.committed
        copied = np.zeros(self.next - first, np.uint8)  # `next` is read later: it is not below
        lend(window.lent, win.OTHER, copied)
        count = caller_on(win.copy_states, window)(len(copied))
        is_done = np.zeros(count + 2, np.int8)
        is_done[1:-1] = copied[:count] == DONE
        edges = window.told_start + np.flatnonzero(np.diff(is_done))
        return [(start, stop) for start, stop in edges.reshape(-1, 2).tolist()]

    def take_back(self, topic: str, start: int, stop: int) -> None:
        """Take back entries that were handed out, but not used."""
        self.back_count += 1
        self._mark(start, stop, WAITING)

    def _grow(self, stop: int) -> None:
        """Make room for all entries before `stop`."""
        window = self.window
        length = 1 << (stop - window.first - 1).bit_length()
        if length > window.length:
            self._rings.append(np.zeros(length, np.uint8))
            lend(window.lent, win.OTHER, self._rings[-1])
            caller_on(win.move, window)(length)
            del self._rings[:-1]  # if a signal comes before, both are kept


# --- what a group sent back
#
# All topics that a group reads share one retry topic, `%RETRY%group`. Messages are routed by their
# `RETRY_TOPIC`; what belongs to a topic that nobody reads just now waits here, and keeps the
# queue's committed offset back. All calls under the lock that the groups of one name share.


NOT_ITS_MESSAGE: Final = "it points to the message of another entry"
_ROUTE_COUNT: Final = 256
_RETRY_TOPIC: Final = fmt.PROPERTY_RETRY_TOPIC.decode()


class RetryCursor(QueueCursor):
    """A cursor whose entries are kept apart by the topic that they came from."""

    def __init__(self, core: Core, row: int, committed: int) -> None:
        super().__init__(row, committed)
        self.core = core
        self.unreadable_count = 0
        self.routed: dict[str, deque[int]] = defaultdict(deque)
        """By topic, what waits for it."""

    @property
    def in_flight_count(self) -> int:
        """How many were handed out, and are neither done nor given back."""
        waiting = sum(len(each) for each in list(self.routed.values()))
        return super().in_flight_count - waiting

    def state_of(self, index: int) -> HandedState:
        """Tell what became of one entry. O(entries in flight)."""
        state = super().state_of(index)
        if state == "handed out" and any(index in each for each in list(self.routed.values())):
            return "waiting"
        return state

    def has_more(self, topic: str, visible_end: int) -> bool:
        """Tell whether there may be retries of a topic; what is new is not routed yet."""
        return bool(self.routed.get(topic)) or super().has_more(topic, visible_end)

    def hand_out_of(self, topic: str, visible_end: int, count_max: int) -> tuple[int, int]:
        """Return the next run of one topic's retries; an empty run if there is none."""
        while not self.routed[topic]:
            start, stop = super().hand_out(visible_end, _ROUTE_COUNT)
            if start == stop:
                return start, start
            self._route(start, stop)
        waiting = self.routed[topic]
        start = waiting.popleft()
        stop = start + 1
        while waiting and waiting[0] == stop and stop - start < count_max:
            waiting.popleft()
            stop += 1
        return start, stop

    def look(self, topic: str, visible_end: int, start: int) -> tuple[list[int], int]:
        """Return a topic's retries from `start` on that wait; if there are none, route new ones."""
        found: list[int] = []
        while not found:
            found = list(takewhile(lambda i: i >= start, reversed(self.routed[topic])))
            if not found:
                new, stop = super().hand_out(visible_end, _ROUTE_COUNT)
                if new == stop:
                    return [], start
                self._route(new, stop)
        found = found[: -_LOOK_COUNT - 1 : -1]
        return found, found[-1] + 1

    def take(self, index: int) -> bool:
        """Hand out one entry, wherever it stands; False if it is done, or in flight."""
        for waiting in self.routed.values():
            if index in waiting:
                waiting.remove(index)
                return True
        return super().take(index)

    def settle(self, start: int, stop: int) -> int:
        """Say that entries before `next` are done; return how many were not. O(entries)."""
        for waiting in self.routed.values():
            if waiting and start <= waiting[-1] and waiting[0] < stop:
                kept = [index for index in waiting if not start <= index < stop]
                waiting.clear()
                waiting.extend(kept)
        return super().settle(start, stop)

    def _route(self, start: int, stop: int) -> None:
        engine = self.core.engine
        queues, mine = engine.queues, text(engine.queues.topics[self.row])
        offsets = queues.read(self.row, start, stop - start)["offset"]
        for index, offset in zip(range(start, stop), offsets.tolist(), strict=True):
            try:
                view = engine.commitlog.view(offset)
                message = decode_message(view, offset)
                if (message.topic, message.queue_index) != (mine, index):
                    at = index * fmt.ENTRY_BYTES
                    raise CorruptStoreError(queues.name(self.row), at, NOT_ITS_MESSAGE)
            except CorruptStoreError as e:
                if is_damaged(engine, self.row, index):
                    self.hold(index)
                    leave_entries(engine, self.row, [index])
                    continue
                super().settle(index, index + 1)
                self.unreadable_count += 1
                engine.damage.note(e.file, e.offset, e.reason)
            else:
                self.routed[message.properties.get(_RETRY_TOPIC, "")].append(index)

    def take_back(self, topic: str, start: int, stop: int) -> None:
        """Take back entries that were handed out, but not used; what comes first is first again."""
        self.back_count += 1
        waiting = self.routed[topic]
        state_of = super().state_of
        known = sorted({*waiting, *(i for i in range(start, stop) if state_of(i) != "done")})
        waiting.clear()
        waiting.extend(known)


class GroupRetries:
    """The retry queue that all groups of one name share, with their lock."""

    def __init__(self, core: Core, name: str) -> None:
        """Begin without a cursor: the queue may not exist yet."""
        self.core = core
        # The garbage collector may close an iterator in the midst of another call, and it gives
        # back what it did not yield. So a thread may take it again.
        self.lock = RLock()
        self.topic = fmt.RETRY_PREFIX.decode() + name
        self._topic_bytes = self.topic.encode()
        self.name = name
        self._cursor: RetryCursor | None = None

    @property
    def is_held(self) -> bool:
        """Whether the calling thread has the lock: an acknowledgement passes no gate."""
        return self.lock.is_mine()

    @property
    def unreadable_count(self) -> int:
        """How many entries of the retry queue were passed by."""
        return 0 if self._cursor is None else self._cursor.unreadable_count

    def cursor(self) -> RetryCursor | None:
        """Return the cursor once anything was sent back. Under the lock."""
        if self._cursor is None:
            engine = self.core.engine
            rows = engine.queues.rows(self._topic_bytes)
            if rows:
                row = rows[0]
                committed = self.core.offsets.get(self.topic, self.name, 0)
                first = engine.queues.first_kept(row, engine.commitlog.start)
                start = max(first, min(committed, engine.queues.next_index(row)))
                self._cursor = RetryCursor(self.core, row, start)
                self._cursor.pass_done(self.core.offsets.get_ahead(self.topic, self.name, 0))
        return self._cursor
