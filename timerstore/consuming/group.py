"""Consuming: what groups hand out, of all queues of a topic, of their own retry queue.

Until it is acknowledged it is *in flight*; a queue's smallest index that is not done is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from timerstore.consuming.ackput import ack_and_put_in
from timerstore.consuming.batchcolumns import BATCH_BYTES_MAX, ID_BYTES_USUAL, Columns
from timerstore.consuming.blocks import Blocks
from timerstore.consuming.cursors import Flight, QueueCursor
from timerstore.consuming.delivery import Delivery as Delivery
from timerstore.consuming.pace import Pace
from timerstore.consuming.putacks import PutAcks
from timerstore.consuming.retries import NOT_ITS_MESSAGE, GroupRetries, RetryCursor
from timerstore.consuming.sendback import send_back
from timerstore.consuming.tally import Tally
from timerstore.core import Core
from timerstore.errors import CorruptStoreError, InvalidArgumentError, TooLateError
from timerstore.inside import inside
from timerstore.kinds import check_int
from timerstore.putting.putting import Putting
from timerstore.ranges import Ranges
from timerstore.staying import Stays
from timerstore.timelog.decode import Message, decode_message, text
from timerstore.timelog.format import ENTRY_BYTES
from timerstore.timelog.jit.record import Bytes
from timerstore.timelog.message import FOUND_WORDS
from timerstore.timelog.pull import (
    PULL_DAMAGED,
    PULL_NO_ROOM,
    PULL_STRAY,
    PULL_WILD,
    RUN_DUE_MS,
    RUN_FIRED_MS,
    RUN_INDEX,
    RUN_OFFSET,
    RUN_TAGS,
    RUN_WORDS,
    measure_run,
    pull_messages,
)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Room = Callable[[QueueCursor, int, int], int]
_D = TypeVar("_D")


class Batch(Stays):
    """Messages handed out together, by columns.

    `bodies`: an Arrow binary array; `due_ms`, `fired_ms`: int64 arrays; `ids`: an Arrow string
    array; all of one length; `topic`: that of all. Iterating gives `Delivery` objects.
    """

    __slots__ = (
        *("_bodies", "_columns", "_count", "_cursor", "_decoded", "_flight", "_group", "_ids"),
        *("_index_of", "_pins", "_pulled_ms", "topic"),
    )
    _ack_and_put = ack_and_put_in

    def __init__(
        self,
        group: Group,
        cursor: QueueCursor | None,
        flight: Flight | None,
        columns: Columns,
        count: int,
        pins: list[Any],
    ) -> None:
        """Hold the first `count` places of the columns; made by `pull`."""
        self._group, self._cursor, self._flight = group, cursor, flight
        self._columns, self._count, self._pins = columns, count, pins
        self._pulled_ms = group.core.steady_ms()
        self._bodies: Any = None
        self._ids: Any = None
        self.topic = group.topic
        self._decoded: dict[int, Message] = {}
        self._index_of: list[int] = []  # of each delivery, once there are any

    def __len__(self) -> int:
        """Return how many messages the batch has."""
        return self._count

    @property
    def bodies(self) -> Any:
        """The bodies, an Arrow binary array."""
        if self._bodies is None:
            self._bodies = self._columns.arrow_bodies(self._count)
        return self._bodies

    @property
    def ids(self) -> Any:
        """The ids that the puts returned, an Arrow string array."""
        if self._ids is None:
            self._ids = self._columns.arrow_ids(self._count)
        return self._ids

    @property
    def due_ms(self) -> Int64s:
        """When each was due."""
        return self._numbers(RUN_DUE_MS)

    @property
    def fired_ms(self) -> Int64s:
        """When each was fired into the log."""
        return self._numbers(RUN_FIRED_MS)

    @property
    def tags_codes(self) -> Int64s:
        """The hashes of their tags, as their queue says."""
        return self._numbers(RUN_TAGS)

    @property
    def _indexes(self) -> Int64s:
        return self._numbers(RUN_INDEX)

    @property
    def _offsets(self) -> Int64s:
        return self._numbers(RUN_OFFSET)

    def _numbers(self, row: int) -> Int64s:
        return self._columns.numbers[row, : self._count]

    def __iter__(self) -> Iterator[Delivery]:
        """Yield a `Delivery` for each message."""
        return self._each(Delivery)

    def _each(self, kind: Callable[..., _D]) -> Iterator[_D]:
        """Yield something for each message, made of what a `Delivery` is."""
        bodies, self._index_of = self.bodies.to_pylist(), self._indexes.tolist()
        due, fired = self.due_ms.tolist(), self.fired_ms.tolist()
        return map(kind, repeat(self), range(len(bodies)), bodies, due, fired)

    def ack(self) -> None:
        """Acknowledge all messages; durable with the next flush. O(1) for a whole run."""
        self._group.settle_batch(self)

    def to_arrow(self) -> pa.Table:
        """Return the columns as an Arrow table: id, body, due_ms, fired_ms."""
        columns = [self.ids, self.bodies, pa.array(self.due_ms), pa.array(self.fired_ms)]
        return pa.table(columns, names=["id", "body", "due_ms", "fired_ms"])

    def message(self, i: int) -> Message:
        """Return message `i` decoded, with all its properties."""
        check_int(i, "i", 0, len(self) - 1)
        if i not in self._decoded:
            self._decoded[i] = self._group.decode(int(self._offsets[i]), self._pins)
        return self._decoded[i]

    def _nack(self, i: int, delay: timedelta | None) -> None:
        self._group.send_back(self, i, delay)


class Group:
    """A group's reading of one topic, shared by all its iterators and pulls."""

    def __init__(
        self,
        core: Core,
        putting: Putting,
        retries: GroupRetries,
        put_acks: PutAcks,
        blocks: Blocks,
        tally: Tally,
        topic: str,
        name: str,
        done_ahead: Mapping[int, list[int]],
    ) -> None:
        """Begin at the offsets that were committed, or at the earliest message.

        `done_ahead`: by queue id, what is done behind them.
        """
        self.core, self.topic, self.name = core, topic, name
        self.gate, self.putting, self.put_acks = core.gate, putting, put_acks
        self.retries, self.lock = retries, retries.lock
        self._blocks, self.tally, self._done_ahead = blocks, tally, done_ahead
        self._claimed: set[tuple[int, int]] = set()  # row and index of what is being appended again
        self.keeps_ahead = False
        self.cursors: dict[int, QueueCursor] = {}
        self.unreadable_count = self._turn = self._row_count = 0
        self.owner: Room | None = None  # an ordered consumer's, who reads alone
        self.pace = Pace()
        self._topic_bytes = topic.encode("utf-8", "surrogateescape")

    # --- handing out

    @inside
    def pull(self, count_max: int, room: Room | None = None) -> Batch | None:
        """Hand out what is there, up to `count_max`; None where nothing is.

        `room` tells, under the lock, how many a queue may give that has any.
        """
        core = self.core
        core.check_open()
        if self.owner not in (None, room):
            raise InvalidArgumentError(f"An ordered consumer of group {self.name!r} reads this.")
        pauses = core.switches.pauses
        if pauses and core.switches.find("consuming", core.clock.now_ms, self.name):
            return None
        while True:
            run = self._hand_out(count_max, room)
            if run is None:
                return None
            cursor, flight, start, stop = run
            try:
                batch = self._read(cursor, flight, start, stop)
            except CorruptStoreError:
                raise  # it would be found again and again; what comes behind it goes on
            except BaseException:  # a signal's, say: nobody got them
                with self.lock:
                    cursor.take_back(self.topic, flight, list(range(start, stop)))
                raise
            if len(batch):  # else all of it was passed by
                self.pace.took(len(batch), count_max, time.monotonic())
                return batch

    def _hand_out(
        self, count_max: int, room: Room | None
    ) -> tuple[QueueCursor, Flight, int, int] | None:
        """Return the next run of any queue: its cursor, its flight, its entries [start, stop)."""
        with self.lock:
            self._find_queues()
            cursors = list(self.cursors.values())
            for i in range(len(cursors)):
                cursor = cursors[(self._turn + i) % len(cursors)]
                visible_end, count = self._visible_end(cursor), count_max
                if room is not None:
                    if not cursor.has_more(self.topic, visible_end):
                        continue
                    count = room(cursor, visible_end, count_max)
                    if count <= 0:
                        continue
                if isinstance(cursor, RetryCursor):
                    run = cursor.hand_out_of(self.topic, visible_end, count)
                else:
                    run = cursor.hand_out(visible_end, count)
                start, stop, flight = run
                if flight is not None and stop > start:
                    self._turn = (self._turn + i + 1) % len(cursors)
                    return cursor, flight, start, stop
        return None

    def _find_queues(self) -> None:
        rows = self.core.engine.queues.rows(self._topic_bytes)
        if len(rows) != self._row_count:  # a row, once given, stays
            for row in rows:
                if row not in self.cursors:
                    self.cursors[row] = self._cursor(row, self.topic)
            self._row_count = len(rows)
        retries = self.retries.cursor()
        if retries is not None:
            self.cursors[retries.row] = retries

    def _cursor(self, row: int, topic: str) -> QueueCursor:
        queues = self.core.engine.queues
        queue_id = int(queues.table.queue_id[row])
        committed = self.core.offsets.get(topic, self.name, queue_id)
        first = queues.first_kept(row, self.core.engine.commitlog.start)
        cursor = QueueCursor(row, max(first, min(committed, queues.next_index(row))))
        cursor.pass_done(self.core.offsets.get_ahead(topic, self.name, queue_id))
        for index in sorted(self._done_ahead.get(queue_id, ())):
            if cursor.next <= index < queues.next_index(row) and (flight := cursor.take(index)):
                flight.settle(index)
        cursor.trim()
        return cursor

    def _visible_end(self, cursor: QueueCursor) -> int:
        """Return the index behind the last entry that may be handed out.

        Under "group" durability that is what is durable.
        """
        engine = self.core.engine
        end = engine.queues.seen_index(cursor.row)
        if engine.config.durability == "process" or end <= cursor.next:
            return end
        durable = self.core.flusher.durable_end
        low, high = max(cursor.next, engine.queues.first_index(cursor.row)), end
        while low < high:
            middle = (low + high) // 2
            entry = engine.queues.read(cursor.row, middle, 1)[0]
            if int(entry["offset"]) + int(entry["size"]) <= durable:
                low = middle + 1
            else:
                high = middle
        return low

    def _read(self, cursor: QueueCursor, flight: Flight, start: int, stop: int) -> Batch:
        """Read entries [start, stop) into a batch, from the first that is kept on."""
        try:
            return self._read_kept(cursor, flight, start, stop)
        except CorruptStoreError:
            # Retention may have removed them just before it knew of this group.
            engine = self.core.engine
            first = engine.queues.first_kept(cursor.row, engine.commitlog.start)
            if first <= start:
                raise
        with self.lock:
            for index in range(start, min(first, stop)):
                flight.settle(index)
            cursor.trim()
        return self._read(cursor, flight, first, stop) if first < stop else self.empty()

    def _read_kept(self, cursor: QueueCursor, flight: Flight, start: int, stop: int) -> Batch:
        """Read entries [start, stop) into a batch; what cannot be read is settled and counted."""
        engine, count = self.core.engine, stop - start
        queues, commitlog = engine.queues, engine.commitlog
        entries, at, kept = queues.run(cursor.row, start, count)
        words = np.empty(RUN_WORDS, np.int64)
        while True:
            with commitlog.reading() as table:
                measure_run(table, entries, at, count, words)
            low, high, room = words.tolist()
            if room <= BATCH_BYTES_MAX or count == 1:
                break
            count //= 2
        topic = np.frombuffer(queues.topics[cursor.row], np.uint8)
        queue_id, found = int(queues.table.queue_id[cursor.row]), np.empty(FOUND_WORDS, np.int64)
        id_room = ID_BYTES_USUAL * count
        while True:
            columns = Columns(self._blocks, count, id_room, room)
            pins = commitlog.pin(low, high) if low < high else []
            with commitlog.reading() as table:
                sound = pull_messages(
                    table,
                    entries,
                    at,
                    start,
                    topic,
                    queue_id,
                    engine.store_tag,
                    engine.precision_ms,
                    found,
                    columns.numbers,
                    columns.ends,
                    columns.verdicts,
                    columns.ids,
                    columns.bodies,
                )
            if sound >= 0:
                break
            if sound == PULL_NO_ROOM:
                id_room = room
        if start + count < stop:
            with self.lock:
                cursor.take_back(self.topic, flight, list(range(start + count, stop)))
        del kept
        if sound < count:
            self._pass_by_unsound(cursor, flight, start, columns.verdicts)
            if sound == 0:
                return self.empty()
        return Batch(self, cursor, flight, columns, sound, pins)

    def _pass_by_unsound(
        self, cursor: QueueCursor, flight: Flight, start: int, verdicts: Bytes
    ) -> None:
        """Settle what could not be read of a run that begins at `start`."""
        count = len(verdicts)
        indexes = np.arange(start, start + count)
        damaged = verdicts == PULL_DAMAGED
        self._pass_by(cursor, flight, indexes[verdicts == PULL_WILD], "it points at no message")
        self._pass_by(cursor, flight, indexes[verdicts == PULL_STRAY], NOT_ITS_MESSAGE)
        self._pass_by(cursor, flight, indexes[damaged], None)
        offsets = self.core.engine.queues.read(cursor.row, start, count)["offset"]
        for offset in offsets[damaged].tolist():
            self.core.report_unreadable("commitlog", offset, "the message is damaged")

    def _pass_by(
        self, cursor: QueueCursor, flight: Flight, indexes: Int64s, reason: str | None
    ) -> None:
        """Settle entries that cannot be handed out, and count them; with a `reason` report them."""
        if len(indexes) == 0:
            return
        queues = self.core.engine.queues
        with self.lock:
            self.unreadable_count += len(indexes)
            for index in indexes.tolist():
                flight.settle(index)
            cursor.trim()
        if reason is not None:
            for index in indexes.tolist():
                self.core.report_unreadable(queues.name(cursor.row), index * ENTRY_BYTES, reason)

    def decode(self, offset: int, pins: list[Any]) -> Message:
        """Decode a message whose segment is pinned."""
        segment_bytes = self.core.engine.commitlog.segment_bytes
        for file in pins:
            start = int(file.path.name)
            if start <= offset < start + segment_bytes:
                return decode_message(file.view[offset - start :], offset)
        raise CorruptStoreError("commitlog", offset, "its segment is gone")

    def empty(self) -> Batch:
        """Return a batch of nothing."""
        columns = Columns(self._blocks, 0, 0, 0)
        columns.ends[:] = 0
        return Batch(self, None, None, columns, 0, [])

    def has_hidden(self) -> bool:
        """Tell whether something was fired for the group that is not durable yet."""
        self.core.check_process()
        with self.lock:
            self._find_queues()
            queues = self.core.engine.queues
            return any(
                queues.next_index(row) > self._visible_end(cursor)
                for row, cursor in self.cursors.items()
            )

    @inside
    def make_visible(self) -> None:
        """Under "group" durability, make durable what was fired for who waits."""
        self.core.check_open()
        if self.core.is_group and self.has_hidden():
            self.core.flusher.sync_log()

    # --- taking back

    def settle_batch(self, batch: Batch) -> None:
        """Acknowledge a whole batch."""
        self.core.check_open()
        flight, cursor = batch._flight, batch._cursor
        if len(batch) == 0:
            return
        assert flight is not None and cursor is not None
        now_ms = self.core.steady_ms()
        with self.lock:
            before = flight.left
            if flight.done is None and flight.left == len(batch):
                flight.left = 0
            else:
                for index in batch._indexes.tolist():
                    if flight.left:
                        flight.settle(index)
            done = before - flight.left
            self.tally.handled += done
            cursor.trim()
        if done:
            self.tally.respond(now_ms, now_ms - batch._pulled_ms, done)
        self.core.check_open()  # else its offset may be kept without them

    def settle(self, batch: Batch, index: int, *, handled: bool = True, held: bool = False) -> None:
        """Acknowledge one message that was `handled`, or sent elsewhere; `held`: closing waits."""
        if self.core.closed and not held:
            self.core.check_open()
        flight, cursor = batch._flight, batch._cursor
        assert flight is not None and cursor is not None
        with self.lock:
            if flight.left:
                if flight.settle(index) and handled:
                    self.tally.handled += 1
                if flight.left == 0:
                    cursor.trim()
            if self._claimed:
                self._claimed.discard((cursor.row, index))
        if self.core.closed and not held:  # its offset may be kept without it
            self.core.check_open()

    def settle_some(self, batch: Batch, places: list[int], *, handled: bool = True) -> None:
        """Acknowledge the messages at some places of a batch, which were `handled` or not."""
        if self.core.closed:
            self.core.check_open()
        flight, cursor = batch._flight, batch._cursor
        assert flight is not None and cursor is not None
        indexes = batch._indexes
        with self.lock:
            before = flight.left
            if flight.done is None and flight.left == len(places):
                flight.left = 0
            else:
                for place in places:
                    if flight.left:
                        flight.settle(int(indexes[place]))
            self.tally.handled += before - flight.left if handled else 0
            if flight.left == 0:
                cursor.trim()
            if self._claimed:
                self._claimed.difference_update((cursor.row, int(indexes[i])) for i in places)
        self.core.check_open()

    def give_back(self, batch: Batch, start: int) -> None:
        """Take back the messages of a batch from `start` on, to be handed out again."""
        self.give_back_some(batch, list(range(start, len(batch))))

    def give_back_some(self, batch: Batch, places: list[int]) -> None:
        """Take back the messages at some places of a batch, to be handed out again."""
        self.core.check_process()
        cursor, flight = batch._cursor, batch._flight
        assert cursor is not None and flight is not None
        with self.lock:
            cursor.take_back(self.topic, flight, batch._indexes[places].tolist())

    @inside
    def send_back(self, batch: Batch, i: int, delay: timedelta | None) -> None:
        """Put a message again as a timer for the group's retry topic, then acknowledge it."""
        index = int(batch._indexes[i])
        with self.claiming(batch, index):
            send_back(self.putting, self.name, batch.message(i), delay=delay)
        self.settle(batch, index, handled=False, held=True)
        self.count_failed(1, 1, 0)

    # --- what is appended again, or has a put in its place

    def claim(self, batch: Batch, index: int) -> bool:
        """Take a message for who appends what comes in its place; False: it is too late for that.

        Of several that try only one may; `settle` ends it, or `release`.
        """
        self.core.check_process()
        flight, cursor = batch._flight, batch._cursor
        assert flight is not None and cursor is not None
        with self.lock:
            if flight.is_done(index) or (cursor.row, index) in self._claimed:
                return False
            self._claimed.add((cursor.row, index))
            return True

    def release(self, batch: Batch, index: int) -> None:
        """Say that nothing came in its place."""
        self.core.check_process()
        assert batch._cursor is not None
        with self.lock:
            self._claimed.discard((batch._cursor.row, index))

    @contextmanager
    def claiming(self, batch: Batch, index: int) -> Iterator[None]:
        """Claim a message; where an exception comes out, it is released."""
        if not self.claim(batch, index):
            raise TooLateError("The message was acknowledged or sent back before.")
        try:
            yield
        except BaseException:
            self.release(batch, index)
            raise

    def settle_by_put(self, batch: Batch, index: int) -> None:
        """Acknowledge a message whose record is in the log."""
        self.core.check_process()
        self.keeps_ahead = True  # first, for a checkpoint
        self.settle(batch, index, held=True)

    def ahead_to_keep(self) -> dict[tuple[str, int], Ranges]:
        """Return what is done behind the committed indexes, where that is to be kept."""
        self.core.check_process()
        return self._by_queue(QueueCursor.done_ranges) if self.keeps_ahead else {}

    def count_failed(self, failed: int, retried: int, dead: int) -> None:
        """Count what failed, and what became of it: sent back, or given up."""
        self.core.check_process()
        with self.lock:
            self.tally.failed += failed
            self.tally.retried += retried
            self.tally.dead += dead

    def done_ahead(self) -> dict[int, list[int]]:
        """Return what is done behind the committed index of each queue, by queue id."""
        self.core.check_process()
        queues = self.core.engine.queues
        with self.lock:
            self._find_queues()
            return {
                int(queues.table.queue_id[row]): self.cursors[row].done_ahead()
                for row in queues.rows(self._topic_bytes)
                if row in self.cursors
            }

    def committed(self) -> dict[tuple[str, int], int]:
        """Return the committed index of each queue, by (topic, queue id)."""
        self.core.check_process()
        return self._by_queue(lambda cursor: cursor.committed)

    def _by_queue(self, of: Callable[[QueueCursor], _D]) -> dict[tuple[str, int], _D]:
        queues = self.core.engine.queues
        with self.lock:
            return {
                (text(queues.topics[row]), int(queues.table.queue_id[row])): of(cursor)
                for row, cursor in self.cursors.items()
            }

    def reading(self) -> list[tuple[str, str, dict[str, int]]]:
        """Return what the group needs next: its topics, with an index by queue id."""
        needed: dict[str, dict[str, int]] = {self.topic: {}}
        for (topic, queue_id), index in self.committed().items():
            needed.setdefault(topic, {})[str(queue_id)] = index
        return [(topic, self.name, indexes) for topic, indexes in needed.items()]
