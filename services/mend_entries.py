"""Mending queue entries: one that is not its message's is written again from the commit log."""

from __future__ import annotations

import numpy as np

from timerstore.services.engine import Engine
from timerstore.services.pass_lost import pass_lost
from timerstore.services.recover_queues import is_sound
from timerstore.timelog import scan
from timerstore.timelog.format import ENTRY_BYTES, QUEUE_ENTRY
from timerstore.timelog.jit.record import Words
from timerstore.timelog.reader import StoreReader


def mend_entry(engine: Engine, row: int, index: int) -> bool:
    """Write an entry again; False, and named, where its message cannot be found. O(log).

    Looked for between the messages of the nearest entries that are sound.
    """
    queues, at = engine.queues, index * ENTRY_BYTES
    found = _find_message(engine, row, index)
    if found is None:
        offset = int(queues.read(row, index, 1)[0]["offset"])
        if not engine.commitlog.start <= offset < engine.commitlog.end:
            engine.damage.note(queues.files[row].name, at, "no message belongs to this entry")
        return False
    engine.damage.note(queues.files[row].name, at, "it is not its message's; written again")
    write_entries(engine, row, found.reshape(1, -1))
    return True


def write_entries(engine: Engine, row: int, messages: Words) -> None:
    """Write the entries of scanned messages of one queue again; durable on return."""
    for each in messages:
        entry = np.zeros(1, QUEUE_ENTRY)
        entry["offset"], entry["size"] = each[scan.ROW_OFFSET], each[scan.ROW_SIZE]
        entry["tags_code"] = each[scan.ROW_TAGS_CODE]
        index = int(each[scan.ROW_QUEUE_INDEX])
        number, place = divmod(index, engine.queues.segment_entries)
        file = engine.queues.files[row].existing(number)
        engine.queues.files[row].reserve(index * ENTRY_BYTES, (index + 1) * ENTRY_BYTES)
        start = place * ENTRY_BYTES
        file.view[start : start + ENTRY_BYTES] = np.frombuffer(entry.tobytes(), np.uint8)
        engine.disk.sync(file, file.path)


def mend_timer_entry(engine: Engine, index: int) -> None:
    """Write an entry of the timer topic's queue again, or let enqueue-get pass it by."""
    if not mend_entry(engine, 0, index):
        # Enqueue-get passes one by, and waits until that one was noted.
        pass_lost(engine, engine.world.enqueue_get.thread)
        engine.world.enqueue_get.lost_index = index


def _find_message(engine: Engine, row: int, index: int) -> Words | None:
    """Return the message of a queue with this index, as a scanned row.

    Recovery may meet thousands of damaged entries beside each other, and appends nothing meanwhile:
    it keeps what it found for the last run of them.
    """
    its_row, indexes, found = engine.mended_run
    if row != its_row or index not in indexes:
        indexes, found = _look_around(engine, row, index)
        if engine.world.settings.recovering != 0:
            engine.mended_run = row, indexes, found
    return found.get(index)


def _look_around(engine: Engine, row: int, index: int) -> tuple[range, dict[int, Words]]:
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
    run, found = range(first, max(stop, index + 1)), dict[int, Words]()
    topic, queue_id = queues.topics[row], int(queues.table.queue_id[row])
    reader, offset = _reader(engine), low
    while 0 <= offset < high:
        scanned = reader.scan(offset, high)
        for rows in scanned:
            indexes = rows[:, scan.ROW_QUEUE_INDEX]
            likely = (run.start <= indexes) & (indexes < run.stop)
            likely &= rows[:, scan.ROW_QUEUE_ID] == queue_id
            for each in rows[likely & (rows[:, scan.ROW_TOPIC_BYTES] == len(topic))]:
                if log.read(int(each[scan.ROW_TOPIC]), len(topic)) == topic:
                    found.setdefault(int(each[scan.ROW_QUEUE_INDEX]), np.array(each))
        offset = scanned.end
        if offset < high:
            offset = reader.next_message(offset, high)
    return run, found


def _sound_message(engine: Engine, row: int, index: int) -> int:
    """Return the offset that an entry says, or −1 where it is not its message's."""
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
