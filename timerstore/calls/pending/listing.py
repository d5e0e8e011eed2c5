"""Listing pending timers: all in order, or how many fall due when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.calls.pending.is_pending import Found, count_due, find_in_order
from timerstore.calls.pending.timers import Timer, decode_timers
from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError
from timerstore.services.damage.pass_by import name_lost
from timerstore.services.engine.holds import LapsedError, lapsed_often, while_held
from timerstore.services.looking.instant import Instant, capture_instant
from timerstore.services.looking.read_units import read_rows
from timerstore.services.looking.timer_places import NEVER_MS, DueOrder, join_places
from timerstore.tables.bounds import HIGHEST, LOWEST, Bounds
from timerstore.tables.commitlog import EXPORT_SCHEMAS, EXPORTED, pieces
from timerstore.tables.timers import NO_UNIT, TimerRows
from timerstore.timelog.files.segments import PinnedLog
from timerstore.values.amounts import exact_span, html_table
from timerstore.values.check_arguments import DUE_MS_MAX, Range
from timerstore.values.ids import Int64s, Moments
from timerstore.values.kinds import check_int, check_names
from timerstore.wheel.judge import IN_MESSAGE

_AT_ONCE: Final = 256
"""Timers that are decoded together, if their bodies are small."""
_TRIES: Final = 8
"""So often a listing is captured, of which nothing could be decoded."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """How many timers fall due when.

    `start_ms`: int64[n], the beginning of each bucket that holds any; `count`: int64[n].
    """

    start_ms: Int64s
    count: Int64s
    bucket_ms: int

    @property
    def start(self) -> Moments:
        """The beginning of each bucket in UTC: datetime64[ms][n]."""
        return self.start_ms.view("datetime64[ms]")

    def plot(self, ax: Any = None) -> Any:
        """Draw the counts over time with matplotlib; return the axes."""
        import matplotlib.pyplot as plt

        axes = plt.gca() if ax is None else ax
        times = self.start_ms.astype("datetime64[ms]")
        axes.bar(times, self.count, width=np.timedelta64(self.bucket_ms, "ms"), align="edge")
        axes.set_xlabel("due (UTC)")
        axes.set_ylabel(f"timers in {exact_span(self.bucket_ms)}")
        return axes

    def _repr_html_(self) -> str:
        shown = zip(self.start[:50], self.count[:50], strict=True)
        rows = [(str(start), str(count)) for start, count in shown]
        if len(self.count) > 50:
            rows.append(("…", f"{len(self.count) - 50} more buckets"))
        return html_table("Timers by when they are due (UTC)", rows)


def list_pending(core: Core, where: Range) -> Iterator[Timer]:
    """Yield pending timers in order; see `TimerStore.pending`."""
    return _pending(core, where.checked())


def _pending(core: Core, where: Range) -> Iterator[Timer]:
    core.check_process()
    topic, start_ms, end_ms, limit, _ = where
    listed, tries = _Listed(), 0
    while tries < _TRIES:
        tries += 1
        first_ms = max(start_ms or 0, listed.due_ms)
        try:
            for found in find_in_order(core, first_ms, NEVER_MS if end_ms is None else end_ms):
                found = listed.behind(found)
                if topic is not None:
                    found = found.of_topic(core, topic)
                stop = len(found.message) if limit is None else limit - listed.count
                found = found.choose(slice(stop))
                at = 0
                while at < len(found.message):
                    some = found.choose(slice(at, at + _AT_ONCE))
                    with core.gate.guard():
                        core.check_open()
                        timers, count = decode_timers(core, some.message, some.due_ms, some.hold)
                    some, at, tries = some.choose(slice(count)), at + count, 0
                    some.hold.rest()
                    for timer in timers:
                        core.check_process()
                        if core.closed:
                            core.check_open()
                        yield timer
                    listed.note(some)
                if listed.count == limit:
                    return
            return
        except LapsedError:
            continue  # what is left is captured again
    raise lapsed_often()


class _Listed:
    """How far a listing has come: up to a due time, and through some of the timers due then.

    That holds for another instant as well, where copies of these timers lie elsewhere in the log.
    """

    def __init__(self) -> None:
        self.count, self.due_ms = 0, -1
        self._same = set[tuple[int, int]]()  # who is due then, and was listed

    def note(self, found: Found) -> None:
        """Go on behind some timers, which are in order."""
        due_ms = found.due_ms
        if due_ms[-1] > self.due_ms:
            self.due_ms = int(due_ms[-1])
            self._same.clear()
        last = found.choose(due_ms == self.due_ms)
        self._same.update(zip(last.high.tolist(), last.low.tolist(), strict=True))
        self.count += len(due_ms)

    def behind(self, found: Found) -> Found:
        """Return those that were not listed yet, of some that are due then or later."""
        keep = np.ones(len(found.due_ms), np.bool_)
        for i in np.flatnonzero(found.due_ms == self.due_ms).tolist():
            keep[i] = (int(found.high[i]), int(found.low[i])) not in self._same
        return found.choose(keep)


def count_by_bucket(
    core: Core, bucket_ms: int, start_ms: int | None, end_ms: int | None
) -> Horizon:
    """Count pending timers by bucket; see `TimerStore.horizon`."""
    bucket_ms = check_int(bucket_ms, "bucket_ms", 1, DUE_MS_MAX)
    bounds = -DUE_MS_MAX, 2 * DUE_MS_MAX
    start_ms = 0 if start_ms is None else check_int(start_ms, "start_ms", *bounds)
    end_ms = NEVER_MS if end_ms is None else check_int(end_ms, "end_ms", *bounds)
    buckets, counts = count_due(core, bucket_ms, start_ms, end_ms)
    return Horizon(buckets * bucket_ms, counts, bucket_ms)


# --- all as an Arrow table


_COLUMNS: Final = {each.name: each for each in EXPORTED["pending"]}
NAMES: Final = tuple(_COLUMNS)


def pending_columns(core: Core, where: Range, columns: Sequence[str] | None) -> pa.Table:
    """Return pending timers as a table; see `TimerStore.pending_columns`."""
    topic, start_ms, end_ms, limit, _ = where.checked()
    names = NAMES if columns is None else check_names(columns, "columns")
    for name in names:
        if name not in NAMES:
            raise InvalidArgumentError(f"There is no column {name!r}. Use {', '.join(NAMES)}.")
    bounds = Bounds()
    bounds.narrow(
        "due_ms",
        LOWEST if start_ms is None else start_ms,
        HIGHEST if end_ms is None else end_ms - 1,
    )
    if topic is not None:
        bounds.allow("topic", [topic])
    schema = pa.schema([EXPORT_SCHEMAS["pending"].field(name) for name in names])

    def read() -> pa.Table:
        instant = capture_instant(core.engine)
        within = start_ms or 0, NEVER_MS if end_ms is None else end_ms
        if limit is None:  # in the order of the log
            places = join_places(DueOrder(core.engine, instant, *within).all()).in_log_order()
        else:
            places = _first(core, find_in_order(core, *within, instant), limit, topic)
        return pa.Table.from_batches(list(_batches(core, instant, places, bounds, schema)), schema)

    return while_held(read)


def _first(
    core: Core, pending: Iterator[Found], limit: int, topic: str | None
) -> tuple[Int64s, Int64s]:
    """Return the messages of those that fall due first, with what levels say of when they do."""
    parts, count = [np.zeros((3, 0), np.int64)], 0
    for found in pending:
        if topic is not None:
            found = found.of_topic(core, topic)
        part = np.stack((found.message, found.due_ms, found.in_level))[:, : limit - count]
        parts.append(part)
        count += part.shape[1]
        if count == limit:
            break
    messages, due_ms, in_level = np.concatenate(parts, axis=1)
    return messages, np.where(in_level, due_ms, IN_MESSAGE)


def _batches(
    core: Core, instant: Instant, places: tuple[Int64s, Int64s], bounds: Bounds, schema: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of the timers within bounds, chunk by chunk."""
    engine, log = core.engine, PinnedLog(core.engine.commitlog)
    columns = [_COLUMNS[name] for name in schema.names]

    def tell(message: int) -> None:
        name_lost(engine, message)

    for rows, parts in read_rows(engine, log, instant, *places, tell):
        nowhere = np.full(len(rows), NO_UNIT, np.int64)
        timers = TimerRows(log, rows, parts, nowhere, nowhere).within("timers", bounds)
        for piece in pieces(timers, columns):
            yield pa.RecordBatch.from_arrays(piece.columns(columns), schema=schema)
