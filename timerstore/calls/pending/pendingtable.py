"""Pending timers by columns: an Arrow table, with no Python object for each timer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.calls.pending.found import find_in_order
from timerstore.calls.pending.listing import check_range
from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError
from timerstore.services.damage.pass_by import name_lost
from timerstore.services.engine.holds import while_held
from timerstore.services.looking.instant import Instant, capture_instant
from timerstore.services.looking.read_pending import read_rows
from timerstore.services.looking.timer_places import NEVER_MS, DueOrder
from timerstore.tables.bounds import HIGHEST, LOWEST, Bounds
from timerstore.tables.commitlog import pieces
from timerstore.tables.exported import MAKERS, SCHEMAS
from timerstore.tables.places import NO_UNIT
from timerstore.tables.timertable import TimerRows, choose_timers
from timerstore.timelog.files.pinned import PinnedLog
from timerstore.values.kinds import check_names
from timerstore.wheel.judge import IN_MESSAGE

NAMES: Final = tuple(SCHEMAS["pending"].names)


def pending_columns(
    core: Core,
    topic: str | None,
    start_ms: int | None,
    end_ms: int | None,
    limit: int | None,
    columns: Sequence[str] | None,
) -> pa.Table:
    """Return pending timers as a table; see `TimerStore.pending_columns`."""
    start_ms, end_ms, limit = check_range(topic, start_ms, end_ms, limit)
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
    schema = pa.schema([SCHEMAS["pending"].field(name) for name in names])

    def read() -> pa.Table:
        listing = _Listing(core, bounds, start_ms, end_ms)
        if limit is None:
            listing.keep_all()
        else:
            listing.keep_first(limit, topic)
        return pa.Table.from_batches(list(listing.batches(names, schema)), schema)

    return while_held(read)


class _Listing:
    """What was pending at one instant, and within bounds."""

    def __init__(
        self, core: Core, bounds: Bounds, start_ms: int | None, end_ms: int | None
    ) -> None:
        self._core, self._engine, self._bounds = core, core.engine, bounds
        self._range = start_ms or 0, NEVER_MS if end_ms is None else end_ms
        self._instant: Instant = capture_instant(core.engine)

    def keep_all(self) -> None:
        """Take all, in the order of the log."""
        places = DueOrder(self._engine, self._instant, *self._range).all()
        self._messages, self._due_ms = places.in_log_order()

    def keep_first(self, limit: int, topic: str | None) -> None:
        """Take those that fall due first, in the order of due time, then of arrival."""
        parts, count = [np.zeros((3, 0), np.int64)], 0
        for found in find_in_order(self._core, *self._range, self._instant):
            if topic is not None:
                found = found.of_topic(self._core, topic)
            part = np.stack((found.message, found.due_ms, found.in_level))[:, : limit - count]
            parts.append(part)
            count += part.shape[1]
            if count == limit:
                break
        self._messages, due_ms, in_level = np.concatenate(parts, axis=1)
        self._due_ms = np.where(in_level, due_ms, IN_MESSAGE)

    def _read(self) -> Iterator[TimerRows]:
        """Yield the timers chunk by chunk; their texts can be read until the next."""
        log = PinnedLog(self._engine.commitlog)
        places = self._messages, self._due_ms
        read = read_rows(self._engine, log, self._instant, *places, self._tell)
        for rows, parts in read:
            nowhere = np.full(len(rows), NO_UNIT, np.int64)
            yield choose_timers(TimerRows(log, rows, parts, nowhere, nowhere), self._bounds)

    def _tell(self, message: int) -> None:
        name_lost(self._engine, message)

    def batches(self, names: Sequence[str], schema: Any) -> Iterator[pa.RecordBatch]:
        """Yield the columns, chunk by chunk."""
        makers = [MAKERS["pending"][name] for name in names]
        for timers in self._read():
            sizes = timers.rows.size
            for piece in pieces(timers, sizes, with_body="body" in names):
                made = [make(piece) for make in makers]
                yield pa.RecordBatch.from_arrays(made, schema=schema)
