"""The retry queue of a group: what was sent back, on its way to the topic that it came from.

All topics that a group reads share one retry topic, `%RETRY%group`. Messages are routed by their
`RETRY_TOPIC`; what belongs to a topic that nobody reads just now waits here, and keeps the queue's
committed offset back. All calls under the lock that the groups of one name share.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

from timerstore.calls.consuming.cursors import HandedState, QueueCursor
from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError
from timerstore.jit.guards import RLock
from timerstore.services.damage.pass_by import is_damaged, leave_entries
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import decode_message, text

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
