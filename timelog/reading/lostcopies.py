"""What a lost copy said of its source, as far as that can still be known.

A copy says of its source that it was made. Where it is lost, the source would go again. A fired
copy of which its properties are left still names its source; a rolled one is named by what was made
of it, for the timer went on from there.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.jit.record import Words
from timerstore.timelog.reading import scan
from timerstore.timelog.reading.pastdamage import sound_messages
from timerstore.timelog.reading.reader import StoreReader

NO_SOURCE: Final = -1
_WHO: Final = [scan.ROW_IDENTITY_HIGH, scan.ROW_IDENTITY_LOW, scan.ROW_IS_DELETE]
COPY_COLUMNS: Final = [scan.ROW_ORIGIN, scan.ROW_OFFSET, *_WHO]
"""Columns of a scanned row that say which copy was made of what, and whose."""

NO_COPIES: Final = np.zeros((0, len(COPY_COLUMNS)), np.int64)


def fired_source(reader: StoreReader, framed: Words) -> int:
    """Return the source of a fired copy that is damaged; NO_SOURCE where nothing says it.

    `framed`: see `Damage`. It is believed where it names a sound message of the same timer: that
    one was fired, and shall not be fired again.
    """
    if not len(framed):
        return NO_SOURCE
    copy = framed[0]
    origin = int(copy[scan.ROW_ORIGIN])
    is_before = reader.commitlog.start <= origin < int(copy[scan.ROW_OFFSET])
    if not is_before or topic_of(reader, copy) == fmt.TIMER_TOPIC:
        return NO_SOURCE  # a roll that is lost is made again, unless it was rolled on
    for rows in reader.scan(origin, origin + 1):
        if len(rows) and (rows[0, _WHO] == copy[_WHO]).all():
            return origin
    return NO_SOURCE


def rolled_sources(reader: StoreReader, made: Words, known: Words) -> Words:
    """Return which sources had rolled copies that are lost: int64[n, 3]. O(log) where any had.

    A row is a source, its lost copy, and what was made of that. `made`: int64[n, 5], the copies
    made of lost messages, see COPY_COLUMNS. `known`: what has a copy in any case.
    """
    wanted: dict[tuple[int, ...], dict[int, int]] = {}
    for lost, copy, *who in made.tolist():
        wanted.setdefault(tuple(who), {}).setdefault(lost, copy)
    sources: dict[tuple[int, int], int] = {}  # by the lost copy, and by what was made of that
    low = np.array([who[1] for who in wanted], np.int64)
    stop = max((lost for copies in wanted.values() for lost in copies), default=0)
    for rows in sound_messages(reader, reader.commitlog.start, stop):
        likely = np.isin(rows[:, scan.ROW_IDENTITY_LOW], low)
        for row in rows[likely & (rows[:, scan.ROW_TOPIC_BYTES] == len(fmt.TIMER_TOPIC))]:
            copies, offset = wanted.get(tuple(row[_WHO].tolist()), {}), int(row[scan.ROW_OFFSET])
            if copies and topic_of(reader, row) == fmt.TIMER_TOPIC:
                sources |= {each: offset for each in copies.items() if offset < each[0]}
    found, taken = list[tuple[int, ...]](), set(known.tolist())
    for each, source in sorted(sources.items()):
        if source not in taken:
            found.append((source, *each))
            taken.add(source)
    return np.array(found, np.int64).reshape(-1, 3)


def topic_of(reader: StoreReader, row: Words) -> bytes:
    """Return the topic of a scanned row; nothing where it is not there."""
    try:
        return reader.commitlog.read(int(row[scan.ROW_TOPIC]), int(row[scan.ROW_TOPIC_BYTES]))
    except CorruptStoreError:
        return b""
