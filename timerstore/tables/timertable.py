"""The table `timers`: what is pending, as recovery would find it.

`wheel/judge.py` says what that is, `places.py` finds where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.jit.record import Words
from timerstore.tables import arrays
from timerstore.tables.arrays import Log
from timerstore.tables.bounds import BOUNDED, Bounds
from timerstore.tables.commitlog import MessageRows, filter_topic, pieces
from timerstore.tables.places import (
    CHUNK_MESSAGES,
    NO_UNIT,
    Places,
    Settled,
    in_level,
    in_queue,
    in_units,
    read_messages,
    settled,
    timers_stop,
    waiting_range,
)
from timerstore.tables.schema import BIGINT, BINARY, BODY, INT
from timerstore.tables.view import StoreView, level_ranges
from timerstore.timelog.reading.columns import LoggedParts
from timerstore.timelog.reading.reader import Fault
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.wheel.judge import IN_MESSAGE, PENDING

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

    def value(self, name: str) -> Words:
        """Return a column that can have bounds."""
        values: Words = getattr(self if name in _PLACES else self.rows, BOUNDED["timers"][name])
        return values


MAKERS: Final[dict[str, Callable[[TimerRows], Any]]] = {
    "id": lambda t: t.text("key"),
    "topic": lambda t: t.text("real_topic"),
    "key": lambda t: t.part("keys"),
    "put": lambda t: t.time("born_ms"),
    "put_ms": lambda t: t.number("born_ms"),
    "due": lambda t: t.time("exact_due_ms"),
    "due_ms": lambda t: t.number("exact_due_ms"),
    "roll_count": lambda t: t.number("roll_times", INT),
    "slot_time": lambda t: arrays.timestamps(t.slot_ms, t.unit != NO_UNIT),
    "slot_time_ms": lambda t: arrays.numbers(t.slot_ms, BIGINT, t.unit != NO_UNIT),
    "unit_offset": lambda t: arrays.numbers(t.unit, BIGINT, t.unit != NO_UNIT),
    "message_offset": lambda t: t.number("offset"),
    "message_size": lambda t: t.number("size", INT),
    "queue_offset": lambda t: t.number("queue_index"),
    "queue_id": lambda t: t.number("real_queue", INT, least=0),
    "tag": lambda t: t.part("tags"),
    "properties": lambda t: t.user_properties(),
    BODY: lambda t: t.part("body", BINARY),
}
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
        yield timers if pending.all() else timers.filter(pending)


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
    yield timers if pending.all() else timers.filter(pending)


def timer_batches(
    view: StoreView,
    part: str,
    start: int,
    stop: int,
    columns: tuple[str, ...],
    bounds: Bounds,
    *,
    failfast: bool = False,
) -> Iterator[list[Any] | Fault]:
    """Yield the columns of each batch, with what is wrong; `part` says what a range counts.

    If units say all that is asked for, their messages are not read, but with `failfast`.
    """
    makers = [MAKERS[name] for name in columns]
    faults: list[Fault] = []
    out, wanted = settled(view), {*columns, *bounds.numbers, *bounds.texts}
    by_units = part == UNITS and wanted <= _IN_UNITS and not failfast and not len(out.cancelled)
    for places in find_places(view, part, start, stop, bounds, faults):
        yield from faults
        faults.clear()
        if by_units:
            found = read_units(view, places, out, bounds, with_due=not _DUE.isdisjoint(columns))
        else:
            found = read_timers(view, places, out)
        for timers in found:
            if isinstance(timers, Fault):
                yield timers
                continue
            timers = choose_timers(timers, bounds)
            sizes = timers.rows.size
            for piece in pieces(timers, sizes, with_body=BODY in columns):
                assert isinstance(piece, TimerRows)
                yield [make(piece) for make in makers]
    yield from faults


def choose_timers(timers: TimerRows, bounds: Bounds) -> TimerRows:
    """Return the timers within the bounds."""
    chosen = bounds.choose(BOUNDED["timers"], timers.value)
    if chosen is not None:
        timers = timers.filter(chosen)
    if "topic" in bounds.texts and len(timers):
        topics = timers.text("real_topic")
        chosen_timers = filter_topic(timers, topics, bounds)
        assert isinstance(chosen_timers, TimerRows)
        return chosen_timers
    return timers


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
