"""Reading the messages of pending timers into columns."""

from __future__ import annotations

from timerstore.timelog.append import QueueTable
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.kernel import kernel_ahead
from timerstore.timelog.message import (
    DELETES_BYTES,
    DUE_MS,
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    ROLL_TIMES,
    exact_due_ms,
    identify_timer,
    read_message,
)
from timerstore.timelog.record import Rows, Words
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.wheel.sets import map_get


@kernel_ahead
def read_pending(
    commitlog: SegmentTable,
    queues: QueueTable,
    messages: Words,
    tag: int,
    precision_ms: int,
    done: Words,
    done_count: int,
    found: Words,
    columns: Rows,
) -> int:
    """Read pending messages into `columns`: int64[6, n]; return how many are timers.

    Left out: deletes, what cannot be read, and sources that have their copy. Segments are mapped.
    """
    count = 0
    for i in range(len(messages)):
        message = messages[i]
        if done_count > 0 and map_get(done, message) >= 0:
            continue
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            continue
        at = message % commitlog.words[SEGMENT_BYTES]
        if read_message(buf, at, found, False) != GOOD:
            continue
        if found[DUE_MS] < 0 or found[REAL_TOPIC_BYTES] < 0 or found[DELETES_BYTES] >= 0:
            continue
        identify_timer(buf, found, tag)
        columns[0, count] = message
        columns[1, count] = exact_due_ms(buf, found, tag, precision_ms)
        columns[2, count] = found[IDENTITY_HIGH]
        columns[3, count] = found[IDENTITY_LOW]
        columns[4, count] = max(0, found[ROLL_TIMES])
        columns[5, count] = find_row(
            queues, buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES], max(0, found[REAL_QUEUE])
        )
        count += 1
    return count
