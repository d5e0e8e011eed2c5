"""What became of a timer: looked for where its id says, as far as the log is kept.

An id says when its timer is due, and where it was put. What fired stands in its topic's queue from
its due time on; what was cancelled has its delete in the slot of its due time, whose chain of units
stays for days after the slot has passed; what is pending `get` knows. Each look is short if timers
fire in time, and ends after so many messages if they do not. No lock is held while
messages are read, so what fires meanwhile is looked for once more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple

import numpy as np

from timerstore.calls.consuming.consuming import Consuming, first_index
from timerstore.calls.consuming.cursors import HandedState
from timerstore.calls.consuming.delivery import dead_topic
from timerstore.calls.pending.is_pending import unknown_timer
from timerstore.calls.pending.pending import PendingTimers
from timerstore.calls.pending.timers import Timer
from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.jit.record import Words
from timerstore.services.calls.first_puts import find_named
from timerstore.services.looking.read_units import slot_units
from timerstore.services.looking.timer_places import read_kept
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, decode_message, expires_ms, text
from timerstore.timelog.writing.compose import ACKS_TOPIC
from timerstore.values.amounts import Moment
from timerstore.values.ids import format_id, parse_id

TimerState = Literal["pending", "fired", "expired", "cancelled", "moved", "unknown"]
GroupState = HandedState | Literal["sent back", "dead"]

LOOKED_MAX: Final = 200_000
"""Messages that one look reads at most."""
_NEAR_MAX: Final = 4_096
"""Messages that are read for what fired in time."""
_RETRIES_MAX: Final = 50_000
"""Messages that are read to tell what a group has sent back."""
_AT_ONCE: Final = 1_024
_COPIES_MAX: Final = 64
"""A delete that hopped, or was moved by cleaning, leads back to the first over so many copies."""
_ORIGIN_DIGITS: Final = 20
_ID, _DELETES = fmt.PROPERTY_UNIQUE_KEY.decode(), fmt.PROPERTY_DELETES.decode()
_REAL_TOPIC, _ORIGIN = fmt.PROPERTY_REAL_TOPIC.decode(), fmt.PROPERTY_ORIGIN.decode()
_REPLACES: Final = fmt.PROPERTY_REPLACES.decode()
_RETRY, _DEAD = fmt.RETRY_PREFIX.decode(), fmt.DEAD_PREFIX.decode()
_WAITING: Final = (text(fmt.TIMER_TOPIC), text(fmt.LEVEL_TOPIC))
_OWN: Final = (fmt.TIMER_TOPIC, fmt.LEVEL_TOPIC, ACKS_TOPIC)


@dataclass(frozen=True, slots=True)
class GroupFound:
    """What a group did with a message that was fired.

    `state`: "waiting", it was not handed out yet, or not again since the store was opened; "handed
    out"; "sent back", it waits to come again; "dead", it is or was a dead letter; "done", it was
    acknowledged. `attempt` counts from 0. A limited number of later messages is looked at: if
    the retry lies behind these, a message that was sent back is shown as "done".
    """

    group: str
    state: GroupState
    attempt: int


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a timer.

    `state`: "pending"; "fired", at `fired_ms`, and then `offset` is where its message begins in the
    commit log, and `groups` has each group that reads its topic; "expired", it was fired after its
    `expires`, so no group gets it; "cancelled", at `cancelled_ms`;
    "moved", cancelled by a `reschedule` or a put in its place, whose timer is `moved_to`;
    "unknown", and then `why` says why. What is not known is None: of a cancelled timer perhaps
    when that was, of an unknown one what it was.
    """

    id: str
    state: TimerState
    due_ms: int | None = None
    topic: str | None = None
    key: str | None = None
    put_ms: int | None = None
    fired_ms: int | None = None
    cancelled_ms: int | None = None
    moved_to: str | None = None
    offset: int | None = None
    groups: tuple[GroupFound, ...] = ()
    why: str | None = None

    due = Moment[datetime | None]("When it is, or was, due, in UTC.")
    put = Moment[datetime | None]("When it was put, in UTC.")
    fired = Moment[datetime | None]("When it was fired, in UTC.")
    cancelled = Moment[datetime | None]("When it was cancelled, in UTC.")


class _Range(NamedTuple):
    """Entries of a queue that are looked through."""

    row: int
    start: int
    stop: int


class _Place(NamedTuple):
    """A message that was found, with its place in its queue."""

    row: int
    at: int
    message: Message


def find(core: Core, consuming: Consuming, timers: PendingTimers, id: str) -> Found:
    """Tell what became of a timer; see `TimerStore.find`."""
    if not isinstance(id, str):
        raise InvalidArgumentError(f"id is {id!r}. Pass an id that put returned, a str.")
    with core.gate.guard():
        core.check_open()
        parsed = parse_id(id)
        if parsed is None or parsed.tag != core.engine.store_tag:
            return _foreign(timers.get(id), id)
        digits = format_id(*parsed)
        return _Search(core, consuming, timers, digits, parsed.due_ms, parsed.offset).run()


def _foreign(timer: Timer | None, id: str) -> Found:
    if timer is not None:
        return _pending(timer, id)
    why = "It is not pending, and a broker's key does not say where in the log to look."
    return Found(id, "unknown", why=why)


def _pending(timer: Timer, id: str) -> Found:
    return Found(id, "pending", timer.due_ms, timer.topic, timer.key, timer.put_ms)


class _Search:
    """Looks for one timer of this store."""

    def __init__(
        self,
        core: Core,
        consuming: Consuming,
        timers: PendingTimers,
        id: str,
        due_ms: int,
        offset: int,
    ) -> None:
        self.core, self.consuming, self.timers = core, consuming, timers
        self.engine, self.queues, self.log = core.engine, core.engine.queues, core.engine.commitlog
        self.id, self.due_ms, self.offset = id, due_ms, offset & ~fmt.LEVEL_MARK
        self.is_cut = False  # a look ended at its limit

    def run(self) -> Found:
        known = self.timers.is_pending(self.id)
        if known and (timer := self.timers.get(self.id)):
            return _pending(timer, self.id)
        first = self._first_put()
        if known is False:
            return self._cancelled(first, self._delete_in_slot() or self._delete_in_log())
        ends = self._fired_ends(first)
        found = self._fired(ends, {}, _NEAR_MAX)  # most often it was in time
        if found is None and (delete := self._delete_in_slot()):
            return self._cancelled(first, delete)
        self.is_cut = False
        found = found or self._settled(first, ends, {})
        if found is None and (timer := self.timers.get(self.id)):
            return _pending(timer, self.id)
        # It may have fired meanwhile, or been cancelled.
        return found or self._settled(first, self._fired_ends(first), ends) or self._unknown(first)

    def _settled(
        self, first: Message | None, ends: dict[int, int], starts: dict[int, int]
    ) -> Found | None:
        """Look for what it became, or for its delete, wherever these can be."""
        if found := self._fired(ends, starts, LOOKED_MAX):
            return found
        delete = self._delete_in_log()
        return None if delete is None else self._cancelled(first, delete)

    def _first_put(self) -> Message | None:
        """Return the message that the id names; None if it was removed, or is damaged."""
        if self.offset >= self.log.end:
            raise unknown_timer(self.id)
        return self._read(self.offset)

    def _read(self, offset: int) -> Message | None:
        """Read a message that has the id; None if there is none."""
        if not self.log.start <= offset < self.log.end:
            return None
        if not any(True for _ in find_named(self.engine, np.array([offset], np.int64), self.id)):
            return None
        try:
            return decode_message(self.log.view(offset), offset)
        except CorruptStoreError as e:
            if offset >= self.log.start:
                self.engine.damage.note(e.file, e.offset, e.reason)
            return None

    # --- fired

    def _fired_ends(self, first: Message | None) -> dict[int, int]:
        """Return the queues that it can have fired into, each with its end."""
        if first is not None:
            topic = first.properties.get(_REAL_TOPIC, "")
            rows = self.queues.rows(topic.encode("utf-8", "surrogateescape"))
        else:
            rows = [row for row, topic in enumerate(self.queues.topics) if _is_real(topic)]
        return {row: self.queues.next_index(row) for row in rows}

    def _fired(self, ends: dict[int, int], starts: dict[int, int], limit: int) -> Found | None:
        """Look for what it became: first from its due time on, then where the clock went back.

        `ends`, `starts`: of queues by their rows. `limit`: so many messages of either at most.
        """
        later, before = [], []
        for row, end in ends.items():
            low = max(starts.get(row, 0), self._index_behind(row, self.offset))
            middle = min(end, max(low, first_index(self.core, row, self.due_ms)))
            later.append(_Range(row, middle, end))
            before.append(_Range(row, low, middle))
        for ranges in (later, before):
            for place in self._named(ranges, limit):
                message = place.message
                if message.properties.get(_ID) == self.id and message.topic not in _WAITING:
                    return self._as_fired(place)
        return None

    def _as_fired(self, place: _Place) -> Found:
        message = place.message
        return Found(
            id=self.id,
            state="fired" if message.stored_ms <= expires_ms(message) else "expired",
            due_ms=self.due_ms,
            topic=message.topic,
            key=message.properties.get("KEYS"),
            put_ms=message.born_ms,
            fired_ms=message.stored_ms,
            offset=message.offset,
            groups=self._groups(place),
        )

    # --- cancelled

    def _cancelled(self, first: Message | None, delete: Message | None) -> Found:
        moved_to = None if delete is None else self._replacement(delete)
        topic, key, put_ms = None, None, None
        if first is not None:
            topic, key = first.properties.get(_REAL_TOPIC), first.properties.get("KEYS")
            put_ms = first.born_ms
        return Found(
            id=self.id,
            state="cancelled" if moved_to is None else "moved",
            due_ms=self.due_ms,
            topic=topic or (None if delete is None else delete.properties.get(_REAL_TOPIC)),
            key=key,
            put_ms=put_ms,
            cancelled_ms=None if delete is None else delete.born_ms,
            moved_to=moved_to,
        )

    def _is_delete(self, message: Message) -> bool:
        return message.topic == _WAITING[0] and message.properties.get(_DELETES, "").endswith(
            self.id
        )

    def _delete_in_slot(self) -> Message | None:
        """Return its delete from the chain of its slot, which need not be passed yet."""
        looked = 0
        for units in slot_units(self.engine, self.due_ms // self.engine.precision_ms):
            is_delete = units.magic & fmt.UNIT_DELETE != 0
            messages = np.sort(units.message[is_delete])
            for place in find_named(self.engine, messages, self.id):
                message = self._read(int(messages[place]))
                if message is not None and self._is_delete(message):
                    return message
            looked += len(units)
            if looked >= LOOKED_MAX:
                self.is_cut = True
                break
        return None

    def _delete_in_log(self) -> Message | None:
        """Return its delete from the timer topic's queue, behind the timer."""
        row = self.queues.rows(fmt.TIMER_TOPIC)[0]
        start = self._index_behind(row, self.offset)
        ranges = [_Range(row, start, self.queues.next_index(row))]
        found = (each.message for each in self._named(ranges, LOOKED_MAX))
        return next((each for each in found if self._is_delete(each)), None)

    def _replacement(self, delete: Message) -> str | None:
        """Return the id of the timer that was appended with the first copy of a delete."""
        for _ in range(_COPIES_MAX):
            origin = delete.properties.get(_ORIGIN, "")
            if not (origin.isascii() and origin.isdigit() and len(origin) <= _ORIGIN_DIGITS):
                break
            before = self._read(int(origin))
            if before is None or not self._is_delete(before):
                return None
            delete = before
        row, index = self.queues.rows(fmt.TIMER_TOPIC)[0], delete.queue_index - 1
        if delete.queue_id != 0 or not self.queues.first_index(row) <= index:
            return None
        for offset in self._offsets(_Range(row, index, index + 1))[0].tolist():
            try:
                message = decode_message(self.log.view(offset), offset)
            except CorruptStoreError:
                return None
            if message.properties.get(_REPLACES) == self.id:
                return message.properties.get(_ID)
        return None

    # --- neither

    def _unknown(self, first: Message | None) -> Found:
        why = "No message that the log still has names it: its messages were removed."
        if self.is_cut:
            why = f"It is not among the {LOOKED_MAX:,} messages that were looked at in each place."
        elif first is not None:
            why = (
                "The log does not say what became of it. Run `timerstore verify`, which names "
                "damage."
            )
        topic = None if first is None else first.properties.get(_REAL_TOPIC)
        key = None if first is None else first.properties.get("KEYS")
        put_ms = None if first is None else first.born_ms
        return Found(self.id, "unknown", self.due_ms, topic, key, put_ms, why=why)

    # --- groups

    def _groups(self, place: _Place) -> tuple[GroupFound, ...]:
        """Return what each group that reads a fired message's topic did with it."""
        topic, names = place.message.topic, set[str]()
        for other, name in self.core.offsets.snapshot():
            names |= {name} if other == topic else set()
        names |= {each.name for each in self.consuming.known_groups() if each.topic == topic}
        states = {name: self.consuming.state_of(topic, name, place.row, place.at) for name in names}
        is_done = [name for name, state in states.items() if state == "done"]
        sent = self._sent_back(place, is_done) if is_done else {}
        return tuple(sent.get(name) or GroupFound(name, states[name], 0) for name in sorted(names))

    def _sent_back(self, place: _Place, names: Iterable[str]) -> dict[str, GroupFound]:
        """Return what became of it in the groups that have sent it back, or given it up."""
        topics = {f"{_RETRY}{name}": name for name in names}
        dead = {dead_topic(name): name for name in names}
        rows = [
            row
            for topic in (*topics, *dead, _WAITING[1])
            for row in self.queues.rows(topic.encode("utf-8", "surrogateescape"))
        ]
        found = dict[str, _Place]()
        for some in (rows, self.queues.rows(fmt.TIMER_TOPIC)):
            ranges = []
            for row in some:
                start = self._index_behind(row, place.message.offset)
                ranges.append(_Range(row, start, self.queues.next_index(row)))
            for each in self._named(ranges, _RETRIES_MAX):
                properties, topic = each.message.properties, each.message.topic
                if topic in _WAITING:
                    topic = properties.get(_REAL_TOPIC, "")
                name = topics.get(topic) or dead.get(topic)
                if name is None or properties.get(_ID) != self.id or _DELETES in properties:
                    continue
                if name not in found or found[name].message.offset < each.message.offset:
                    found[name] = each
        return {name: self._group_of(name, each) for name, each in found.items()}

    def _group_of(self, name: str, last: _Place) -> GroupFound:
        """Return a group's state by the last message that it has sent somewhere."""
        message = last.message
        state: GroupState = "sent back"
        if message.topic == dead_topic(name):
            state = "dead"
        elif message.topic not in _WAITING:
            state = self.consuming.state_of(message.topic, name, last.row, last.at)
        return GroupFound(name, state, message.reconsume_times)

    # --- queues

    def _index_behind(self, row: int, offset: int) -> int:
        """Return the first index of a queue whose message lies behind an offset. O(log entries)."""
        high = self.queues.next_index(row)
        low = min(high, self.queues.first_kept(row, self.log.start))

        def is_behind(index: int) -> bool:
            messages, _ = self._offsets(_Range(row, index, index + 1))
            return not len(messages) or bool(messages[0] > offset)

        return low + bisect_left(range(low, high), True, key=is_behind)

    def _named(self, ranges: list[_Range], limit: int) -> Iterator[_Place]:
        """Yield the messages with the id among some entries, from each queue some in turn."""
        left = [each for each in ranges if each.start < each.stop]
        while left:
            following = []
            for row, start, stop in left:
                if limit <= 0:
                    self.is_cut = True
                    return
                end = min(stop, start + min(_AT_ONCE, limit))
                limit -= end - start
                messages, first = self._offsets(_Range(row, start, end))
                for place in find_named(self.engine, messages, self.id):
                    message = self._read(int(messages[place]))
                    if message is not None:
                        yield _Place(row, first + place, message)
                if end < stop:
                    following.append(_Range(row, end, stop))
            left = following

    def _offsets(self, entries: _Range) -> tuple[Words, int]:
        """Return where the messages of entries begin, and the index of the first that is kept."""
        row, start, stop = entries
        kept = read_kept(self.engine, row, start, stop)
        return kept["offset"].astype(np.int64), stop - len(kept)


def _is_real(topic: bytes) -> bool:
    return topic not in _OWN and not topic.startswith((fmt.RETRY_PREFIX, fmt.DEAD_PREFIX))
