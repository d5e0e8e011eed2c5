"""Reading a commit log past what is damaged: the one place that says where it goes on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.kernel import inlined, kernel_later
from timerstore.jit.record import Flags, Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import BLANK_SEALED, read_blank
from timerstore.timelog.bytes.message import BAD_CRC, REASONS
from timerstore.timelog.files.nonzero import used_before_gap
from timerstore.timelog.files.segmenttable import apron_bytes
from timerstore.timelog.reading import scan
from timerstore.timelog.reading.reader import READ_ROWS, ReadSegments, StoreReader
from timerstore.timelog.reading.scan import LoggedMessages

NO_MESSAGE_REASON: Final = "no message begins at this offset"


class Damage(NamedTuple):
    """A place of the log where no sound message begins."""

    offset: int
    reason: str
    is_message: bool  # a message stands there, though it is not sound
    end: int  # of its segment, or of what is read
    following: int  # where the next sound message up to `end` begins, or −1
    resume: int  # where reading goes on
    framed: LoggedMessages  # the message here, if nothing but its checksum is wrong; else none
    is_empty: bool  # nothing but zeros follows up to `end`

    def told(self, log_stop: int) -> str:
        """Say what is wrong, and how much is lost by it if the log goes on before `log_stop`."""
        if len(self.framed) or (self.end >= log_stop and self.following < 0):
            return self.reason
        return lost_up_to(self.reason, self.offset, self.resume)


def read_past_damage(
    reader: StoreReader, start: int, stop: int, chunk: int = READ_ROWS
) -> Iterator[LoggedMessages | Damage]:
    """Yield the messages that begin in [start, stop), `chunk` at most at once, and what is damaged.

    A message begins at `start`. The arrays are overwritten by the next step. A segment begins with
    a message, so damage ends there at the latest; a segment that is missing is passed over, because
    the reader of the files names it. O(bytes).
    """
    log, offset = reader.commitlog, start
    while offset < stop:
        scanned = reader.scan(offset, stop, chunk=chunk)
        yield from scanned
        offset = scanned.end
        if offset >= stop:
            return
        if scanned.stopped == scan.STOP_UNMAPPED:
            starts = [number * log.segment_bytes for number in log.numbers]
            offset = min((start for start in starts if start > offset), default=stop)
            continue
        damage = _look_at(reader, scanned.end, scanned.stopped == scan.STOP_BAD, scanned.bad, stop)
        yield damage
        offset = damage.resume


def sound_messages(reader: StoreReader, start: int, stop: int) -> Iterator[LoggedMessages]:
    """Yield the sound messages that begin in [start, stop), past what is damaged."""
    for item in read_past_damage(reader, start, stop):
        if not isinstance(item, Damage):
            yield item


def lost_up_to(reason: str, offset: int, following: int) -> str:
    """Say what is lost if no message can be read in [offset, following)."""
    return f"{reason}; {following - offset} bytes up to the next message are lost"


def used_behind_blank(log: ReadSegments, end: int) -> tuple[int, int]:
    """Return the first byte that is no zero behind the blank at `end`, and the end of its segment.

    A segment is closed with a blank, and nothing but zeros behind that; then both are the same.
    """
    stop = (end // log.segment_bytes + 1) * log.segment_bytes
    start = end + fmt.BLANK_BYTES
    if stop - start >= fmt.BLANK_BYTES and read_blank(log.view(end), 0, end) == BLANK_SEALED:
        start = min(end + fmt.BLANK_CRC_AT + 4, stop)
    return log.next_used(start, stop), stop


def _look_at(reader: StoreReader, offset: int, is_message: bool, bad: int, stop: int) -> Damage:
    log = reader.commitlog
    end = min(stop, (offset // log.segment_bytes + 1) * log.segment_bytes)
    nothing = LoggedMessages.room(0)
    reason = REASONS[bad] if is_message else NO_MESSAGE_REASON
    if not is_message and log.next_used(offset, end) == end:
        return Damage(offset, reason, False, end, -1, end, nothing, is_empty=True)
    framed = read_framed(reader, offset) if is_message and bad == BAD_CRC else nothing
    if len(framed):
        resume = offset + int(framed.size[0])
        following = reader.next_message(resume - 1, end)
    else:
        following = reader.next_message(offset, end)
        resume = end if following < 0 else following
    return Damage(offset, reason, is_message, end, following, resume, framed, is_empty=False)


def read_framed(reader: StoreReader, offset: int) -> LoggedMessages:
    """Read a message whose checksum does not match; nothing if its structure is wrong too."""
    for rows in reader.scan(offset, offset + 1, verify=False):
        rows.status[:] = BAD_CRC
        return rows
    return LoggedMessages.room(0)


# --- What a lost copy said of its source, as far as that can still be known.
#
# A copy says of its source that it was made. If it is lost, the source would go again. A fired copy
# of which its properties are left still names its source; a rolled one is named by what was made of
# it, because the timer went on from there.

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
    """Return those that a salvage has put in the place of lost messages; see `compose.py`."""
    return rows[rows_of_topic(reader, rows, fmt.SALVAGED_TOPIC)]


def rows_of_topic(
    reader: StoreReader, rows: LoggedMessages, topic: bytes, count_max: int | None = None
) -> Words:
    """Return the indexes of messages of a topic; with `count_max` only so many rows are looked at,
    the last ones.
    """
    first = 0 if count_max is None else max(0, len(rows) - count_max)
    likely = first + np.flatnonzero(rows.topic_bytes[first:] == len(topic))
    is_one = [topic_of(reader, rows[index]) == topic for index in likely.tolist()]
    return likely[np.array(is_one, np.bool_)]


def topic_of(reader: StoreReader, row: LoggedMessages) -> bytes:
    """Return the topic of a scanned row; nothing if it is not there."""
    try:
        return reader.commitlog.read(int(row.topic_at), int(row.topic_bytes))
    except CorruptStoreError:
        return b""


# --- Ranges of a log, many of them: which offsets lie in one.


class LogRanges:
    """Ranges that do not overlap, kept in their order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def add(self, start: int, stop: int) -> None:
        """Add a range; O(1) behind the others."""
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._stops.insert(at, stop)

    def __contains__(self, offset: int) -> bool:
        """Tell whether an offset lies in a range. O(log n)."""
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._stops[at]

    def contains(self, offsets: Words) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Tell which offsets lie in a range: bool[n]."""
        starts = np.array([-(1 << 62), *self._starts], np.int64)
        stops = np.array([-(1 << 62), *self._stops], np.int64)
        inside: np.ndarray[Any, np.dtype[np.bool_]] = (
            offsets < stops[np.searchsorted(starts, offsets, "right") - 1]
        )
        return inside


# --- Where a commit log ends that was not closed, though old bytes may lie behind.


def log_used_end(reader: StoreReader) -> int:
    """Return the offset behind the last byte of the commit log that is of this use of its file.

    Behind the log's end an apron of zeros follows, then anything. O(what was not flushed).
    """
    log, end = reader.commitlog, reader.commitlog.used_end()
    if reader.sealed_from >= end:
        return end
    scanned = reader.scan(max(log.start, reader.sealed_from))
    for _ in scanned:
        pass
    at, quiet = scanned.end, apron_bytes(log.segment_bytes)
    if log.next_used(at, min(end, at + quiet)) >= min(end, at + quiet):
        return at
    while at < end:  # part of what was being appended
        used = used_before_gap(log.map(at // log.segment_bytes)[at % log.segment_bytes :], quiet)
        at += used
        if at % log.segment_bytes or not used:
            break
    return min(at, end)


# --- Which message is a copy of which, if a broker left no `TIMER_ORIGIN`.

# Bits of a candidate's role.
ROLE_SOURCE: Final = 1  # it waits in the timer topic
ROLE_COPY: Final = 2  # a copy whose source is not known
ROLE_DELETE: Final = 4
ROLE_TAKEN: Final = 16  # a copy says that it is of this one
ROLE_LEVEL: Final = 8  # it waits in a delay level; of a copy: it has no due time, as only theirs
_ROLLS_SHIFT: Final = 8
_NOTHING: Final = np.zeros(0, np.int64)


class BrokerCopies:
    """Matches copies without TIMER_ORIGIN to their sources, by identity and roll count.

    A rolled copy's source has one roll less; a delay level's source has none. A copy matches one
    source, one before it. Memory: 32 bytes for each timer and each message of a delay level.
    """

    def __init__(self) -> None:
        self._parts: list[Words] = []
        self._known: list[Words] = []  # sources whose copies say so

    def take(self, rows: LoggedMessages, in_timer_topic: Flags, in_level_topic: Flags) -> None:
        """Take scanned messages in the order of the log, with their places: bool[n] each. O(n)."""
        self._known.append(rows.origin[rows.origin >= 0])
        timed, nameless = rows.due_ms >= 0, rows.origin < 0
        copied = nameless & ~(in_timer_topic | in_level_topic)
        role = np.zeros(len(rows), np.int64)
        for chosen, bits in (
            (in_timer_topic & timed, ROLE_SOURCE),
            (in_timer_topic & timed & nameless & (rows.roll_times > 0), ROLE_COPY),
            (in_level_topic, ROLE_LEVEL),
            (copied, ROLE_COPY),
            (copied & ~timed, ROLE_LEVEL),
        ):
            role[chosen] |= bits
        relevant = (role != 0) & (rows.real_topic_bytes >= 0)
        role[rows.is_delete != 0] |= ROLE_DELETE
        kept = np.stack(
            [
                rows.identity_high[relevant],
                rows.identity_low[relevant],
                rows.offset[relevant],
                role[relevant] | rows.roll_times[relevant] << _ROLLS_SHIFT,
            ]
        )
        self._parts.append(kept)

    def match(self) -> tuple[Words, Words]:
        """Return the sources that were copied, and the copies. O(n log n), if there are copies."""
        if not any((part[-1] & ROLE_COPY).any() for part in self._parts):
            return _NOTHING, _NOTHING
        copied = np.concatenate([part[1][part[-1] & ROLE_COPY != 0] for part in self._parts])
        copied = np.unique(copied)
        parts = [part[:, _among(part[1], copied)] for part in self._parts]
        high, low, offset, word = np.concatenate(parts, axis=1)
        order = np.lexsort((offset, low, high))
        high, low, offset, word = high[order], low[order], offset[order], word[order]
        role, rolls = word & ((1 << _ROLLS_SHIFT) - 1), word >> _ROLLS_SHIFT
        role[_among(offset, np.unique(np.concatenate(self._known)))] |= ROLE_TAKEN
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        source = np.empty(len(order), np.int64)
        match_copies(np.cumsum(is_new), rolls, role, source)
        copies = np.flatnonzero(source >= 0)
        copies = copies[np.argsort(offset[copies])]
        return offset[source[copies]], offset[copies]


def _among(values: Words, some: Words) -> Flags:
    """Tell of each value whether it is one of `some`, which are in order, each once."""
    if not len(some):
        return np.zeros(len(values), np.bool_)
    found: Flags = some[np.minimum(np.searchsorted(some, values), len(some) - 1)] == values
    return found


@kernel_later
def match_copies(who: Words, rolls: Words, role: Words, source: Words) -> None:
    """Match copies to sources as `BrokerCopies` says, of many timers at once.

    `who`, `rolls`, `role`: int64[n], in the order of (timer, offset); `who` tells timers apart;
    `role` is written: what was matched is taken. `source`: int64[n], written: the index of each
    copy's source, or −1. O(n) if copies come in the order of their sources.
    """
    begin = timers = levels = 0  # before the latter two, no timer, no message of a level is free
    for i in range(len(who)):
        source[i] = -1
        if who[i] != who[begin]:
            begin = timers = levels = i
        if role[i] & ROLE_COPY == 0:
            continue
        if role[i] & ROLE_LEVEL == 0:
            while timers < i and role[timers] & (ROLE_SOURCE | ROLE_TAKEN) != ROLE_SOURCE:
                timers += 1
            source[i] = _find_timer(rolls, role, timers, i)
        if source[i] < 0 and role[i] & ROLE_SOURCE == 0:
            waiting = ROLE_LEVEL | ROLE_COPY | ROLE_TAKEN
            while levels < i and role[levels] & waiting != ROLE_LEVEL:
                levels += 1
            if levels < i:
                source[i] = levels
        if source[i] >= 0:
            role[source[i]] |= ROLE_TAKEN


@inlined
def _find_timer(rolls: Words, role: Words, begin: int, i: int) -> int:
    wanted = rolls[i] - (role[i] & ROLE_SOURCE)
    for j in range(begin, i):
        if role[j] & (ROLE_SOURCE | ROLE_TAKEN) != ROLE_SOURCE or rolls[j] != wanted:
            continue
        if (role[j] ^ role[i]) & ROLE_DELETE == 0:
            return j
    return -1
