"""What a lost copy said of its source, as far as that can still be known.

A copy says of its source that it was made. If it is lost, the source would go again. A fired
copy of which its properties are left still names its source; a rolled one is named by what was made
of it, because the timer went on from there.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.reading.pastdamage import sound_messages
from timerstore.timelog.reading.reader import StoreReader
from timerstore.timelog.reading.scan import LoggedMessages

NO_SOURCE: Final = -1
NO_COPIES: Final = np.zeros((0, 5), np.int64)


def copies_of(rows: LoggedMessages) -> Words:
    """Return (source, copy, identity's high word, low word, is a delete) of each: int64[n, 5]."""
    who = rows.identity_high, rows.identity_low, rows.is_delete
    return np.stack((rows.origin, rows.offset, *who), axis=1)


def fired_source(reader: StoreReader, framed: LoggedMessages) -> int:
    """Return the source of a fired copy that is damaged; NO_SOURCE if nothing says it.

    `framed`: see `Damage`. It is believed if it names a sound message of the same timer: that one
    was fired, and must not be fired again.
    """
    if not len(framed):
        return NO_SOURCE
    copy = framed[0]
    origin = int(copy.origin)
    is_before = reader.commitlog.start <= origin < int(copy.offset)
    if not is_before or topic_of(reader, copy) == fmt.TIMER_TOPIC:
        return NO_SOURCE  # a roll that is lost is made again, unless it was rolled on
    for rows in reader.scan(origin, origin + 1):
        if len(rows) and (copies_of(rows[:1])[0, 2:] == copies_of(framed)[0, 2:]).all():
            return origin
    return NO_SOURCE


def rolled_sources(reader: StoreReader, made: Words, known: Words) -> Words:
    """Return which sources had rolled copies that are lost: int64[n, 3]. O(log) if any had.

    A row is a source, its lost copy, and what was made of that. `made`: int64[n, 5], the copies
    made of lost messages, see `copies_of`. `known`: what has a copy in any case.
    """
    wanted: dict[tuple[int, ...], dict[int, int]] = {}
    for lost, copy, *who in made.tolist():
        wanted.setdefault(tuple(who), {}).setdefault(lost, copy)
    sources: dict[tuple[int, int], int] = {}  # by the lost copy, and by what was made of that
    low = np.array([who[1] for who in wanted], np.int64)
    stop = max((lost for copies in wanted.values() for lost in copies), default=0)
    for rows in sound_messages(reader, reader.commitlog.start, stop):
        likely = np.isin(rows.identity_low, low)
        rows = rows[likely & (rows.topic_bytes == len(fmt.TIMER_TOPIC))]
        for row, (_, offset, *who) in zip(rows, copies_of(rows).tolist(), strict=True):
            copies = wanted.get(tuple(who), {})
            if copies and topic_of(reader, row) == fmt.TIMER_TOPIC:
                sources |= {each: offset for each in copies.items() if offset < each[0]}
    found, taken = list[tuple[int, ...]](), set(known.tolist())
    for each, source in sorted(sources.items()):
        if source not in taken:
            found.append((source, *each))
            taken.add(source)
    return np.array(found, np.int64).reshape(-1, 3)


def fillers(reader: StoreReader, rows: LoggedMessages) -> LoggedMessages:
    """Return those that a salvage has put in the place of lost messages; see `filler.py`."""
    likely = rows[rows.topic_bytes == len(fmt.SALVAGED_TOPIC)]
    is_one = [topic_of(reader, row) == fmt.SALVAGED_TOPIC for row in likely]
    return likely[np.array(is_one, np.bool_)]


def topic_of(reader: StoreReader, row: LoggedMessages) -> bytes:
    """Return the topic of a scanned row; nothing if it is not there."""
    try:
        return reader.commitlog.read(int(row.topic_at), int(row.topic_bytes))
    except CorruptStoreError:
        return b""
