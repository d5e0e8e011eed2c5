"""Damaged queue entries: they are passed by until the next opening makes them anew.

A message says its own index, so an entry that is made anew stands at the same index. Until then a
group hands out what is sound, and keeps the index of the damaged entry as one that is not done.
"""

from __future__ import annotations

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.damage.pass_lost import look_at, pass_lost
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import QUEUES, TIMERS
from timerstore.services.world.damage import WRONG_ENTRY_REASON
from timerstore.services.world.state import ENTRY_DAMAGED
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.reading.audit import (
    ENTRY_BLANK,
    ENTRY_GOOD,
    ENTRY_REMOVED,
    QueueRun,
    judge_entries,
)


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


def is_damaged(engine: Engine, row: int, index: int) -> bool:
    """Tell whether what cannot be read is an entry, and not the message that it leads to."""
    try:
        entry = engine.queues.read(row, index, 1)
        return not is_sound(engine, row, index, entry) and not _leads_to_damage(engine, entry)
    except CorruptStoreError:
        return False  # retention removed what was looked at


def leave_entries(engine: Engine, row: int, indexes: list[int], *also: str) -> None:
    """Name damaged entries; have the queues made anew, with other indexes. Durable on return."""
    for index in indexes:
        place = index * fmt.ENTRY_BYTES
        engine.damage.note(engine.queues.name(row), place, WRONG_ENTRY_REASON)
    keep_from = 0 if also else _message_before(engine, row, min(indexes))
    engine.wanted.add(QUEUES, *also, keep_from=keep_from)


def _message_before(engine: Engine, row: int, index: int) -> int:
    """Return the offset of the message before an entry's, if it has a sound entry; else 0."""
    if index <= engine.queues.first_index(row):
        return 0
    try:
        entry = engine.queues.read(row, index - 1, 1)
        return int(entry["offset"][0]) if is_sound(engine, row, index - 1, entry) else 0
    except CorruptStoreError:
        return 0


def pass_timer_entry(engine: Engine, index: int) -> None:
    """Let enqueue-get pass an entry of the timer topic's queue by.

    If the entry is damaged, its timer waits until the next opening makes the indexes anew. An
    opening raises CorruptStoreError instead, and begins again by doing so. If the message is
    damaged, it is lost.
    """
    pass_lost(engine, engine.world.enqueue_get.thread)
    engine.world.enqueue_get.lost_index = index
    if is_damaged(engine, 0, index):
        if engine.world.settings.recovering != 0:
            place = index * fmt.ENTRY_BYTES
            raise CorruptStoreError(engine.queues.name(0), place, WRONG_ENTRY_REASON)
        leave_entries(engine, 0, [index], TIMERS)
        engine.world.enqueue_get.lost_index = ENTRY_DAMAGED - index


def _leads_to_damage(engine: Engine, entry: fmt.Entries) -> bool:
    """Tell whether an entry leads to a message that is damaged.

    Such a message still says its own offset, or another one begins where it ends. In the midst of
    many that are damaged neither may hold; then their entries count as damaged, too.
    """
    log, offset, size = engine.commitlog, int(entry["offset"][0]), int(entry["size"][0])
    if not log.start <= offset < log.end or size <= 0:
        return False
    if look_at(log.view(offset), 0, -1, MessageParts(), True) == GOOD:
        return False
    following = offset + size
    return following == log.end or any(_says(log, at) == at for at in (offset, following))


def _says(log: SegmentedFile, at: int) -> int:
    """Return the offset that the message at a place says of itself; −1 behind the log's end."""
    if at > log.end - fmt.MESSAGE_BYTES_MIN:
        return -1
    return int.from_bytes(log.read(at + fmt.MESSAGE_OFFSET_AT, 8), "big", signed=True)
