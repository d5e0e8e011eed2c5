"""A run: entries of one queue that were handed out together, until each is done or given back.

Ground rules: any thread may call anything. Places count from 0 in the run, indexes in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from itertools import repeat
from typing import Any

from timerstore.calls.consuming import pull
from timerstore.calls.consuming.cursors import QueueCursor, RetryCursor
from timerstore.calls.consuming.delivery import (
    DEAD,
    DROPPED,
    Delivery,
    Failure,
    HandedOut,
    NextPut,
    Wait,
    checked,
)
from timerstore.calls.consuming.groupreader import Place, Reader
from timerstore.calls.consuming.ready import NO_RESPONSE
from timerstore.calls.consuming.sendback import send_back, send_to_dead
from timerstore.core.gate import inside
from timerstore.core.offsets import Ranges, merged
from timerstore.errors import InvalidArgumentError, TimerStoreError, TooLateError
from timerstore.services.calls.appending import append_all
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import NEVER, Message, text
from timerstore.timelog.writing.append import STAGE_BYTES
from timerstore.timelog.writing.compose import (
    ACKS_TOPIC,
    AckRecord,
    Staged,
    compose_record,
    stage_messages,
)
from timerstore.values.ids import Int64s, format_id
from timerstore.values.kinds import check_bool, check_int
from timerstore.values.puts import Put

# --- acknowledging a message with what is put in its place, as one
#
# The message is acknowledged if and only if the next one is there. So one append decides: a
# *record*, a message of a topic of our own that names group, topic, queue, index and how many
# puts follow; then the puts, all under one taking of the append lock. Recovery cuts off a batch
# that is not whole, as it cuts off half a message.
#
# Offsets are written at checkpoints only, so opening applies the records behind what the offsets
# file knows. Up to which record that is, is itself an offset in that file, of a group in the
# records' topic. The file can say it because it also holds what is done behind the committed
# index, in runs. A checkpoint reads that offset first, then what is ahead, then what is
# committed, and waits until the log is durable as far as these say. `tests/models/ack_model.py`
# tries all orders with all crashes, and fails if one of these rules is taken away.
#
# A message is *claimed* before anything is appended in its place, so only one of a put, a `nack`
# and a consumer whose handler took too long comes. With `if_absent` the look at the key and the
# append are one hold of the key index's lock. A property of the put that names what it
# acknowledges would need no record, but each kernel that copies messages would have to drop it.


@inside
def ack_and_put(
    group: Reader,
    cursor: QueueCursor,
    place: Place,
    settle: Callable[[], None],
    puts: Sequence[NextPut],
) -> list[str]:
    """Acknowledge a message that was handed out, and put; see `Delivery.ack_and_put_many`.

    The one append is what decides: its first message says who has consumed what, the puts follow.
    `settle` acknowledges.
    """
    core, putting = group.core, group.putting
    core.check_putting()
    core.check_unlocked()
    now_ms, given = core.clock.now_ms, checked(puts, group.topic)
    entries = [putting.staged(putting.check(put, now_ms)) for put in given]
    unless = [_condition(put) for put in given]
    if len(set(unless) - {None}) < len([each for each in unless if each is not None]):
        raise InvalidArgumentError(
            "Two puts with if_absent have the same topic and key. Leave one out."
        )
    if any(entry.row == 0 for entry in entries):
        putting.admission.enter()
    row, index = place
    queues = core.engine.queues
    where = text(queues.topics[row]), int(queues.table.queue_id[row])
    record = AckRecord(group.name, *where, index, len(entries))
    length = sum(len(entry.message) for entry in entries) + len(compose_record(record, now_ms))
    if length > STAGE_BYTES:
        raise InvalidArgumentError("All puts together take more than 4 MiB. Put fewer at once.")
    if not group.claim(cursor, place):
        raise TooLateError(
            "Nothing was put: the message was acknowledged or sent back before, perhaps because "
            "its handler took too long."
        )
    try:
        putting.space.check()
        number = group.put_acks.begin()
        ids = _append(group, number, record, entries, unless, now_ms)
    except TimerStoreError:
        group.release(place)
        raise
    settle()
    group.put_acks.end(number)
    core.after_append(now_ms, min(entry.due_ms for entry in entries))
    return ids


def _append(
    group: Reader,
    number: int,
    record: AckRecord,
    entries: list[Staged],
    unless: list[tuple[str, str] | None],
    now_ms: int,
) -> list[str]:
    """Append all as one, except what is pending; return the ids. After an error nothing is there.

    A signal's exception may come when they are there: then what is under way stays so, and the
    record is applied when the store is opened again.
    """
    core, keys = group.core, group.put_acks.keys
    engine, stage = core.engine, core.take_stage()
    try:
        with keys.lock.guard() if any(unless) else nullcontext():
            ids = [names and keys.find(*names) for names in unless]
            new = [i for i, id in enumerate(ids) if id is None]
            data = compose_record(record._replace(put_count=len(new)), now_ms)
            first = Staged(data, engine.queues.row(ACKS_TOPIC), 0, -1, 0)
            count = stage_messages(stage, [first, *(entries[i] for i in new)])
            append_all(engine, stage, count, now_ms)
        group.put_acks.appended(engine.commitlog.end)
        for i, place in zip(new, stage.offset[1:count].tolist(), strict=True):
            mark = fmt.LEVEL_MARK if entries[i].row else 0
            ids[i] = format_id(entries[i].due_ms, place | mark, engine.store_tag)
    except TimerStoreError:
        group.put_acks.end(number)
        raise
    finally:
        core.free_stage(stage)
    return [id for id in ids if id is not None]


def _condition(put: Put) -> tuple[str, str] | None:
    """Return topic and key of a put that is left out if such a timer is pending."""
    check_bool(put.if_absent, "if_absent")
    if not put.if_absent:
        return None
    if put.key is None:
        raise InvalidArgumentError("if_absent was passed without a key. Pass key as well.")
    return put.topic, put.key


# --- a run


class Run(HandedOut):
    """What `Group.pull` hands out."""

    __slots__ = (
        *("_bodies", "_count", "_decoded", "_ids", "columns", "cursor", "expires_ms", "pins"),
        *("pulled_us", "reader", "start", "stop", "topic"),
    )
    topic: str

    def __init__(
        self,
        reader: Reader,
        cursor: QueueCursor,
        columns: pull.Columns,
        start: int,
        count: int,
        pins: list[Any],
        pulled_us: int,
        expires_ms: int = NEVER,
    ) -> None:
        """Hold the first `count` places of columns, which were read from the entry `start` on."""
        self.reader, self.topic, self.cursor, self.columns = reader, reader.topic, cursor, columns
        self.start, self.stop, self._count = start, start + columns.count, count
        self.pins, self.pulled_us, self.expires_ms = pins, pulled_us, expires_ms
        self._bodies: Any = None
        self._ids: Any = None
        self._decoded: dict[int, Message] | None = None

    # --- looking

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Delivery]:
        count = self._count
        return map(self.kind, repeat(self), range(count), *self.columns.pieces(count))

    @property
    def reads_as(self) -> str:
        """The group that they were handed out to."""
        return self.reader.name

    @property
    def bodies(self) -> Any:
        """The bodies, an Arrow binary array."""
        if self._bodies is None:
            self._bodies = self.columns.arrow_bodies(self._count)
        return self._bodies

    @property
    def ids(self) -> Any:
        """The ids that the puts returned, an Arrow string array."""
        if self._ids is None:
            self._ids = self.columns.arrow_ids(self._count)
        return self._ids

    @property
    def due_ms(self) -> Int64s:
        """When each was due."""
        return self._numbers(pull.RUN_DUE_MS)

    @property
    def fired_ms(self) -> Int64s:
        """When each was fired into the log."""
        return self._numbers(pull.RUN_FIRED_MS)

    @property
    def tags_codes(self) -> Int64s:
        """The hashes of their tags, as their queue says."""
        return self._numbers(pull.RUN_TAGS)

    @property
    def indexes(self) -> Int64s:
        """Where each stands in its queue."""
        return self._numbers(pull.RUN_INDEX)

    @property
    def offsets(self) -> Int64s:
        """Where each begins in the commit log."""
        return self._numbers(pull.RUN_OFFSET)

    def _numbers(self, row: int) -> Int64s:
        return self.columns.numbers[row, : self._count]

    @property
    def is_retry(self) -> bool:
        """Whether they were sent back before."""
        return isinstance(self.cursor, RetryCursor)

    def message(self, i: int) -> Message:
        """Return message `i` decoded, with all its properties."""
        i = check_int(i, "i", 0, self._count - 1)
        if self._decoded is None:
            self._decoded = {}
        if i not in self._decoded:
            self._decoded[i] = self.reader.decode(int(self.offsets[i]), self.pins)
        return self._decoded[i]

    def is_done(self, i: int) -> bool:
        """Tell whether one was acknowledged."""
        return self.cursor.state_of(int(self.indexes[i])) == "done"

    def say_failed(self, i: int, attempt: int, first_ms: int) -> None:
        """Have a message in memory say how often it failed, and since when."""
        message = self.message(i)
        properties = message.properties | {fmt.PROPERTY_FIRST_FAILED.decode(): str(first_ms)}
        said = message._replace(reconsume_times=attempt, properties=properties)
        self._decoded = (self._decoded or {}) | {i: said}

    # --- taking back

    def ack(self) -> None:
        """Acknowledge all. One kernel if none of the run was passed by, and none is claimed."""
        reader, place, count = self.reader, self.cursor.ready_place, self._count
        core, clock, now_us = reader.core, reader.hand_clock, 0
        if clock is not None:
            now_us = clock.now_ms * 1000
        if place >= 0 and self.stop - self.start == count and not reader.claimed:
            given = self.start, self.stop, self.pulled_us, now_us
            if reader.ready_calls.ack(place, *given) >= 0:
                return
        core.check_open()
        now_ms = core.steady_ms()
        done = self._settle(range(count))
        if done:
            self.reader.tally.respond(now_ms, now_ms - self.pulled_us / 1000, done)
        if core.closed:  # its offset may be kept without them
            core.check_open()

    def settle(self, i: int, *, handled: bool = True, held: bool = False) -> None:
        """Acknowledge one that was `handled`, or sent elsewhere; `held`: closing waits.

        One kernel and little else if none of the run was passed by.
        """
        cursor, reader, at = self.cursor, self.reader, self.start + i
        if handled and self._is_plain():
            if reader.ready_calls.ack(cursor.ready_place, at, at + 1, NO_RESPONSE, 0) >= 0:
                return
        self._settle_open((i,), handled, held)

    def settle_some(self, places: Sequence[int], *, handled: bool = True) -> None:
        """Acknowledge some, which were `handled` or not."""
        if not (handled and self._acked(places)):
            self._settle_open(places, handled, held=False)

    def _settle_open(self, places: Sequence[int], handled: bool, held: bool) -> None:
        """Acknowledge some in Python; a closed store is an error, unless closing waits (`held`)."""
        core = self.reader.core
        if not held:
            core.check_open()
        self._settle(places, handled=handled)
        if not held:  # its offset may be kept without them
            core.check_open()

    def _is_plain(self) -> bool:
        """Tell whether a kernel may acknowledge a part: none was passed by, none is claimed."""
        plain = self.cursor.ready_place >= 0 and not self.reader.claimed
        return plain and self.stop - self.start == self._count > 0

    def _acked(self, places: Sequence[int]) -> bool:
        """Acknowledge by one kernel, if that can be and `places` have no gap."""
        if not self._is_plain() or len(runs := self._runs(places)) != 1:
            return False
        ack, place = self.reader.ready_calls.ack, self.cursor.ready_place
        return ack(place, *runs[0], NO_RESPONSE, 0) >= 0

    def _settle(self, places: Sequence[int], *, handled: bool = True) -> int:
        """Have some be done; return how many were not."""
        reader, cursor = self.reader, self.cursor
        runs = self._runs(places)
        with reader.lock.guard():
            done = sum(cursor.settle(start, stop) for start, stop in runs)
            if handled:
                reader.ready_calls.add_handled(done)
            if reader.claimed:
                reader.claimed.difference_update(
                    (cursor.row, index) for start, stop in runs for index in range(start, stop)
                )
        return done

    def _runs(self, places: Sequence[int]) -> Ranges:
        count = self._count
        if len(places) == count and self.stop - self.start == count:
            return [(self.start, self.stop)]
        if self.stop - self.start == count:  # none was passed by
            start = self.start
            if len(places) == 1:
                return [(start + places[0], start + places[0] + 1)]
            return merged([(start + i, start + i + 1) for i in places])
        return merged([(i, i + 1) for i in self.indexes[list(places)].tolist()])

    def give_back(self, places: Sequence[int]) -> None:
        """Let some be handed out again, to any consumer of the group."""
        self.reader.core.check_process()
        with self.reader.lock.guard():
            for start, stop in self._runs(places):
                self.cursor.take_back(self.topic, start, stop)

    # --- what is appended again, or has a put in its place

    def claiming(self, i: int) -> AbstractContextManager[None]:
        """Claim a message; if an exception comes out, it is released."""
        return self.reader.claiming(self.cursor, self._place(i))

    def _place(self, i: int) -> Place:
        return self.cursor.row, int(self.indexes[i])

    def nack(self, i: int, delay: timedelta | None) -> None:
        """Put a message again as a timer for the group's retry topic, then acknowledge it."""
        reader = self.reader
        with reader.gate.guard():
            with self.claiming(i):
                send_back(reader.putting, reader.name, self.message(i), delay=delay)
            self.settle(i, handled=False, held=True)
            reader.count_failed(1, 1, 0)

    def send_again(self, i: int, wait: Wait, failure: Failure) -> bool:
        """Send one back, or to the dead letters; False if a put has acknowledged it."""
        if self.is_done(i):
            return False
        putting, name, message = self.reader.putting, self.reader.name, self.message(i)
        with self.claiming(i):
            if wait == DROPPED:
                pass
            elif wait == DEAD:
                send_to_dead(putting, name, message, failure, wait=False)
            elif isinstance(wait, timedelta):
                send_back(putting, name, message, delay=wait, wait=False)
            else:
                send_back(putting, name, message, delay_level=wait, wait=False)
        return True

    def ack_and_put(self, i: int, puts: Sequence[NextPut]) -> list[str]:
        """Acknowledge one, and put; return the ids. See `Delivery.ack_and_put_many`."""

        def settle() -> None:
            self.settle(i, held=True)

        return ack_and_put(self.reader, self.cursor, self._place(i), settle, puts)
