"""What can be asked from outside, by name; whether a call whose answer was lost was made."""

from __future__ import annotations

import inspect
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.calls.consuming.consuming import begin_groups, check_start
from timerstore.calls.consuming.delivery import (
    DEAD,
    DROPPED,
    EXPIRED,
    WAIT_S,
    Failure,
    arrow_int64,
    expired,
)
from timerstore.calls.consuming.group import Group
from timerstore.calls.consuming.groupreader import read_queued
from timerstore.calls.consuming.run import Run
from timerstore.calls.consuming.sendback import wait_durable, wait_ms
from timerstore.calls.consuming.turns import Rate
from timerstore.calls.pending.timers import Timer
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    StoreClosedError,
    TooLateError,
)
from timerstore.share.framecolumns import read_table, write_ids, write_table
from timerstore.share.session import Session
from timerstore.share.wire import Part, from_json, to_json, wrong_arguments
from timerstore.store.store import TimerStore
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import NEVER, Message, expires_ms
from timerstore.values.check_arguments import DUE_MS_MAX, check_group, check_topic_to_consume
from timerstore.values.ids import TimerId, TimerIds, joined, parse_id
from timerstore.values.kinds import check_int
from timerstore.values.puts import Many, Put
from timerstore.watching.any_store import CALLS
from timerstore.watching.topics import read_fired, read_seconds_ahead

# --- acknowledging and describing by id, also for another process
#
# A client asks for it whose owner was lost: the next one knows nothing of what the last one handed
# out, and the places in the log are the same.


@inside
def ack_known(
    group: Group, ids: Sequence[str], offsets: Sequence[int], *, handled: bool = True
) -> int:
    """Acknowledge messages that are not yet done; return how many. Durable with the next flush.

    What is no message of that id in a queue of the group is passed by. What an ordered consumer
    reads is left to it. O(messages).
    """
    core = group.core
    core.check_open()
    if group.owner is not None:
        return 0
    places = [_place_of(group, *each) for each in zip(ids, offsets, strict=True)]
    group.has_hidden()  # it looks which queues there are
    with group.lock.guard():
        found = [(group.cursors.get(row), index) for row, index in filter(None, places)]
        count = sum(cursor.settle_anywhere(index) for cursor, index in found if cursor is not None)
        if handled:
            group.ready_calls.add_handled(count)
    return count


@inside
def describe_known(
    group: Group, ids: Sequence[str], offsets: Sequence[int]
) -> list[dict[str, Any]] | None:
    """Return messages without their bodies; None if one is not there any more. O(messages)."""
    group.core.check_open()
    found = [_message_at(group, *each) for each in zip(ids, offsets, strict=True)]
    known = [each for each in found if each is not None]
    return _without_bodies(known) if len(known) == len(found) else None


def _without_bodies(messages: Iterable[Message]) -> list[dict[str, Any]]:
    return [{k: v for k, v in each._asdict().items() if k != "body"} for each in messages]


def _place_of(group: Group, id: str, offset: int) -> tuple[int, int] | None:
    """Return row and index of the entry of a message; None if it is not that one."""
    message, queues = _message_at(group, id, offset), group.core.engine.queues
    if message is not None:
        for row in queues.rows(message.topic.encode("utf-8", "surrogateescape")):
            if queues.table.queue_id[row] == message.queue_id:
                return row, message.queue_index
    return None


def _message_at(group: Group, id: str, offset: int) -> Message | None:
    """Return the message that begins there; None if it is not the one with that id."""
    engine = group.core.engine
    if not engine.commitlog.start <= offset < engine.commitlog.end:
        return None
    try:
        message = group.decode(offset, engine.commitlog.pin(offset, offset + 1))
    except CorruptStoreError:  # removed, or no message's begin
        return None
    return message if message.properties.get("UNIQ_KEY", "") == id else None


# --- whether a call whose answer was lost was made: the log's tail tells
#
# A put through a client carries the name of the connection that it came by (`PUT_BY`), on which one
# call is under way at a time. What that name put behind the place that the log had reached when the
# call began is therefore what this very call put, whichever process owned the store then. A moved
# timer names the one in whose place it came. Cleaning and rolling copy both names, and the id,
# which says where the first put stood; so a copy tells the same.
#
# What has fired, was consumed and removed is not there any more. If the log begins behind that
# place and something is missing, nobody knows whether it was put. Then it is not put again.


_PUT_BY, _REPLACES = fmt.PROPERTY_PUT_BY.decode(), fmt.PROPERTY_REPLACES.decode()


@inside
def find_put_by(core: Core, name: str, since: int, count: int) -> list[TimerId]:
    """Return what a name put behind an offset of the log, `count` timers at most, in their order.

    O(messages behind it). Raises StoreClosedError if that is not known.
    """
    core.check_open()
    found = {id for id, message in _puts(core, since) if message.properties.get(_PUT_BY) == name}
    if len(found) < count:
        _check_kept(core, since)
    return sorted(found, key=lambda id: id.offset & ~fmt.LEVEL_MARK)


@inside
def find_moved(core: Core, id: str, due_ms: int | None, since: int) -> str | None:
    """Return the id of the timer that came in another one's place behind an offset.

    `due_ms`: it is due then; None: whenever. Raises StoreClosedError if that is not known.
    """
    core.check_open()
    for moved, message in _puts(core, since):
        if message.properties.get(_REPLACES) == id and due_ms in (None, moved.due_ms):
            return message.properties["UNIQ_KEY"]
    _check_kept(core, since)
    return None


def _check_kept(core: Core, since: int) -> None:
    """Refuse to guess what stood in a part of the log that was removed."""
    if core.engine.commitlog.start > since:
        raise StoreClosedError(
            f"The process that had {core.path} open ended before it answered, and the part of "
            "the log that would show its last calls was removed. It may have made the call: "
            "check that, then try again."
        )


def _puts(core: Core, since: int) -> Iterator[tuple[TimerId, Message]]:
    """Yield what was put behind an offset: the message itself, and its copies that wait."""
    queues, tag = core.engine.queues, core.engine.store_tag
    for topic in (fmt.TIMER_TOPIC, fmt.LEVEL_TOPIC):
        for row in queues.rows(topic):
            stop = queues.next_index(row)
            for _, message in read_queued(core, row, _first_behind(core, row, since), stop):
                id = parse_id(message.properties.get("UNIQ_KEY", ""))
                if id is not None and id.tag == tag and id.offset & ~fmt.LEVEL_MARK >= since:
                    yield id, message


def _first_behind(core: Core, row: int, since: int) -> int:
    """Return the index of a queue's first entry that lies at an offset or behind it. O(log)."""
    queues = core.engine.queues
    low, high = queues.first_kept(row, core.engine.commitlog.start), queues.next_index(row)
    return low + bisect_left(
        range(low, high), since, key=lambda index: int(queues.read(row, index, 1)[0]["offset"])
    )


# --- what can be asked, by name


OWN: Final = (
    *("put", "put_many", "cancel_many", "reschedule", "pending", "pending_columns", "pull"),
    *("begin_groups", "ack", "ack_known", "retry", "nack", "ack_and_put", "give_back", "describe"),
    *("describe_known", "pause", "fired", "seconds_ahead", "beat"),
)
"""Calls that have a method here."""
PLAIN: Final = tuple(name for name in CALLS if name not in (*OWN, "consume", "close"))
"""All others of `AnyStore`, which are made as they are."""
MADE_ONCE: Final = frozenset(
    (
        *("put", "put_many", "reschedule", "cancel", "cancel_key", "cancel_many"),
        *("ack", "ack_known", "nack", "retry", "ack_and_put"),
        *("retry_dead_letters", "drop_dead_letters", "forget_group"),
    )
)
"""Calls whose answer is kept until the next one on the same connection, in case it is lost."""
_SHORTEST: Final = frozenset(("body", "topic", "at_ms"))
"""What a put is given that says no more than it must."""
REPLY_BYTES: Final = 32 << 20
"""Of the bodies in one batch."""
_WAITING_MAX: Final = 32
"""Pulls that wait at once: a kernel wakes 64 threads, and the owner has some of its own."""
_LISTED_AT_ONCE: Final = 500
_LISTED_BYTES: Final = 4 << 20
"""Of their bodies; one more timer may be longer."""
_LOOK_MS: Final = 50.0
TOPICS_MAX: Final = 1_000
"""In one pull."""

Answer = tuple[Any, Sequence[Part]]


@dataclass(slots=True)
class Asked:
    """A question, with who asks it.

    `put_by`: the name of a client's connection; `carried`: the property of what it puts that says
    so. `since`: the log's end before it was asked first. `again`: it was asked before, and the
    answer was lost.
    """

    session: Session
    put_by: str | None
    parts: list[Part]
    since: int
    again: bool
    carried: bytes = b""
    pulled: str | None = None  # the batch that the answer brings


class Answers:
    """The calls of one open store."""

    def __init__(self, store: TimerStore) -> None:
        self._store, self._core = store, store.core
        self._waiting = threading.BoundedSemaphore(_WAITING_MAX)

    def answer(self, asked: Asked, name: object, arguments: object) -> Answer:
        """Make a call; raises what it raises."""
        try:
            given = from_json(arguments)
        except RecursionError as e:
            raise InvalidArgumentError("The arguments are nested too deep. Send flat ones.") from e
        if not isinstance(given, dict):
            raise InvalidArgumentError("The arguments are no JSON object. Send a JSON object.")
        if name not in OWN:
            if name in PLAIN:
                return to_json(self._plain(str(name), given)), ()
            calls = ", ".join(sorted(PLAIN + OWN))
            raise InvalidArgumentError(f"There is no call {name!r}. Use one of {calls}.")
        try:
            answer: Answer = getattr(self, f"_{name}")(asked, **given)
        except TypeError as e:
            raise wrong_arguments(name, e) from e
        return answer

    def _plain(self, name: str, given: dict[str, Any]) -> Any:
        call = getattr(self._store, name)
        try:
            inspect.signature(call).bind(**given)
        except TypeError as e:
            raise wrong_arguments(name, e) from e
        return call(**given)

    def _beat(self, asked: Asked) -> Answer:
        return None, ()

    # --- putting

    def _put(self, asked: Asked, **given: Any) -> Answer:
        """Put one; a client's body is the part behind the header."""
        if asked.parts:
            given["body"] = asked.parts[0]
        if asked.again and (ids := self._put_before(asked, 1)):
            return ids[0], ()
        if asked.carried and given.keys() == _SHORTEST:
            put = Put(given["body"], given["topic"], at_ms=given["at_ms"])
            if id := self._store.putting.short_way.put(put, asked.carried):
                if self._core.is_group:
                    self._core.wait_durable()
                return id, ()
        return self._store.put(**self._by(asked, given)), ()

    def _by(self, asked: Asked, given: dict[str, Any]) -> dict[str, Any]:
        if asked.put_by is None:
            return given
        properties = given.get("properties") or {}
        return given | {"properties": {**properties, fmt.PROPERTY_PUT_BY.decode(): asked.put_by}}

    def _put_before(self, asked: Asked, count: int) -> TimerIds:
        """Return what was put when this was asked before, `count` at most; durable on return."""
        found = find_put_by(self._core, str(asked.put_by), asked.since, count)
        if found and self._core.is_group:
            self._core.wait_durable()
        due_ms, offsets = ([id.due_ms for id in found], [id.offset for id in found])
        return TimerIds(_int64s(due_ms), _int64s(offsets), self._core.engine.store_tag)

    def _put_many(self, asked: Asked, **given: Any) -> Answer:
        """Put the rows that were not put when this was asked before.

        Who has no columns sends bodies, at_ms, keys as lists.
        """
        if asked.put_by is None:
            return list(self._store.put_many(**given)), ()
        table = read_table(asked.parts)
        tag = self._core.engine.store_tag
        done = TimerIds(_int64s([]), _int64s([]), tag)
        if asked.again:
            done = self._put_before(asked, table.num_rows)[: table.num_rows]
            table = table.slice(len(done))
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        if "body" not in columns or not columns.keys() <= {"body", "at_ms", "key"}:
            raise InvalidArgumentError("Send the columns body, at_ms and key.")
        times = columns.get("at_ms")
        if times is not None and (times.type != pa.int64() or times.null_count):
            raise InvalidArgumentError("at_ms is no array of int64. Send one time for each body.")
        try:
            many = Many(
                given.get("topic"),  # type: ignore[arg-type]
                None if times is None else np.from_dlpack(times),
                keys=columns.get("key"),
                tag=given.get("tag"),
                delay_level=given.get("delay_level"),
                expires=given.get("expires_ms"),
            )
            ids = self._store.putting.put_many(columns["body"], many, carried=asked.carried)
        except Exception as e:
            put = getattr(e, "ids", None)
            e.ids = joined([done, put]) if isinstance(put, TimerIds) else done  # type: ignore[attr-defined]
            raise
        return tag, write_ids(joined([done, ids]))

    def _cancel_many(self, asked: Asked, ids: Any) -> Answer:
        verdicts = self._store.cancel_many(ids)
        if asked.put_by is None:  # who has no columns
            return verdicts.tolist(), ()
        return None, [verdicts.tobytes()]

    def _reschedule(self, asked: Asked, id: Any, **given: Any) -> Answer:
        try:
            return self._store.reschedule(id, **given), ()
        except TooLateError:
            due_ms = given.get("at_ms")
            if asked.again and isinstance(id, str):
                moved = find_moved(self._core, id.upper(), due_ms, asked.since)
                if moved is not None:
                    if self._core.is_group:
                        self._core.wait_durable()
                    return moved, ()
            raise

    # --- looking

    def _pending(self, asked: Asked, listing: Any = None, **given: Any) -> Answer:
        """Begin a listing, or go on with one; return its next timers, its name if it has more."""
        if listing is None:
            listing = asked.session.begin(self._store.pending(**given))
        timers, length = list[Timer](), 0
        for timer in islice(asked.session.listing(listing), _LISTED_AT_ONCE):
            timers.append(timer)
            length += len(timer.body)
            if length >= _LISTED_BYTES:
                break
        if len(timers) < _LISTED_AT_ONCE and length < _LISTED_BYTES:
            asked.session.end_listing(listing)
            listing = None
        return {"listing": listing, "timers": to_json(timers)}, ()

    def _pending_columns(self, asked: Asked, **given: Any) -> Answer:
        return None, write_table(self._store.pending_columns(**given))

    def _fired(self, asked: Asked, **given: Any) -> Answer:
        return to_json(read_fired(self._core, **given)), ()

    def _seconds_ahead(self, asked: Asked) -> Answer:
        return read_seconds_ahead(self._core), ()

    # --- consuming

    def _pull(
        self,
        asked: Asked,
        topics: Any,
        group: Any,
        max_count: Any,
        timeout: Any,
        tags: Any = None,
        rate: Any = None,
        buries_expired: Any = None,
    ) -> Answer:
        """Pull from the first topic that has something; with `tags` say more of each message.

        `rate`: rate, burst, rate_by, as a consumer was given them. `buries_expired`: its rule for
        what expired; its group has it from now on.
        """
        if rate is not None and not (isinstance(rate, list) and len(rate) == 3):
            raise InvalidArgumentError("Send rate, burst and rate_by as one list.")
        told = Rate.of(*rate) if rate else None
        if not isinstance(topics, list) or not 1 <= len(topics) <= TOPICS_MAX:
            raise InvalidArgumentError(f"Send 1 to {TOPICS_MAX} topics.")
        if buries_expired is not None:
            for topic in topics:
                self._store.consuming.group(topic, group).buries_expired = bool(buries_expired)
        wait_s = min(WAIT_S, timeout) if isinstance(timeout, int | float) else WAIT_S
        batch = self._pull_now(topics, group, max_count, told)
        if batch is None and wait_s > 0:
            if not self._waiting.acquire(timeout=wait_s):
                return None, ()
            try:
                until_s = time.monotonic() + wait_s
                batch = self._pull_soon(topics, group, max_count, until_s, told)
            finally:
                self._waiting.release()
        if batch is None:
            return None, ()
        try:
            table = batch.to_arrow().append_column("offset", arrow_int64(batch.offsets))
            if tags:
                table = table.append_column("tags_code", arrow_int64(batch.tags_codes))
            parts = write_table(table)
        except BaseException:
            batch.give_back(range(len(batch)))
            raise
        asked.pulled = asked.session.hold(batch)
        said = {"batch": asked.pulled, "topic": batch.topic, "retry": batch.is_retry}
        return said | {"expires_ms": batch.expires_ms}, parts

    def _pull_now(
        self, topics: list[Any], group: Any, max_count: Any, rate: Rate | None
    ) -> Run | None:
        consuming = self._store.consuming
        for topic in topics:
            if rate is None:
                batch = consuming.pull_some(topic, group, max_count, REPLY_BYTES)
            else:
                batch = consuming.pull_in_turn(rate, topic, group, max_count, REPLY_BYTES)
            if batch:
                return batch
        return None

    def _pull_soon(
        self, topics: list[Any], group: Any, max_count: Any, until_s: float, rate: Rate | None
    ) -> Run | None:
        """Pull once one of the topics has something, until a time."""
        waiting = self._store.consuming.waiting(topics, group)
        with waiting, self._core.waiters.waiter() as waiter:
            while True:
                waiter.arm()
                batch = self._pull_now(topics, group, max_count, rate)
                left_s = until_s - time.monotonic()
                if batch is not None or left_s <= 0:
                    return batch
                wait_ms = min(_LOOK_MS, 1_000 * left_s)
                if rate is not None:
                    groups = [self._store.consuming.group(topic, group) for topic in topics]
                    wait_ms = min(wait_ms, *(each.turn_ms() for each in groups))
                waiter.wait(wait_ms)

    def _ack(self, asked: Asked, batch: Any, places: Any = None, handled: Any = True) -> Answer:
        return asked.session.settle(batch, places, handled=handled is not False), ()

    def _ack_known(
        self, asked: Asked, topic: Any, group: Any, ids: Any, offsets: Any, handled: Any = True
    ) -> Answer:
        """Acknowledge what an earlier owner handed out, or what was taken back."""
        _check_places(ids, offsets)
        found = self._store.consuming.group(topic, group)
        return ack_known(found, ids, offsets, handled=handled is not False), ()

    def _retry(
        self, asked: Asked, batch: Any, place: Any, level: Any, failure: Any, delay_ms: Any = None
    ) -> Answer:
        """Send a message back through a delay level or after a time, or to the dead letters."""
        wait = level
        if delay_ms is not None:
            wait = timedelta(milliseconds=check_int(delay_ms, "delay_ms", 0, DUE_MS_MAX))
            if level is not None:
                raise InvalidArgumentError("Send level, or delay_ms.")

        def do(held: Run) -> bool:
            told = replace(Failure(*failure[:2]), was_handled=all(failure[2:]))
            then, why = self._unless_late(held, place, wait, told)
            if held.send_again(place, then, why):
                wait_durable(self._store.putting)
                held.settle_some([place], handled=False)
                is_expired, is_dead = why.kind == EXPIRED, then == DEAD
                is_back = then not in (DEAD, DROPPED)
                held.reader.count_failed(why.was_handled, is_back, is_dead, is_expired)
            return True

        return asked.session.use(batch, place, do), ()

    def _unless_late(
        self, held: Run, place: int, wait: Any, failure: Failure
    ) -> tuple[Any, Failure]:
        """Return what becomes of a message: it is given up if it expires before it comes again.

        A client does not know how long a delay level is.
        """
        is_level = type(wait) is int and wait > 0
        if held.expires_ms == NEVER or not (is_level or isinstance(wait, timedelta)):
            return wait, failure
        last_ms = expires_ms(held.message(place))
        if self._core.clock.now_ms + wait_ms(self._core, wait) <= last_ms:
            return wait, failure
        return DEAD if held.reader.buries_expired else DROPPED, expired(last_ms, failure)

    def _begin_groups(self, asked: Asked, pairs: Any, start: Any) -> Answer:
        if not isinstance(pairs, list) or not all(
            isinstance(each, list) and len(each) == 2 for each in pairs
        ):
            raise InvalidArgumentError("Send pairs of a topic and a group.")
        for topic, group in pairs:
            check_topic_to_consume(topic)
            check_group(group)
        check_start(start)
        begin_groups(self._store.consuming, [(topic, group) for topic, group in pairs], start)
        return None, ()

    def _nack(self, asked: Asked, batch: Any, place: Any, delay_s: Any = None) -> Answer:
        delay = None if delay_s is None else _duration("delay_s", delay_s)
        asked.session.use(batch, place, lambda held: held.nack(place, delay))
        return None, ()

    def _ack_and_put(self, asked: Asked, batch: Any, place: Any, puts: Any) -> Answer:
        if not isinstance(puts, list) or not all(isinstance(each, dict) for each in puts):
            raise InvalidArgumentError("puts is no list of objects. Send a list of objects.")
        if asked.again and (ids := self._put_before(asked, 1)):
            return list(ids), ()
        named: Any = [self._by(asked, each) for each in puts]
        ids_now = asked.session.use(batch, place, lambda held: held.ack_and_put(place, named))
        if ids_now is None:
            raise TooLateError(
                "Nothing was put: the message was acknowledged or sent back before, or the store "
                "has another owner now, which hands it out again."
            )
        return ids_now, ()

    def _give_back(self, asked: Asked, batch: Any, places: Any) -> Answer:
        asked.session.give_back(batch, places)
        return None, ()

    def _describe(self, asked: Asked, batch: Any, start: Any, stop: Any) -> Answer:
        """Return some of a batch's messages without their bodies; None if it was taken back."""
        held = asked.session.batch(batch)
        if held is None or not 0 <= start <= stop <= len(held):
            return None, ()
        return _without_bodies(held.message(i) for i in range(start, stop)), ()

    def _describe_known(
        self, asked: Asked, topic: Any, group: Any, ids: Any, offsets: Any
    ) -> Answer:
        """Return the same of what an earlier owner handed out, or what was taken back."""
        _check_places(ids, offsets)
        return describe_known(self._store.consuming.group(topic, group), ids, offsets), ()

    # --- switches

    def _pause(self, asked: Asked, duration_s: Any = None, **given: Any) -> Answer:
        duration = None if duration_s is None else _duration("duration_s", duration_s)
        self._store.pause(duration=duration, **given)
        return None, ()


def _check_places(ids: Any, offsets: Any) -> None:
    """Refuse what does not say which messages are meant."""
    is_sound = isinstance(ids, list) and isinstance(offsets, list) and len(ids) == len(offsets)
    if not is_sound or not all(type(each) is int for each in offsets):
        raise InvalidArgumentError("Send ids, and as many offsets, whole numbers.")


def _duration(name: str, seconds: Any) -> timedelta:
    try:
        return timedelta(seconds=float(seconds))
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidArgumentError(f"{name} is {seconds!r}. Pass seconds.") from e


def _int64s(values: list[int]) -> Any:
    return np.array(values, np.int64)
