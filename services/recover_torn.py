"""What a crash has torn at the commit log's end: a message, or a batch of them.

An acknowledgement record and its puts are appended under one taking of the append lock, so nothing
stands behind a batch that is not whole. It is cut off the log as half a message is.
"""

from __future__ import annotations

import numpy as np

from timerstore.services.engine import Engine
from timerstore.timelog import scan
from timerstore.timelog.ackrecord import ACKS_TOPIC, read_record
from timerstore.timelog.decode import decode_message
from timerstore.timelog.nonzero import last_used
from timerstore.timelog.record import Words
from timerstore.timelog.segmenttable import apron_bytes


def torn_bytes(engine: Engine, end: int) -> int:
    """Return how many bytes stand behind the log's end that were not written whole."""
    number, position = divmod(end, engine.commitlog.segment_bytes)
    if number not in engine.commitlog.numbers:
        return 0
    file = engine.commitlog.ensure(number)
    used = engine.disk.used_ranges(file)
    tail = file.view[position : max(position, used[-1][1] if used else 0)]
    # What is behind the apron may be of an earlier use.
    if not tail[: apron_bytes(file.length)].any():
        return 0
    return last_used(tail) + 1


def whole_count(engine: Engine, part: Words, queue_rows: Words) -> int:
    """Return how many of some scanned messages there are before a record that lacks puts.

    `queue_rows`: the queue's row of each. O(messages), and one that is decoded.
    """
    rows = engine.queues.rows(ACKS_TOPIC)
    records = np.flatnonzero(np.isin(queue_rows, rows)) if rows else np.zeros(0, np.int64)
    if not len(records):
        return len(part)
    last = int(records[-1])
    offset = int(part[last, scan.ROW_OFFSET])
    message = decode_message(engine.commitlog.view(offset), offset)
    record = read_record(message.body)
    if record is None or last + record.put_count < len(part):
        return len(part)
    return last
