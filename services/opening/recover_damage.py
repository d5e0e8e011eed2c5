"""Recovering past damage: where the commit log can be read again behind a place where it cannot."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.timelog.reading.logranges import LogRanges
from timerstore.timelog.reading.lostcopies import (
    NO_COPIES,
    copies_of,
    fired_source,
    rolled_sources,
)
from timerstore.timelog.reading.pastdamage import lost_up_to, read_framed
from timerstore.timelog.reading.reader import StoreReader
from timerstore.timelog.reading.scan import LoggedMessages

NO_NEXT_MESSAGE: Final = -1


class DamagedLog:
    """The places of a commit log that were passed over while it was scanned.

    What was flushed, or has something sound behind it, was whole once: that it cannot be read now
    is damage. `durable` is where the flushed part ends, None if no file says it.
    """

    def __init__(self, engine: Engine, durable: int | None) -> None:
        self.engine, self.durable = engine, durable
        self.ranges = LogRanges()
        self.lost_bytes = 0
        self._starts, self._start_count = np.zeros(64, np.int64), 0
        self._reader: StoreReader | None = None

    def resume(self, offset: int, reason: str) -> int:
        """Return where to go on if there is no message at `offset`; NO_NEXT_MESSAGE at the end."""
        log = self.engine.commitlog
        stop = log.files_end if self.durable is None else self.durable
        if offset >= stop:
            return NO_NEXT_MESSAGE
        following = self._read().next_message(offset, stop)
        if following < 0:
            if self.durable is None:
                return NO_NEXT_MESSAGE
            following = self.durable
        self.engine.damage.note("commitlog", offset, lost_up_to(reason, offset, following))
        self.ranges.add(offset, following)
        self.lost_bytes += following - offset
        self._keep(np.array([offset]))
        return following

    @property
    def starts(self) -> Words:
        """Where these places begin, and what stands in those that a salvage found."""
        return self._starts[: self._start_count]

    def _keep(self, offsets: Words) -> None:
        """Keep where some places begin; O(1) each over many calls."""
        stop = self._start_count + len(offsets)
        if stop > len(self._starts):
            self._starts = np.resize(self._starts, 2 * stop)
        self._starts[self._start_count : stop] = offsets
        self._start_count = stop

    def take_fillers(self, rows: LoggedMessages) -> None:
        """Take what stands in the place of lost messages, as scanned rows."""
        if len(rows):
            self.lost_bytes += int(rows.size.sum())
            self._keep(rows.offset)

    def fired_from(self, offset: int) -> int:
        """Return the source of a fired copy that is damaged at `offset`; NO_SOURCE if unknown."""
        reader = self._read()
        return fired_source(reader, read_framed(reader, offset))

    def rolled_from(self, origins: list[Words], copies: list[Words]) -> tuple[Words, Words]:
        """Return the sources of rolled copies that are damaged, with the copies made of those.

        `copies` were made of `origins`; see `rolled_sources`. O(log) if any is damaged.
        """
        known = np.concatenate([np.zeros(0, np.int64), *origins])
        places = np.concatenate([np.zeros(0, np.int64), *copies])[self.ranges.contains(known)]
        reader = self._read()
        made = [copies_of(read_framed(reader, place)) for place in np.sort(places).tolist()]
        found = rolled_sources(reader, np.concatenate([NO_COPIES, *made]), known)
        return found[:, 0], found[:, 2]

    def _read(self) -> StoreReader:
        """Return a reader of the store as it is; making one lists all files."""
        engine = self.engine
        if self._reader is None:
            self._reader = StoreReader(
                engine.path,
                engine.level_ms,
                precision_ms=engine.precision_ms,
                folder=engine.disk.folder,
            )
        return self._reader
