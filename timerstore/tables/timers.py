"""The table `timers`: what is pending, as recovery would find it.

A timer is pending where its message has a unit in a slot at or after R, or its entry lies at or
after Q, or at or after the offset of its delay level; no copy of it was made since L; and no delete
of the same kind names it. The last two are found once in each process; the rest is read unit by
unit, or entry by entry, so that any range of the timer log or of a queue can be read by itself.
Where a broker wrote last there is no L: then `offline.find_pending` finds all timers, and a range
is one of its list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.offline.pending import PendingTimers, find_pending, level_targets, read_level
from timerstore.tables import arrays
from timerstore.tables.bounds import HIGHEST, LOWEST, Bounds, Flags, java_hash
from timerstore.tables.commitlog import MessageRows, filter_topic, pieces, read_log
from timerstore.tables.schema import BIGINT, BINARY, BODY, INT
from timerstore.tables.timerlog import CHUNK_UNITS, step_units, unit_faults
from timerstore.tables.view import Cut, StoreView, open_view
from timerstore.timelog import columns as kernels
from timerstore.timelog import scan
from timerstore.timelog.decode import text
from timerstore.timelog.format import ENTRY_BYTES, LEVEL_MARK, QUEUE_ENTRY, TIMER_TOPIC
from timerstore.timelog.message import FOUND_WORDS, GOOD, REASONS
from timerstore.timelog.reader import Fault
from timerstore.timelog.record import Words
from timerstore.timelog.unit import UNIT_GOOD

UNITS: Final = "units"
QUEUE: Final = "queue"
LEVEL: Final = "level "  # with the level's number, from 1
PENDING: Final = "pending"
"""What a range of a split counts: timer log offsets, queue indexes, places in a list."""
_CHUNK_MESSAGES: Final = 16_384
_NO_UNIT: Final = -1
_IN_MESSAGE: Final = LOWEST


class Places(NamedTuple):
    """Messages of pending timers, with the units that hold them; int64[n] each."""

    message: Words
    unit: Words  # −1 where there is none yet
    slot: Words
    due_ms: Words  # _IN_MESSAGE where the message says it

    @staticmethod
    def without_unit(message: Words, due_ms: Words | None = None) -> Places:
        """Return messages that have no unit."""
        nowhere = np.full(len(message), _NO_UNIT, np.int64)
        if due_ms is None:
            due_ms = np.full(len(message), _IN_MESSAGE, np.int64)
        return Places(message, nowhere, nowhere, due_ms)


# --- what is out


class Settled(NamedTuple):
    """What is pending no more, though a unit holds it."""

    done: Words  # sorted commit log offsets of messages that were copied
    cancelled: frozenset[tuple[int, int]]  # identities that a delete names
    cancelled_low: Words  # sorted, the second halves of these identities


@lru_cache(maxsize=4)
def settled(cut: Cut) -> Settled:
    """Find the timers that were fired, rolled or cancelled. O(log since L + units)."""
    view = open_view(cut)
    done, who = [np.zeros(0, np.int64)], set[tuple[int, int]]()
    checkpoint = view.checkpoint
    start = view.reader.commitlog.start
    if checkpoint is not None:
        start = max(start, checkpoint.scan_from)
    for rows in read_log(view, start, view.log_stop):
        if not isinstance(rows, Fault):
            origins = rows[:, scan.ROW_ORIGIN]
            done.append(origins[origins >= 0])
            who |= level_targets(rows[rows[:, scan.ROW_STATUS] == GOOD])
    copied = np.unique(np.concatenate(done))
    for places in _all_places(view, deletes=True):
        for rows in _read_messages(view, _without(places.message, copied)):
            if not isinstance(rows, Fault):
                rows = rows[rows[:, scan.ROW_IS_DELETE] == 1]
                high, low = rows[:, scan.ROW_IDENTITY_HIGH], rows[:, scan.ROW_IDENTITY_LOW]
                who.update(zip(high.tolist(), low.tolist(), strict=True))
    lows = np.unique(np.array([low for _, low in who], np.int64))
    return Settled(copied, frozenset(who), lows)


def _without(offsets: Words, done: Words) -> Words:
    return offsets[~_among(offsets, done)]


def _among(values: Words, ordered: Words) -> Flags:
    """Tell which values are in a sorted array. O(n log m)."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    place = np.searchsorted(ordered, values)
    place[place == len(ordered)] = 0
    found: Flags = ordered[place] == values
    return found


def _all_places(view: StoreView, *, deletes: bool) -> Iterator[Places]:
    yield from _in_units(view, view.reader.timerlog.start, timers_stop(view), deletes=deletes)
    first, stop = waiting_range(view)
    yield from _in_queue(view, first, stop)


# --- where they are


def timers_stop(view: StoreView) -> int:
    """Return up to where units count: recovery takes back those behind the checkpoint."""
    return min(view.units_stop, view.units_durable) if view.ours else view.units_stop


def waiting_range(view: StoreView) -> tuple[int, int]:
    """Return the indexes of the timer queue's entries that have no unit yet."""
    queue = view.reader.queues.get((text(TIMER_TOPIC), 0))
    if queue is None:
        return 0, 0
    first = max(view.queue_index, queue.start // ENTRY_BYTES)
    return first, max(first, -(-queue.used_end() // ENTRY_BYTES))


def _in_units(
    view: StoreView,
    start: int,
    stop: int,
    *,
    deletes: bool = False,
    bounds: Bounds | None = None,
    faults: list[Fault] | None = None,
) -> Iterator[Places]:
    """Yield the messages of units in [start, stop) of slots from R on: of deletes, or of timers.

    Those are left out of which the unit alone tells that they are not within the bounds.
    """
    log = view.reader.timerlog
    low_ms, high_ms = (LOWEST, HIGHEST) if bounds is None else bounds.of("due_ms")
    hashes = None
    if bounds is not None and "topic" in bounds.texts:
        hashes = np.array([java_hash(topic) for topic in bounds.texts["topic"]], np.int64)
    picked = np.zeros((kernels.PICK_COLUMNS, CHUNK_UNITS), np.int64)
    state, scratch = np.array([start, 0], np.int64), np.zeros(64, np.uint8)
    for count in step_units(
        log,
        state,
        lambda: kernels.pick_units(
            log.table,
            stop,
            deletes,
            view.read_slot,
            view.reader.precision_ms,
            low_ms,
            high_ms,
            picked,
            scratch,
            state,
        ),
    ):
        part = picked[:, :count]
        if faults is not None:
            faults += unit_faults(view, part[kernels.PICK_OFFSET], part[kernels.PICK_STATUS])
        message = part[kernels.PICK_MESSAGE]
        kept = part[kernels.PICK_STATUS] == UNIT_GOOD
        kept &= (message >= max(view.reader.commitlog.start, view.floor)) & (
            message < view.log_stop
        )
        if hashes is not None:
            kept &= np.isin(part[kernels.PICK_HASH], hashes)
        message = message[kept]
        unit, slot = part[kernels.PICK_OFFSET][kept], part[kernels.PICK_SLOT][kept]
        yield Places(message, unit, slot, np.full(len(message), _IN_MESSAGE, np.int64))


def _in_queue(view: StoreView, first: int, stop: int) -> Iterator[Places]:
    """Yield the messages of entries that have no unit yet."""
    queue = view.reader.queues.get((text(TIMER_TOPIC), 0))
    if queue is None or stop <= first:
        return
    data = queue.read(first * ENTRY_BYTES, (stop - first) * ENTRY_BYTES)
    entries = np.frombuffer(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], QUEUE_ENTRY)
    message = entries["offset"][entries["size"] > 0].astype(np.int64)
    message = message[(message >= view.reader.commitlog.start) & (message < view.log_stop)]
    yield Places.without_unit(message)


def _in_level(
    view: StoreView, level: int, first: int, stop: int, bounds: Bounds
) -> Iterator[Places]:
    """Yield the messages of entries of a delay level's queue that are due within the bounds."""
    low_ms, high_ms = bounds.of("due_ms")
    for at in range(first, stop, _CHUNK_MESSAGES):
        message, due_ms = read_level(view.reader, level, at, min(stop, at + _CHUNK_MESSAGES))
        kept = (message >= view.reader.commitlog.start) & (message < view.log_stop)
        kept &= (due_ms >= low_ms) & (due_ms <= high_ms)
        yield Places.without_unit(message[kept], due_ms[kept])


@lru_cache(maxsize=2)
def _of_broker(cut: Cut) -> PendingTimers:
    """Return all timers of a store that a broker wrote last. O(log + units)."""
    view = open_view(cut)
    faults: list[Fault] = []  # other tables name them
    return find_pending(view.reader, _sound_rows(view), faults, level_offsets=cut.level_offsets)


def _sound_rows(view: StoreView) -> Iterator[Words]:
    for rows in read_log(view, view.reader.commitlog.start, view.log_stop):
        if not isinstance(rows, Fault):
            yield rows[rows[:, scan.ROW_STATUS] == GOOD]


def broker_count(cut: Cut) -> int:
    """Return how many timers are pending in a store that a broker wrote last."""
    return len(_of_broker(cut).message)


@lru_cache(maxsize=2)
def _units_of_broker(cut: Cut) -> tuple[Words, Words, Words]:
    """Return messages, sorted, with the last unit of each, and its slot."""
    view = open_view(cut)
    parts = list(_in_units(view, view.reader.timerlog.start, view.units_stop))
    if not parts:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    message, unit, slot = (
        np.concatenate([getattr(part, name) for part in parts]) for name in Places._fields[:3]
    )
    order = np.lexsort((unit, message))
    last = np.append(message[order][1:] != message[order][:-1], True)[: len(message)]
    chosen = order[last] if len(message) else order
    return message[chosen], unit[chosen], slot[chosen]


def _in_list(view: StoreView, first: int, stop: int) -> Iterator[Places]:
    """Yield a range of a broker's timers."""
    timers = _of_broker(view.cut)
    message, due_ms = timers.message[first:stop], timers.due_ms[first:stop]
    of, unit, slot = _units_of_broker(view.cut)
    place = np.searchsorted(of, message)
    if not len(of):
        yield Places.without_unit(message, due_ms)
        return
    place[place == len(of)] = 0
    there = of[place] == message
    unit, slot = (np.where(there, each[place], _NO_UNIT) for each in (unit, slot))
    yield Places(message, unit, slot, due_ms)


# --- rows


def _read_messages(view: StoreView, offsets: Words) -> Iterator[Words | Fault]:
    """Yield the messages at `offsets`, as rows of `scan.py`, with what is wrong.

    The row of a message that is not sound is among them, with its ROW_STATUS.
    """
    reader, log = view.reader, view.reader.commitlog
    found, state = np.zeros(FOUND_WORDS, np.int64), np.zeros(1, np.int64)
    for at in range(0, len(offsets), _CHUNK_MESSAGES):
        part = np.ascontiguousarray(offsets[at : at + _CHUNK_MESSAGES])
        rows = np.zeros((len(part), scan.ROW_COLUMNS), np.int64)
        state[0] = 0
        # All of a chunk's messages stay mapped until its texts are read.
        touched = len(np.unique(part // log.segment_bytes))
        log.open_count_max = max(log.open_count_max, touched + 1)
        while True:
            unmapped = kernels.read_rows(
                log.table,
                part,
                reader.store_tag,
                reader.precision_ms,
                reader.level_ms,
                rows,
                found,
                state,
            )
            if unmapped < 0:
                break
            if not log.map_from(int(unmapped), 1):
                rows[state[0], scan.ROW_OFFSET] = unmapped
                rows[state[0], scan.ROW_STATUS] = -1
                state[0] += 1
        for i in np.flatnonzero(rows[:, scan.ROW_STATUS] != GOOD).tolist():
            status = int(rows[i, scan.ROW_STATUS])
            reason = REASONS[status] if status > 0 else "the timer's segment is missing"
            yield Fault("commitlog", int(part[i]), reason)
        yield rows


class TimerRows(MessageRows):
    """Messages of pending timers, with the places of their units."""

    def __init__(self, view: StoreView, rows: Words, unit: Words, slot: Words) -> None:
        """Hold `unit`, `slot`: int64[n], −1 where there is none."""
        super().__init__(view, rows)
        self.unit, self.slot = unit, slot

    def filter(self, chosen: Any) -> TimerRows:
        """Return those that are chosen."""
        rows = self.rows[chosen]
        return TimerRows(self.view, rows, self.unit[chosen], self.slot[chosen])

    def value(self, name: str) -> Words:
        """Return a column that can have bounds."""
        if name in _PLACES:
            return self.unit if name == "unit_offset" else self.slot_ms
        return self.rows[:, _NUMBERS[name]]

    @property
    def slot_ms(self) -> Words:
        """When each slot begins."""
        return self.slot * self.view.reader.precision_ms


_MAKERS: Final[dict[str, Callable[[TimerRows], Any]]] = {
    "id": lambda t: t.text(scan.ROW_KEY),
    "topic": lambda t: t.text(scan.ROW_REAL_TOPIC),
    "key": lambda t: t.part(kernels.PART_KEYS),
    "put": lambda t: t.time(scan.ROW_BORN_MS),
    "put_ms": lambda t: t.number(scan.ROW_BORN_MS),
    "due": lambda t: t.time(scan.ROW_EXACT_DUE_MS),
    "due_ms": lambda t: t.number(scan.ROW_EXACT_DUE_MS),
    "roll_count": lambda t: t.number(scan.ROW_ROLL_TIMES, INT),
    "slot_time": lambda t: arrays.timestamps(t.slot_ms, t.slot != _NO_UNIT),
    "slot_time_ms": lambda t: arrays.numbers(t.slot_ms, BIGINT, t.slot != _NO_UNIT),
    "unit_offset": lambda t: arrays.numbers(t.unit, BIGINT, t.unit != _NO_UNIT),
    "message_offset": lambda t: t.number(scan.ROW_OFFSET),
    "message_size": lambda t: t.number(scan.ROW_SIZE, INT),
    "queue_offset": lambda t: t.number(scan.ROW_QUEUE_INDEX),
    "queue_id": lambda t: t.number(scan.ROW_REAL_QUEUE, INT, least=0),
    "tag": lambda t: t.part(kernels.PART_TAGS),
    "properties": lambda t: t.properties(),
    BODY: lambda t: t.part(kernels.PART_BODY, BINARY),
}
MAKERS: Final = _MAKERS
_NUMBERS: Final = {
    "put_ms": scan.ROW_BORN_MS,
    "due_ms": scan.ROW_EXACT_DUE_MS,
    "message_offset": scan.ROW_OFFSET,
    "message_size": scan.ROW_SIZE,
    "queue_offset": scan.ROW_QUEUE_INDEX,
    "roll_count": scan.ROW_ROLL_TIMES,
}
_PLACES: Final = ("unit_offset", "slot_time_ms")


def read(
    view: StoreView,
    part: str,
    start: int,
    stop: int,
    columns: tuple[str, ...],
    bounds: Bounds,
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch, with what is wrong; `part` says what a range counts."""
    makers = [_MAKERS[name] for name in columns]
    faults: list[Fault] = []
    out = None if part == PENDING else settled(view.cut)
    if part == UNITS:
        batches = _in_units(view, start, stop, bounds=bounds, faults=faults)
    elif part == QUEUE:
        batches = _in_queue(view, start, stop)
    elif part.startswith(LEVEL):
        batches = _in_level(view, int(part.removeprefix(LEVEL)) - 1, start, stop, bounds)
    else:
        batches = _in_list(view, start, stop)
    for places in batches:
        yield from faults
        faults.clear()
        for timers in _timers(view, places, out):
            if isinstance(timers, Fault):
                yield timers
                continue
            timers = _choose(timers, bounds)
            sizes = timers.rows[:, scan.ROW_SIZE]
            for piece in pieces(timers, sizes, with_body=BODY in columns):
                assert isinstance(piece, TimerRows)
                yield [make(piece) for make in makers]
    yield from faults


def _timers(view: StoreView, places: Places, out: Settled | None) -> Iterator[TimerRows | Fault]:
    """Yield the pending timers among messages."""
    if out is not None:
        kept = ~_among(places.message, out.done)
        if not kept.all():
            places = Places(*(each[kept] for each in places))
    at = 0
    for rows in _read_messages(view, places.message):
        if isinstance(rows, Fault):
            yield rows
            continue
        _, unit, slot, due_ms = (each[at : at + len(rows)] for each in places)
        at += len(rows)
        in_level = due_ms != _IN_MESSAGE
        timed = (rows[:, scan.ROW_STATUS] == GOOD) & (rows[:, scan.ROW_IS_DELETE] == 0)
        if out is not None:  # else all are timers
            named = rows[:, scan.ROW_REAL_TOPIC_BYTES]
            timed &= np.where(in_level, named > 0, (rows[:, scan.ROW_DUE_MS] >= 0) & (named >= 0))
            timed &= ~_is_cancelled(rows, in_level, timed, out)
        rows[in_level, scan.ROW_EXACT_DUE_MS] = due_ms[in_level]
        if not timed.all():
            rows, unit, slot = rows[timed], unit[timed], slot[timed]
        yield TimerRows(view, rows, unit, slot)


def _is_cancelled(rows: Words, in_level: Flags, timed: Flags, out: Settled) -> Flags:
    """Tell which timers a delete names.

    What was sent back through a delay level has the key of its first message, and is not meant.
    """
    found = np.zeros(len(rows), np.bool_)
    if not len(out.cancelled):
        return found
    high, low = rows[:, scan.ROW_IDENTITY_HIGH], rows[:, scan.ROW_IDENTITY_LOW]
    low = np.where(in_level, rows[:, scan.ROW_OFFSET] | LEVEL_MARK, low)
    for i in np.flatnonzero(timed & _among(low, out.cancelled_low)).tolist():
        found[i] = (int(high[i]), int(low[i])) in out.cancelled
    return found


def _choose(timers: TimerRows, bounds: Bounds) -> TimerRows:
    """Return the timers within the bounds."""
    chosen = bounds.choose({*_NUMBERS, *_PLACES}, timers.value)
    if chosen is not None:
        timers = timers.filter(chosen)
    if "topic" in bounds.texts and len(timers):
        topics = timers.text(scan.ROW_REAL_TOPIC)
        chosen_timers = filter_topic(timers, topics, bounds)
        assert isinstance(chosen_timers, TimerRows)
        return chosen_timers
    return timers
