"""Recovering the consume queues: where each one ends, what is missing behind that."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.services.damage.pass_by import is_sound, wrong_entries
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import WRONG_ENTRY_REASON
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.reading.pastdamage import sound_messages
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.timelog.writing.consumequeue import is_gap
from timerstore.timelog.writing.tally import FIRED_COUNT, LOST_COUNT, PUT_COUNT, TALLY_WORDS

_NOWHERE: Final = np.zeros(0, np.int64)


def find_queue_end(engine: Engine, row: int, durable: int) -> None:
    """Set a queue's end behind its last entry whose message lies before `durable`.

    O(1) if it is where the counters of topics recorded it, else O(log entries).
    """
    queues, file = engine.queues, engine.queues.files[row]
    low, recorded = file.start // fmt.ENTRY_BYTES, engine.counters.recorded_end(row, durable)
    high = _used_stop(file)
    if low < recorded <= high and _lies_before(queues.read(row, recorded - 1, 1)[0], durable):
        if recorded == high or not _lies_before(queues.read(row, recorded, 1)[0], durable):
            queues.set_end(row, recorded)
            return
    while low < high:  # the entries before the end are sound, those behind it are not
        middle = (low + high) // 2
        if _lies_before(queues.read(row, middle, 1)[0], durable):
            low = middle + 1
        else:
            high = middle
    queues.set_end(row, low)


def _used_stop(file: SegmentedFile) -> int:
    """Return the index behind the last entry without a byte in a hole: a full tmpfs maps no hole.

    An entry that begins before a hole and ends in it was never written.
    """
    return file.used_end() // fmt.ENTRY_BYTES


def _lies_before(entry: Any, offset: int) -> bool:
    return bool(entry["size"] > 0 and 0 <= entry["offset"] < offset)


def check_queue_end(engine: Engine, row: int, durable: int) -> bool:
    """Raise CorruptStoreError if a damaged entry has hidden a queue's end. O(log entries).

    A search that was led astray ends beside the entry that did it: the last one before the end is
    no message's, or the first one behind it is not empty and points to nothing that came later.
    The latter is also what a power cut leaves, which may keep an entry and not its message. Then
    it returns True: `check_queue_files` looks for messages that lack their entries.
    """
    is_asked = False
    queues, file, end = engine.queues, engine.queues.files[row], engine.queues.next_index(row)
    first, stop = file.start // fmt.ENTRY_BYTES, _used_stop(file)
    for before, after in zip(file.numbers, file.numbers[1:], strict=False):
        if after != before + 1:
            offset = (before + 1) * file.segment_bytes
            raise CorruptStoreError(file.name, offset, "this segment is missing")
    if end > first and not is_sound(engine, row, end - 1, queues.read(row, end - 1, 1)):
        raise CorruptStoreError(
            file.name, (end - 1) * fmt.ENTRY_BYTES, "no message belongs to this entry"
        )
    step = 1
    while end + step - 1 < stop:
        index = end + step - 1
        entry = queues.read(row, index, 1)
        strange = _lies_before(entry[0], durable)
        # Behind the end of a store that another process writes to, an entry may be half written.
        if step == 1 and entry.tobytes().strip(b"\0") and not engine.disk.is_shared:
            is_asked = not strange and not is_sound(engine, row, index, entry)
        if strange:
            raise CorruptStoreError(
                file.name, index * fmt.ENTRY_BYTES, "it is behind the queue's end"
            )
        step *= 2
    return is_asked


def check_entries(engine: Engine, part: LoggedMessages, queue_rows: Words, index_from: int) -> None:
    """Raise CorruptStoreError if a scanned message before `index_from` lacks its entry. O(part).

    What a scan reads anyway is compared: zeros, and bytes of an older version, in a queue's file.
    """
    before = np.flatnonzero(part.offset < index_from)
    for row, index in wrong_entries(engine, part, queue_rows, before):
        place = index * fmt.ENTRY_BYTES
        raise CorruptStoreError(engine.queues.files[row].name, place, WRONG_ENTRY_REASON)


def extend_queue(engine: Engine, row: int, end: int, lost_starts: Words) -> None:
    """Let a queue that was made anew end at `end`: its last messages are not in the log any more.

    So no index is given twice. They were removed, if there is no other, or lost to damage.
    """
    queues, next_index = engine.queues, engine.queues.next_index(row)
    if not queues.files[row].numbers:
        queues.fill_blanks(row, end)
        queues.set_end(row, end)
    elif len(lost_starts):
        entries = np.zeros(end - next_index, fmt.QUEUE_ENTRY)
        entries["size"], entries["offset"] = fmt.QUEUE_LOST_SIZE, int(lost_starts[-1]) + 1
        _write(engine, row, next_index, entries)


def index_part(
    engine: Engine,
    part: LoggedMessages,
    queue_rows: Words,
    index_from: int,
    lost_bytes: int,
    lost_starts: Words = _NOWHERE,
) -> None:
    """Write the queue entries of scanned messages from `index_from` on.

    `lost_bytes`: what could not be read before them: as many messages as fit into it may be missing
    from a queue, and get entries that lead to none. `lost_starts`: the offsets of these places, in
    order.
    """
    fresh = part.offset >= index_from
    for row in np.flatnonzero(np.bincount(queue_rows[fresh])).tolist():
        mine = np.flatnonzero(fresh & (queue_rows == row))
        _index_queue(engine, row, part, mine, lost_bytes, lost_starts)


def _index_queue(
    engine: Engine,
    row: int,
    part: LoggedMessages,
    mine: Words,
    lost_bytes: int,
    lost_starts: Words,
) -> None:
    """Write the entries of the messages at the places `mine`."""
    queues, file = engine.queues, engine.queues.files[row]
    indexes, offsets = part.queue_index[mine], part.offset[mine]
    if not file.numbers:
        queues.fill_blanks(row, int(indexes[0]))
        queues.set_end(row, int(indexes[0]))
    first = min(queues.next_index(row), int(indexes[0]))
    steps = np.diff(indexes, prepend=first - 1)
    gaps = is_gap(indexes, steps, queues.segment_entries)
    lost_count = int(steps.sum()) - len(steps)
    unexplained = (lost_count - int(gaps.sum())) * fmt.MESSAGE_BYTES_MIN > lost_bytes
    if (steps < 1).any() or first < 0 or unexplained:
        at = int(np.argmax(((steps != 1) & ~gaps) | (first < 0)))
        offset = int(offsets[at])
        if at == 0 and not lost_bytes and file.numbers:
            raise CorruptStoreError(
                file.name, first * fmt.ENTRY_BYTES, "entries are missing from this index on"
            )
        raise CorruptStoreError("commitlog", offset, "queue offsets are not consecutive")
    entries = np.zeros(len(mine) + lost_count, fmt.QUEUE_ENTRY)
    entries["size"] = fmt.QUEUE_LOST_SIZE
    place = indexes - first
    entries["offset"][place], entries["size"][place] = offsets, part.size[mine]
    entries["tags_code"][place] = part.tags_code[mine]
    if lost_count:
        lost = np.ones(len(entries), np.bool_)
        lost[place] = False
        entries["offset"][lost] = _places_lost(entries["offset"], place, lost_starts)[lost]
    _write(engine, row, first, entries)


def _places_lost(offsets: Words, place: Words, lost_starts: Words) -> Words:
    """Return the latest offset at which each entry's message was lost: offsets go up by index.

    It is a byte behind that place, because a copy may name what stood there as its source. `place`:
    which entries are those of messages.
    """
    following = np.full(len(offsets), np.iinfo(np.int64).max)
    before = np.full(len(offsets), -1)
    following[place] = before[place] = offsets[place]
    following = np.minimum.accumulate(following[::-1])[::-1]
    before_it = np.searchsorted(lost_starts, following) - 1
    last = np.full(len(offsets), offsets[place[0]])
    known = before_it >= 0
    last[known] = lost_starts[before_it[known]] + 1
    return np.maximum(np.maximum.accumulate(before), last)


def _write(engine: Engine, row: int, first: int, entries: fmt.Entries) -> None:
    """Write entries from index `first` on; the queue ends behind them."""
    queues, done = engine.queues, 0
    while done < len(entries):
        number, position = divmod(first + done, queues.segment_entries)
        room = min(queues.segment_entries - position, len(entries) - done)
        file = queues.files[row]
        file.reserve((first + done) * fmt.ENTRY_BYTES, (first + done + room) * fmt.ENTRY_BYTES)
        view = file.existing(number).view
        data = entries[done : done + room].view(np.uint8)
        at = position * fmt.ENTRY_BYTES
        view[at : at + len(data)] = data
        done += room
    queues.set_end(row, first + len(entries))


# --- Queue files that are gone from either end: what nothing but the commit log can tell
#
# Retention keeps what points to kept messages, and the segment of the last entry; the next segment
# is made before one is full. So a queue is asked about only if it has no file, ends with a full
# one, or begins with an entry of a message that is not the log's first: seldom, because it takes a
# scan. A topic of which nothing has fired yet has no file either. After a clean close its counters
# say so.


def check_queue_files(
    engine: Engine, durable: int, linked: int, asked: list[int], *, is_clean: bool
) -> None:
    """Raise CorruptStoreError if a queue lacks entries of messages that it was written for.

    `durable`: where the flushed part of the commit log ends; `linked`: the queue cursor, the timer
    queue's entries that were flushed; `asked`: rows that are asked about in any case. `is_clean`:
    we closed the store cleanly, so the counters of topics are whole. O(log) if any is asked about.
    """
    queues, log = engine.queues, engine.commitlog
    every_row = range(len(queues.files))
    asked = asked + [row for row in every_row if _may_be_cut(engine, row, linked, is_clean)]
    if not asked:
        return
    reader = engine.open_reader()
    for rows in sound_messages(reader, log.start, durable):
        index = rows.queue_index
        for row in asked:
            topic, first, end = queues.topics[row], queues.first_index(row), queues.next_index(row)
            strange = (index < first) | (index >= end)
            strange &= rows.queue_id == queues.table.queue_id[row]
            strange &= rows.topic_bytes == len(topic)
            for i in np.flatnonzero(strange).tolist():
                if reader.commitlog.read(int(rows.topic_at[i]), len(topic)) == topic:
                    at = int(index[i]) * fmt.ENTRY_BYTES
                    reason = "the segment of this entry is missing"
                    raise CorruptStoreError(queues.files[row].name, at, reason)


def _may_be_cut(engine: Engine, row: int, linked: int, is_clean: bool) -> bool:
    """Tell whether files may be missing at either end of a queue."""
    queues, file = engine.queues, engine.queues.files[row]
    first, end = queues.first_index(row), queues.next_index(row)
    if not file.numbers and is_clean:
        words = queues.table.tally.words[row * TALLY_WORDS :]
        if words[PUT_COUNT] > 0 and words[FIRED_COUNT] == 0 and words[LOST_COUNT] == 0:
            return False
    if not file.numbers or end * fmt.ENTRY_BYTES == file.files_end or (row == 0 and end < linked):
        return True
    if first == 0:
        return False
    return end <= first or int(queues.read(row, first, 1)[0]["offset"]) > engine.commitlog.start
