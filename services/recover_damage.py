"""Recovering past damage: where the commit log can be read again behind a place where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from timerstore.services.engine import Engine
from timerstore.timelog import scan
from timerstore.timelog.blank import SEALED_NOWHERE
from timerstore.timelog.format import TIMER_TOPIC
from timerstore.timelog.jit.record import Words
from timerstore.timelog.logranges import LogRanges
from timerstore.timelog.message import FOUND_WORDS
from timerstore.timelog.reader import StoreReader

NO_MESSAGE: Final = -1
_WHO: Final = [scan.ROW_IDENTITY_HIGH, scan.ROW_IDENTITY_LOW, scan.ROW_IS_DELETE]


class DamagedLog:
    """The places of a commit log that were passed over while it was scanned.

    What was flushed, or has something sound behind it, was whole once: that it cannot be read now
    is damage. `durable` is where the flushed part ends, None where nobody says it.
    """

    def __init__(self, engine: Engine, durable: int | None) -> None:
        """Begin with none."""
        self.engine, self.durable = engine, durable
        self.ranges = LogRanges()
        self.lost_bytes = 0
        self._starts, self._start_count = np.zeros(64, np.int64), 0
        self._reader: StoreReader | None = None

    def resume(self, offset: int, reason: str) -> int:
        """Return where to go on behind what is no message at `offset`; NO_MESSAGE at the end."""
        log = self.engine.commitlog
        stop = log.files_end if self.durable is None else self.durable
        if offset >= stop:
            return NO_MESSAGE
        if self._reader is None:
            engine = self.engine
            self._reader = StoreReader(
                engine.path, engine.level_ms, precision_ms=engine.precision_ms
            )
        following = self._reader.next_message(offset, stop)
        if following < 0:
            if self.durable is None:
                return NO_MESSAGE
            following = self.durable
        lost_bytes = following - offset
        reason = f"{reason}; {lost_bytes} bytes up to the next message are lost"
        self.engine.damage.note("commitlog", offset, reason)
        self.ranges.add(offset, following)
        self.lost_bytes += lost_bytes
        self._keep(np.array([offset]))
        return following

    @property
    def starts(self) -> Words:
        """Where these places begin, and what stands where a salvage found others."""
        return self._starts[: self._start_count]

    def _keep(self, offsets: Words) -> None:
        """Keep where some places begin; O(1) each over many calls."""
        stop = self._start_count + len(offsets)
        if stop > len(self._starts):
            self._starts = np.resize(self._starts, 2 * stop)
        self._starts[self._start_count : stop] = offsets
        self._start_count = stop

    def take_fillers(self, rows: Words) -> None:
        """Take what stands where messages were lost, as scanned rows."""
        if len(rows):
            self.lost_bytes += int(rows[:, scan.ROW_SIZE].sum())
            self._keep(rows[:, scan.ROW_OFFSET])

    def fired_from(self, offset: int) -> int:
        """Return the source of a fired copy that is damaged at `offset`; NO_MESSAGE if unknown.

        Its properties may still be there. They are believed where they name a sound message of the
        same timer: that one was fired, and shall not be fired again.
        """
        copy = self._read(offset, verify=False)
        if copy is None or int(copy[scan.ROW_ORIGIN]) < 0:
            return NO_MESSAGE
        origin = int(copy[scan.ROW_ORIGIN])
        source = self._read(origin, verify=True) if origin < offset else None
        if source is None or self._topic(copy) == TIMER_TOPIC:
            return NO_MESSAGE  # a roll that is lost is made again
        return origin if (copy[_WHO] == source[_WHO]).all() else NO_MESSAGE

    def rolled_from(self, origins: list[Words], copies: list[Words]) -> tuple[Words, Words]:
        """Return the sources of rolled copies that are damaged, with the copies made of those.

        `copies` were made of `origins`. Where one was made of what is damaged now, the timer went
        on from there: what stood before in its name has its copy too, or would fire again. O(log).
        """
        known = np.concatenate([np.zeros(0, np.int64), *origins])
        made = np.concatenate([np.zeros(0, np.int64), *copies])
        wanted: dict[tuple[int, ...], tuple[int, int]] = {}
        lost = self.ranges.contains(known)
        for origin, copy in zip(known[lost].tolist(), made[lost].tolist(), strict=True):
            row = self._read(copy, verify=False)
            if row is not None:
                who = tuple(row[_WHO].tolist())
                wanted[who] = min(wanted.get(who, (origin, copy)), (origin, copy))
        sources: dict[tuple[int, ...], int] = {}
        for rows in self._sound_before(max((origin for origin, _ in wanted.values()), default=0)):
            likely = np.isin(rows[:, scan.ROW_IDENTITY_LOW], [who[1] for who in wanted])
            for row in rows[likely & (rows[:, scan.ROW_TOPIC_BYTES] == len(TIMER_TOPIC))]:
                who, offset = tuple(row[_WHO].tolist()), int(row[scan.ROW_OFFSET])
                if who in wanted and offset < wanted[who][0] and self._topic(row) == TIMER_TOPIC:
                    sources[who] = offset
        found = [who for who in sources if sources[who] not in known]
        return (
            np.array([sources[who] for who in found], np.int64),
            np.array([wanted[who][1] for who in found], np.int64),
        )

    def _sound_before(self, stop: int) -> Iterator[Words]:
        """Yield the messages that can be read, in chunks, as scanned rows."""
        offset, reader = self.engine.commitlog.start, self._reader
        while reader is not None and 0 <= offset < stop:
            scanned = reader.scan(offset, stop)
            yield from scanned
            offset = scanned.end
            if offset < stop:
                offset = reader.next_message(offset, stop)

    def _topic(self, row: Words) -> bytes:
        log = self.engine.commitlog
        return log.read(int(row[scan.ROW_TOPIC]), int(row[scan.ROW_TOPIC_BYTES]))

    def _read(self, offset: int, *, verify: bool) -> Words | None:
        """Read one message as a scanned row; None where it cannot be read."""
        engine, log = self.engine, self.engine.commitlog
        if not log.start <= offset < log.files_end:
            return None
        rows, where = np.zeros((2, scan.ROW_COLUMNS), np.int64), np.zeros(2, np.int64)
        with log.reading() as table:
            log.readable(offset // log.segment_bytes)
            count = scan.scan_commitlog(
                table,
                offset,
                offset + 1,
                SEALED_NOWHERE,
                verify,
                engine.store_tag,
                engine.precision_ms,
                engine.level_ms,
                rows,
                np.zeros(FOUND_WORDS, np.int64),
                where,
            )
        return rows[0] if count and int(rows[0, scan.ROW_OFFSET]) == offset else None
