"""Mending queue entries: one that is not its message's is written again from the commit log."""

from __future__ import annotations

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.engine.engine import Engine
from timerstore.services.mending.pass_lost import pass_lost
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.reading.audit import (
    ENTRY_BLANK,
    ENTRY_GOOD,
    ENTRY_REMOVED,
    QueueRun,
    judge_entries,
)
from timerstore.timelog.reading.pastdamage import sound_messages
from timerstore.timelog.reading.reader import StoreReader
from timerstore.timelog.reading.scan import LoggedMessages


def is_sound(engine: Engine, row: int, index: int, entry: fmt.Entries) -> bool:
    """Tell whether an entry is that of a message, as far as that is still there."""
    log, offset = engine.commitlog, int(entry["offset"][0])
    if int(entry["size"][0]) == fmt.QUEUE_LOST_SIZE and 0 <= offset < log.files_end:
        return True
    if not 0 <= offset < log.files_end:
        return False
    verdicts, where = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with log.reading() as table:
        log.readable(offset // log.segment_bytes)
        run = QueueRun(
            np.frombuffer(entry.tobytes(), np.uint8),
            0,
            index,
            np.frombuffer(engine.queues.topics[row], np.uint8),
            int(engine.queues.table.queue_id[row]),
        )
        judge_entries(table, run, log.start, log.files_end, MessageParts(), verdicts, where)
    return int(verdicts[0]) in (ENTRY_GOOD, ENTRY_BLANK, ENTRY_REMOVED)


def mend_entry(engine: Engine, row: int, index: int) -> bool:
    """Write an entry again; False, and named, if its message cannot be found. O(log).

    Looked for between the messages of the nearest entries that are sound.
    """
    return _mend(engine, row, index, _find_message(engine, row, index))


def _mend(engine: Engine, row: int, index: int, found: LoggedMessages | None) -> bool:
    queues, at = engine.queues, index * fmt.ENTRY_BYTES
    if found is None:
        offset = int(queues.read(row, index, 1)[0]["offset"])
        if not engine.commitlog.start <= offset < engine.commitlog.end:
            engine.damage.note(queues.files[row].name, at, "no message belongs to this entry")
        return False
    engine.damage.note(
        queues.files[row].name, at, ("it did not fit its message; it was written again")
    )
    write_entries(engine, row, found)
    return True


def mend_entries(engine: Engine, row: int, indexes: list[int]) -> bool:
    """Write again those of these entries that are not sound; True if one was. O(log).

    What is found nowhere is named. Any thread may call this, without the append lock.
    """
    run, found, is_mended = range(0), dict[int, LoggedMessages](), False
    try:
        for index in indexes:
            if _sound_message(engine, row, index) >= 0:
                continue
            if index not in run:
                run, found = _look_around(engine, row, index)
            is_mended |= _mend(engine, row, index, found.get(index))
    except (CorruptStoreError, OSError):
        pass  # retention removed what was looked at
    return is_mended


def write_entries(engine: Engine, row: int, messages: LoggedMessages) -> None:
    """Write the entries of scanned messages of one queue again; durable on return."""
    for each in messages:
        entry = np.zeros(1, fmt.QUEUE_ENTRY)
        entry["offset"], entry["size"] = each.offset, each.size
        entry["tags_code"] = each.tags_code
        index = int(each.queue_index)
        number, place = divmod(index, engine.queues.segment_entries)
        file = engine.queues.files[row].existing(number)
        engine.queues.files[row].reserve(index * fmt.ENTRY_BYTES, (index + 1) * fmt.ENTRY_BYTES)
        start = place * fmt.ENTRY_BYTES
        file.view[start : start + fmt.ENTRY_BYTES] = np.frombuffer(entry.tobytes(), np.uint8)
        engine.disk.sync(file, file.path)


def mend_timer_entry(engine: Engine, index: int) -> None:
    """Write an entry of the timer topic's queue again, or let enqueue-get pass it by.

    An entry that is sound leads to a message that says no time, or no topic, of a timer: to write
    it again would change nothing, and enqueue-get would ask again for ever.
    """
    if _sound_message(engine, 0, index) >= 0 or not mend_entry(engine, 0, index):
        # Enqueue-get passes one by, and waits until that one was noted.
        pass_lost(engine, engine.world.enqueue_get.thread)
        engine.world.enqueue_get.lost_index = index


def _find_message(engine: Engine, row: int, index: int) -> LoggedMessages | None:
    """Return the message of a queue with this index, as a table of one row.

    Recovery may meet thousands of damaged entries beside each other, and appends nothing meanwhile:
    it keeps what it found for the last run of them.
    """
    its_row, indexes, found = engine.mended_run
    if row != its_row or index not in indexes:
        indexes, found = _look_around(engine, row, index)
        if engine.world.settings.recovering != 0:
            engine.mended_run = row, indexes, found
    return found.get(index)


def _look_around(engine: Engine, row: int, index: int) -> tuple[range, dict[int, LoggedMessages]]:
    """Return the run of entries that are not sound around this one, with their messages. O(log).

    They are looked for between the messages of the nearest entries that are sound.
    """
    queues, log = engine.queues, engine.commitlog
    low, high, first, stop = log.start, log.end, queues.first_index(row), queues.next_index(row)
    for each in range(index - 1, first - 1, -1):
        offset = _sound_message(engine, row, each)
        if offset >= log.start:
            low, first = offset, each + 1
            break
    for each in range(index + 1, stop):
        offset = _sound_message(engine, row, each)
        if offset >= low:
            high, stop = offset, each
            break
    run, found = range(first, max(stop, index + 1)), dict[int, LoggedMessages]()
    topic, queue_id = queues.topics[row], int(queues.table.queue_id[row])
    for rows in sound_messages(_reader(engine), low, high):
        indexes = rows.queue_index
        likely = (run.start <= indexes) & (indexes < run.stop)
        likely &= rows.queue_id == queue_id
        for i in np.flatnonzero(likely & (rows.topic_bytes == len(topic))).tolist():
            if log.read(int(rows.topic_at[i]), len(topic)) == topic:
                found.setdefault(int(indexes[i]), rows[[i]])
    return run, found


def _sound_message(engine: Engine, row: int, index: int) -> int:
    """Return the offset that an entry says, or −1 if it is not its message's."""
    entry = engine.queues.read(row, index, 1)
    return int(entry["offset"][0]) if is_sound(engine, row, index, entry) else -1


def _reader(engine: Engine) -> StoreReader:
    """Return a reader of the store as it is; making one lists all files."""
    if engine.mending is not None:
        return engine.mending
    reader = StoreReader(engine.path, engine.level_ms, precision_ms=engine.precision_ms)
    if engine.world.settings.recovering != 0:
        engine.mending = reader
    return reader
