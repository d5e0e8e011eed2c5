"""Queue files that are gone from either end of a queue: what nothing but the commit log can tell.

Retention keeps what points to kept messages, and the segment of the last entry; the next segment is
made before one is full. So a queue is asked about only if it has no file, ends with a full one,
or begins with an entry of a message that is not the log's first: seldom, because it takes a scan.
A topic of which nothing has fired yet has no file either. After a clean close its counters say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.reading.pastdamage import sound_messages
from timerstore.timelog.reading.reader import StoreReader
from timerstore.timelog.writing.tally import FIRED_COUNT, LOST_COUNT, PUT_COUNT, TALLY_WORDS

if TYPE_CHECKING:
    from timerstore.services.engine.engine import Engine


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
    reader = StoreReader(
        engine.path, engine.level_ms, precision_ms=engine.precision_ms, folder=engine.disk.folder
    )
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
