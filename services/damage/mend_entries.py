"""Mending queue entries: one that is not its message's is written again from the commit log."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.services.damage.pass_lost import pass_lost
from timerstore.services.engine.engine import Engine
from timerstore.services.world.damage import WRITTEN_AGAIN
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.files.disk import MappedFile
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

_NONE: Final[Words] = np.zeros(0, np.int64)


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

    All entries beside it that are not sound are written with it, so a run is looked for once.
    """
    if not _is_lost(engine, row, index) and _mend_run(engine, row, index):
        return True
    offset = int(engine.queues.read(row, index, 1)[0]["offset"])
    if not engine.commitlog.start <= offset < engine.commitlog.end:
        file, at = engine.queues.files[row].name, index * fmt.ENTRY_BYTES
        engine.damage.note(file, at, "no message belongs to this entry")
    return False


def mend_entries(engine: Engine, row: int, indexes: list[int]) -> bool:
    """Write again those of these entries that are not sound; True if one is sound now. O(log).

    What is found nowhere is named. Any thread may call this, without the append lock.
    """
    is_mended = False
    try:
        for index in indexes:
            is_sound_now = _sound_message(engine, row, index) >= 0
            is_mended |= is_sound_now or mend_entry(engine, row, index)
    except (CorruptStoreError, OSError):
        pass  # retention removed what was looked at
    return is_mended


def write_entries(engine: Engine, row: int, messages: LoggedMessages) -> None:
    """Write the entries of scanned messages of one queue again; durable on return."""
    files, written = engine.queues.files[row], dict[int, MappedFile]()
    for each in messages:
        entry = np.zeros(1, fmt.QUEUE_ENTRY)
        entry["offset"], entry["size"] = each.offset, each.size
        entry["tags_code"] = each.tags_code
        index = int(each.queue_index)
        number, place = divmod(index, engine.queues.segment_entries)
        file = written[number] = files.existing(number)
        files.reserve(index * fmt.ENTRY_BYTES, (index + 1) * fmt.ENTRY_BYTES)
        start = place * fmt.ENTRY_BYTES
        file.view[start : start + fmt.ENTRY_BYTES] = np.frombuffer(entry.tobytes(), np.uint8)
        engine.damage.note(files.name, index * fmt.ENTRY_BYTES, WRITTEN_AGAIN)
    for file in written.values():
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


def _is_lost(engine: Engine, row: int, index: int) -> bool:
    """Tell whether a message was looked for before, and is nowhere in the log."""
    lost = engine.lost_entries.get(row, _NONE)
    at = int(np.searchsorted(lost, index))
    return at < len(lost) and int(lost[at]) == index


def _mend_run(engine: Engine, row: int, index: int) -> bool:
    """Write the run of entries that are not sound around this one again; False if this is lost.

    Those that are lost are kept: no pull of any group looks for them again. O(log).
    """
    run, low, high = _run_around(engine, row, index)
    queues, log, is_found = engine.queues, engine.commitlog, np.zeros(len(run), np.bool_)
    topic, queue_id = queues.topics[row], int(queues.table.queue_id[row])
    for rows in sound_messages(_reader(engine), low, high):
        indexes, mine = rows.queue_index, list[int]()
        likely = (run.start <= indexes) & (indexes < run.stop) & (rows.queue_id == queue_id)
        for i in np.flatnonzero(likely & (rows.topic_bytes == len(topic))).tolist():
            place = int(indexes[i]) - run.start
            if not is_found[place] and log.read(int(rows.topic_at[i]), len(topic)) == topic:
                is_found[place] = True
                if _sound_message(engine, row, int(indexes[i])) < 0:
                    mine.append(i)
        write_entries(engine, row, rows[mine])
    lost = run.start + np.flatnonzero(~is_found)
    engine.lost_entries[row] = np.union1d(engine.lost_entries.get(row, _NONE), lost)
    return bool(is_found[index - run.start])


def _run_around(engine: Engine, row: int, index: int) -> tuple[range, int, int]:
    """Return the run of entries that are not sound around this one, and where their messages are.

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
    return range(first, max(stop, index + 1)), low, high


def _sound_message(engine: Engine, row: int, index: int) -> int:
    """Return the offset that an entry says, or −1 if it is not its message's."""
    entry = engine.queues.read(row, index, 1)
    return int(entry["offset"][0]) if is_sound(engine, row, index, entry) else -1


def _reader(engine: Engine) -> StoreReader:
    """Return a reader of the store as it is; making one lists all files."""
    if engine.mending is not None:
        return engine.mending
    reader = StoreReader(
        engine.path, engine.level_ms, precision_ms=engine.precision_ms, folder=engine.disk.folder
    )
    if engine.world.settings.recovering != 0:
        engine.mending = reader
    return reader
