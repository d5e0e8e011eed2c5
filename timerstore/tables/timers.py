"""The table `timers`: what is pending, as recovery would find it.

`wheel/judge.py` says what makes a timer pending. Here are the places where they stand: they are
read unit by unit and entry by entry, so that any range of the timer log or of a queue can be read
by itself; and what settles that a message at such a place is not pending any more, which is found
once for each view of a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.jit.record import Words
from timerstore.services.engine.rebuild import TIMERS, read_mark
from timerstore.tables.arrays import Log
from timerstore.tables.bounds import HIGHEST, LOWEST, Bounds, Flags, java_hash
from timerstore.tables.commitlog import (
    MessageRows,
    in_timer_topic,
    in_topic,
    pieces,
    read_log,
)
from timerstore.tables.records import unit_faults
from timerstore.tables.schema import Column
from timerstore.tables.view import StoreView, level_ranges, level_targets, read_level
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.bytes.message import GOOD, REASONS, MessageParts
from timerstore.timelog.bytes.unit import UNIT_GOOD, LoggedUnits
from timerstore.timelog.reading import scan
from timerstore.timelog.reading.pastdamage import BrokerCopies
from timerstore.timelog.reading.reader import Fault, read_entries
from timerstore.timelog.reading.scan import LoggedMessages, LoggedParts
from timerstore.timelog.reading.units import Wanted, walk_units
from timerstore.wheel.cancelled import CancelledTimers, new_table
from timerstore.wheel.judge import (
    DELETE,
    GONE,
    IN_MESSAGE,
    PENDING,
    PlacesRead,
    Reading,
    read_places,
)

CHUNK_MESSAGES: Final = 16_384
"""Messages that are read in one step: 5 MB of rows and parts."""
NO_UNIT: Final = -1
_NOTHING: Final = np.zeros(0, np.int64)
_HOPPED: Final = "hopped"


class Places(NamedTuple):
    """Messages that may be pending, with the units that hold them; int64[n] each."""

    message: Words
    unit: Words  # −1 if there is none yet
    slot: Words
    level_due_ms: Words  # of what waits in a delay level, else IN_MESSAGE
    due_ms: Words  # exact, as the unit or the level's entry says it; IN_MESSAGE: read the message
    size: Words  # of the message, as the unit says it
    is_within: Flags  # the unit says that it is due within the bounds

    @staticmethod
    def without_unit(message: Words, level_due_ms: Words | None = None) -> Places:
        """Return messages that have no unit."""
        nowhere = np.full(len(message), NO_UNIT, np.int64)
        if level_due_ms is None:
            level_due_ms = np.full(len(message), IN_MESSAGE, np.int64)
        unsaid = np.zeros(len(message), np.bool_)
        return Places(message, nowhere, nowhere, level_due_ms, level_due_ms, nowhere, unsaid)

    def choose(self, chosen: Any) -> Places:
        """Return those that are chosen: bool[n], a slice, or indexes."""
        return Places(*(each[chosen] for each in self))

    def whose_message_is_there(self, view: StoreView) -> Flags:
        """Tell of which the segment is there that holds the message: bool[n]."""
        log = view.reader.commitlog
        there: Flags = np.isin(self.message // log.segment_bytes, log.numbers)
        return there


# --- in the timer log, in queues


def timers_stop(view: StoreView) -> int:
    """Return the offset up to which units count: recovery takes back later ones."""
    return min(view.units_stop, view.units_durable) if view.ours else view.units_stop


def waiting_range(view: StoreView) -> tuple[int, int]:
    """Return the indexes of the timer queue's entries that have no unit yet."""
    queue = view.reader.queues.get((text(fmt.TIMER_TOPIC), 0))
    if queue is None:
        return 0, 0
    first = max(view.queue_index, queue.start // fmt.ENTRY_BYTES)
    return first, max(first, -(-queue.used_end() // fmt.ENTRY_BYTES))


def in_units(
    view: StoreView,
    start: int,
    stop: int,
    *,
    deletes: bool = False,
    bounds: Bounds | None = None,
    faults: list[Fault] | None = None,
) -> Iterator[Places]:
    """Yield messages of units in [start, stop) from the read cursor on: of deletes, or of timers.

    A timer is left out if its unit already says that it is not within the bounds. If a broker wrote
    last, it may have linked timers to slots that it had passed: these are pending as well.
    """
    log = view.reader.timerlog
    low_ms, high_ms = (LOWEST, HIGHEST) if bounds is None else bounds.of("due_ms")
    hashes = None
    if bounds is not None and "topic" in bounds.texts:
        hashes = np.array([java_hash(topic) for topic in bounds.texts["topic"]], np.int64)
    wanted = Wanted(
        from_ms=view.read_slot * view.reader.precision_ms,
        timers=not deletes,
        deletes=deletes,
        low_ms=low_ms,
        high_ms=high_ms,
        late=not view.ours,
    )
    first = max(view.reader.commitlog.start, view.floor)
    for part in walk_units(log, start, stop, wanted):
        if faults is not None:
            faults += unit_faults(view, part)
        message = part.message
        kept = part.status == UNIT_GOOD
        kept &= (message >= first) & (message < view.log_stop)
        if hashes is not None:
            kept &= np.isin(part.topic_hash, hashes)
        part = part if kept.all() else part[kept]
        slot, no_level = part.ms // view.reader.precision_ms, np.full(len(part), IN_MESSAGE)
        is_within = _says_within(part, low_ms, high_ms)
        yield Places(part.message, part.offset, slot, no_level, part.due_ms, part.size, is_within)


def _says_within(units: LoggedUnits, low_ms: int, high_ms: int) -> Flags:
    """Tell which units say that their timers are due within bounds; rolls say only the second."""
    is_roll = units.magic & fmt.UNIT_ROLL != 0
    first_ms = np.where(is_roll, units.extra * 1_000, units.due_ms)
    within: Flags = (first_ms >= low_ms) & (first_ms + 999 * is_roll <= high_ms)
    within &= (units.extra != fmt.EXTRA_READ_MESSAGE) & (units.by_broker == 0)
    return within


def in_queue(view: StoreView, first: int, stop: int) -> Iterator[Places]:
    """Yield the messages of entries that have no unit yet."""
    queue = view.reader.queues.get((text(fmt.TIMER_TOPIC), 0))
    entries = read_entries(queue, first, stop - first)
    message = entries["offset"][entries["size"] > 0].astype(np.int64)
    message = message[(message >= view.reader.commitlog.start) & (message < view.log_stop)]
    yield Places.without_unit(message)


def in_level(
    view: StoreView, level: int, first: int, stop: int, bounds: Bounds | None = None
) -> Iterator[Places]:
    """Yield the messages of entries of a delay level's queue that are due within the bounds."""
    low_ms, high_ms = (LOWEST, HIGHEST) if bounds is None else bounds.of("due_ms")
    for at in range(first, stop, CHUNK_MESSAGES):
        message, due_ms = read_level(view.reader, level, at, min(stop, at + CHUNK_MESSAGES))
        kept = (message >= view.reader.commitlog.start) & (message < view.log_stop)
        kept &= (due_ms >= low_ms) & (due_ms <= high_ms)
        yield Places.without_unit(message[kept], due_ms[kept])


def _in_wheel(view: StoreView, *, deletes: bool) -> Iterator[Places]:
    """Yield what has a unit, then what has none yet.

    If the cancelled set is empty, no delete that has a unit still counts.
    """
    checkpoint = view.checkpoint
    is_empty = view.ours and checkpoint is not None and not checkpoint.cancelled_count
    if not (deletes and is_empty):
        yield from in_units(view, view.reader.timerlog.start, timers_stop(view), deletes=deletes)
    yield from in_queue(view, *waiting_range(view))


# --- what is not pending any more


class Settled(NamedTuple):
    """What is not pending any more, though something leads to it."""

    done: Words  # sorted commit log offsets of messages that were copied
    cancelled: Words  # identities that a delete names: a table of `wheel/cancelled.py`
    # int64[2, n]: messages to which several lead, sorted, and the last unit of each
    doubled: Words

    def choose(self, places: Places) -> Places:
        """Return the places whose message may be pending, each message once."""
        out = among(places.message, self.done)
        if self.doubled.shape[1]:
            at = np.searchsorted(self.doubled[0], places.message)
            at[at == self.doubled.shape[1]] = 0
            twice = self.doubled[0][at] == places.message
            out |= twice & (self.doubled[1][at] != places.unit)
        return places.choose(~out) if out.any() else places


def settled(view: StoreView) -> Settled:
    """Find what was fired, rolled or cancelled, once for each view.

    O(log since the copies cursor + units).

    If a broker wrote last there is no copies cursor, so that all of the log is read; it does not
    say of what its copies are; and its units may come twice. The first also holds while
    `config/rebuild.json` asks for the timers: what a broker fired still waits in a slot to come.
    """
    if view.settled is None:
        view.settled = _find_settled(view)
    found: Settled = view.settled
    return found


def _find_settled(view: StoreView) -> Settled:
    log, checkpoint = view.reader.commitlog, view.checkpoint
    start = log.start
    is_settled = view.ours and TIMERS not in read_mark(view.reader.steady.read, view.reader.path)
    if checkpoint is not None and is_settled:
        start = max(start, checkpoint.scan_from)
    done, who = [_NOTHING], [np.zeros((0, 2), np.int64)]
    broker = None if is_settled else BrokerCopies()
    for rows in read_log(view, start, view.log_stop):
        if isinstance(rows, Fault):
            continue
        origins = rows.origin
        done.append(origins[origins >= 0])
        rows = rows[rows.status == GOOD]
        who.append(level_targets(rows))
        if broker is not None and len(rows):
            broker.take(rows, in_timer_topic(log, rows), in_topic(log, rows, fmt.LEVEL_TOPIC))
    if broker is not None:
        done.append(broker.match()[0])
    copied = np.unique(np.concatenate(done))
    for places in _in_wheel(view, deletes=True):
        places = places.choose(~among(places.message, copied))
        for step in read_messages(view, places):
            deletes = step.rows[step.verdicts == DELETE]
            who.append(np.stack((deletes.identity_high, deletes.identity_low), axis=1))
    names, cancelled = np.concatenate(who), _NOTHING
    if len(names):
        timers = CancelledTimers()
        timers.add(names[:, 0].copy(), names[:, 1].copy())
        cancelled = timers.table
    doubled = hopped(view) if view.ours else _find_doubled(view)
    return Settled(copied, cancelled, doubled)


def _find_doubled(view: StoreView) -> Words:
    """Return the messages to which several units or entries lead, with the last unit of each."""
    parts = [[part.message, part.unit] for part in _in_wheel(view, deletes=False)]
    last, counts = _lasts(parts)
    return last[:, counts > 1]


def hopped(view: StoreView) -> Words:
    """Return the messages that were linked again, sorted, with the last unit of each: int64[2, n].

    A timer that hopped was, and one that a killed broker linked twice.
    Of slots that are not passed, found once for each view; O(units from the hops cursor on). An
    earlier unit of such a message does not count any more. If a broker wrote last, there are none.
    """
    checkpoint, log = view.checkpoint, view.reader.timerlog
    if not view.ours or checkpoint is None:
        return np.zeros((2, 0), np.int64)
    found: Words | None = view.known.get(_HOPPED)
    if found is None:
        start = max(log.start, checkpoint.hops_from)
        from_ms = view.read_slot * view.reader.precision_ms
        units, hops = [], []
        for part in walk_units(log, start, timers_stop(view), Wanted(from_ms=from_ms)):
            is_hop = part.magic & fmt.UNIT_HOP != 0
            timers = is_hop | (part.magic & fmt.UNIT_DELETE == 0)
            sound = part.status == UNIT_GOOD
            units.append([part.message[timers & sound], part.offset[timers & sound]])
            hops.append(part.message[is_hop & sound])
        found, counts = _lasts(units)
        has_hop = among(found[0], np.unique(np.concatenate([_NOTHING, *hops])))
        found = found[:, (counts > 1) | has_hop]
        view.known[_HOPPED] = found
    return found


def _lasts(parts: list[list[Words]]) -> tuple[Words, Words]:
    """Return messages, sorted, with the last unit of each: int64[2, n]; how many each has.

    `parts`: messages with units.
    """
    message, unit = np.concatenate([np.zeros((2, 0), np.int64), *map(np.stack, parts)], axis=1)
    order = np.lexsort((unit, message))
    message, unit = message[order], unit[order]
    ends = np.flatnonzero(np.diff(message, append=-1)) if len(message) else _NOTHING
    return np.stack([message[ends], unit[ends]]), np.diff(ends, prepend=-1)


def among(values: Words, ordered: Words) -> Flags:
    """Tell which values are in a sorted array. O(n log m)."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    place = np.searchsorted(ordered, values)
    place[place == len(ordered)] = 0
    found: Flags = ordered[place] == values
    return found


# --- the messages that stand there


class Step(NamedTuple):
    """Messages that were read together."""

    places: Places
    rows: scan.LoggedMessages
    parts: scan.LoggedParts
    verdicts: Words  # of `wheel/judge.py`

    def faults(self) -> Iterator[Fault]:
        """Yield what could not be read."""
        for i in np.flatnonzero((self.verdicts < 0) | (self.verdicts == GONE)).tolist():
            status = -int(self.verdicts[i])
            reason = REASONS[status] if status > 0 else "the timer's segment is missing"
            yield Fault("commitlog", int(self.places.message[i]), reason)


def read_messages(
    view: StoreView, places: Places, cancelled: Words = _NOTHING, chunk: int = CHUNK_MESSAGES
) -> Iterator[Step]:
    """Read the messages at some places, and judge them. O(bytes).

    Segments stay mapped, and arrays keep their values, until the next step.
    """
    reader, log = view.reader, view.reader.commitlog
    reading = Reading(
        scan.ReadAs(reader.store_tag, reader.precision_ms, reader.level_ms, verify=True),
        done=new_table(0),
        done_count=0,
        cancelled=cancelled,
    )
    chunk = min(chunk, len(places.message))
    rows, parts = scan.LoggedMessages.room(chunk), scan.LoggedParts.room(chunk)
    verdicts = np.zeros(chunk, np.int64)
    into = PlacesRead(rows, parts, verdicts)
    found, state = MessageParts(), np.zeros(1, np.int64)
    for at in range(0, len(places.message), max(1, chunk)):
        part = places.choose(slice(at, at + chunk))
        message, level_due_ms = map(np.ascontiguousarray, (part.message, part.level_due_ms))
        segments = np.unique(message // log.segment_bytes)
        log.open_count_max = max(log.open_count_max, len(segments) + 1)
        for number in segments.tolist():  # those that are mapped already become the last to go
            log.map_from(number * log.segment_bytes, 1)
        state[0] = 0
        while True:
            unmapped = read_places(log.table, message, level_due_ms, reading, into, found, state)
            if unmapped < 0:
                break
            if not log.map_from(int(unmapped), 1):
                verdicts[state[0]] = GONE
                state[0] += 1
        count = len(message)
        yield Step(part, rows[:count], parts[:count], verdicts[:count])


# --- the table


UNITS: Final = "units"
QUEUE: Final = "queue"
LEVEL: Final = "level "  # with the level's number, from 1
"""What a range of a split counts: timer log offsets, queue indexes."""


class TimerRows(MessageRows):
    """Messages of pending timers, with the places of their units."""

    def __init__(
        self,
        log: Log,
        rows: LoggedMessages,
        parts: LoggedParts | None,
        unit: Words,
        slot_ms: Words,
    ) -> None:
        """Hold `unit`, `slot_ms`: int64[n], −1 if there is none."""
        super().__init__(log, rows, parts)
        self.unit, self.slot_ms = unit, slot_ms

    def filter(self, chosen: Any) -> TimerRows:
        """Return those that are chosen."""
        rows, parts = self.rows[chosen], self.parts_of(chosen)
        return TimerRows(self.log, rows, parts, self.unit[chosen], self.slot_ms[chosen])


_PLACES: Final = ("unit_offset", "slot_time_ms")
_DUE: Final = frozenset(("due", "due_ms"))
_IN_UNITS: Final = frozenset(
    (*_DUE, *_PLACES, "slot_time", "message_offset", "message_size", "store")
)
"""What units say; of a roll the time in seconds."""


def ranges(view: StoreView) -> Iterator[tuple[str, int, int]]:
    """Yield the parts of a store in which timers can be pending: (part, start, stop)."""
    yield UNITS, view.reader.timerlog.start, timers_stop(view)
    yield QUEUE, *waiting_range(view)
    for level, first, stop in level_ranges(view.reader, view.cut.level_offsets):
        yield f"{LEVEL}{level + 1}", first, stop


def find_places(
    view: StoreView, part: str, start: int, stop: int, bounds: Bounds, faults: list[Fault]
) -> Iterator[Places]:
    """Yield where timers of one part of a store may be pending; `faults`: takes damaged units."""
    if part == UNITS:
        found = in_units(view, start, stop, bounds=bounds, faults=faults)
    elif part == QUEUE:
        found = in_queue(view, start, stop)
    else:
        found = in_level(view, int(part.removeprefix(LEVEL)) - 1, start, stop, bounds)
    out = settled(view)
    for places in found:
        yield out.choose(places)


def read_timers(
    view: StoreView, places: Places, out: Settled, chunk: int = CHUNK_MESSAGES
) -> Iterator[TimerRows | Fault]:
    """Yield the pending timers among messages, in their order, with what is wrong.

    Their arrays are overwritten by the next step.
    """
    for step in read_messages(view, places, out.cancelled, chunk):
        yield from step.faults()
        unit, slot = step.places.unit, step.places.slot
        slot_ms = np.where(unit == NO_UNIT, NO_UNIT, slot * view.reader.precision_ms)
        timers = TimerRows(view.reader.commitlog, step.rows, step.parts, unit, slot_ms)
        pending = step.verdicts == PENDING
        yield timers.only(pending)


def read_units(
    view: StoreView, places: Places, out: Settled, bounds: Bounds, *, with_due: bool
) -> Iterator[TimerRows | Fault]:
    """Yield the timers that `read_timers` yields, with what units say of them, at once.

    A message is read if its unit does not say that it is due within the bounds, or, `with_due`,
    when exactly. Of the others nobody sees whether they are damaged.
    """
    log, count = view.reader.commitlog, len(places.message)
    pending = places.is_within & places.whose_message_is_there(view)
    if with_due:
        pending &= places.due_ms != IN_MESSAGE
    rows = LoggedMessages.room(count)  # most columns are never touched
    rows.offset[:], rows.size[:] = places.message, places.size
    # Of a roll that is within the bounds any time within them will do.
    rows.exact_due_ms[:] = np.maximum(places.due_ms, bounds.of("due_ms")[0])
    unread = np.flatnonzero(~pending)
    for step in read_messages(view, places.choose(unread), out.cancelled):
        yield from step.faults()
        at, unread = unread[: len(step.rows)], unread[len(step.rows) :]
        rows[at], pending[at] = step.rows, step.verdicts == PENDING
    slot_ms = np.where(places.unit == NO_UNIT, NO_UNIT, places.slot * view.reader.precision_ms)
    timers = TimerRows(log, rows, None, places.unit, slot_ms)
    yield timers.only(pending)


def timer_batches(
    view: StoreView,
    part: str,
    start: int,
    stop: int,
    columns: Sequence[Column],
    bounds: Bounds,
    *,
    failfast: bool = False,
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch, with what is wrong; `part` says what a range counts.

    If units say all that is asked for, their messages are not read, but with `failfast`.
    """
    faults: list[Fault] = []
    names = {each.name for each in columns}
    out, wanted = settled(view), names | bounds.numbers.keys() | bounds.texts.keys()
    by_units = part == UNITS and wanted <= _IN_UNITS and not failfast and not len(out.cancelled)
    for places in find_places(view, part, start, stop, bounds, faults):
        yield from faults
        faults.clear()
        if by_units:
            found = read_units(view, places, out, bounds, with_due=not _DUE.isdisjoint(names))
        else:
            found = read_timers(view, places, out)
        for timers in found:
            if isinstance(timers, Fault):
                yield timers
                continue
            for piece in pieces(timers.within("timers", bounds), columns):
                yield piece.columns(columns)
    yield from faults


# --- all of them


class PendingTimers(NamedTuple):
    """Where all pending timers stand, in the order of due time, then of arrival."""

    places: Places
    faults: list[Fault]
    """What could not be read on the way."""


def find_pending(view: StoreView) -> PendingTimers:
    """Find all pending timers of a store. O(log since the copies cursor + units).

    Those of which a unit says when they are due are not read yet, so that a few may turn out to be
    cancelled.
    """
    everything, faults, out = Bounds(), list[Fault](), settled(view)
    found = [Places.without_unit(np.zeros(0, np.int64))]
    for part in ranges(view):
        for places in find_places(view, *part, everything, faults):
            unsaid = places.due_ms == IN_MESSAGE
            if not unsaid.any():
                found.append(places)
                continue
            found.append(places.choose(~unsaid))
            for step in read_messages(view, places.choose(unsaid), out.cancelled):
                faults += step.faults()
                due_ms = step.rows.exact_due_ms.copy()
                pending = step.verdicts == PENDING
                found.append(step.places._replace(due_ms=due_ms).choose(pending))
    places = Places(*map(np.concatenate, zip(*found, strict=True)))
    return PendingTimers(places.choose(np.lexsort((places.message, places.due_ms))), faults)


def count_pending(view: StoreView) -> int:
    """Count the pending timers of a store. O(log since the copies cursor + messages)."""
    everything, faults, out = Bounds(), list[Fault](), settled(view)
    return sum(
        len(timers)
        for part in ranges(view)
        for places in find_places(view, *part, everything, faults)
        for timers in read_timers(view, places, out)
        if not isinstance(timers, Fault)
    )
