"""Pending timers by columns: an Arrow table, with no Python object for each timer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError
from timerstore.ground.kinds import check_names
from timerstore.pending.listing import check_range
from timerstore.services.engine.holds import while_held
from timerstore.services.looking.instant import Instant, capture_instant
from timerstore.services.looking.pending_rows import read_rows
from timerstore.services.looking.timer_places import find_places
from timerstore.services.mending.pass_lost import name_lost
from timerstore.tables.bounds import HIGHEST, LOWEST, Bounds
from timerstore.tables.commitlog import pieces
from timerstore.tables.exported import MAKERS, SCHEMAS
from timerstore.tables.places import NO_UNIT
from timerstore.tables.timertable import TimerRows, choose_timers
from timerstore.timelog.files.pinned import PinnedLog
from timerstore.timelog.jit.record import Words

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
    check_range(topic, start_ms, end_ms, limit)
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
        listing = _Listing(core, bounds)
        if limit is not None:
            listing.keep_first(limit)
        return pa.Table.from_batches(list(listing.batches(names, schema)), schema)

    return while_held(read)


class _Listing:
    """What was pending at one instant, and within bounds."""

    def __init__(self, core: Core, bounds: Bounds) -> None:
        self._core, self._engine, self._bounds = core, core.engine, bounds
        self._instant: Instant = capture_instant(core.engine)
        self._messages, self._due_ms = find_places(core.engine, self._instant)

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

    def keep_first(self, limit: int) -> None:
        """Keep those that fall due first, in the order of due time, then of arrival."""
        found = [np.zeros((0, 2), np.int64)]
        for timers in self._read():
            found.append(np.stack((timers.rows.offset, timers.rows.exact_due_ms), axis=1))
        messages, due_ms = np.concatenate(found).T
        order = np.lexsort((messages, due_ms))[:limit]
        place: Words = np.searchsorted(self._messages, messages[order])
        self._messages, self._due_ms = self._messages[place], self._due_ms[place]

    def batches(self, names: Sequence[str], schema: Any) -> Iterator[pa.RecordBatch]:
        """Yield the columns, chunk by chunk."""
        makers = [MAKERS["pending"][name] for name in names]
        for timers in self._read():
            sizes = timers.rows.size
            for piece in pieces(timers, sizes, with_body="body" in names):
                made = [make(piece) for make in makers]
                yield pa.RecordBatch.from_arrays(made, schema=schema)
