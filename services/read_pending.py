"""Reading the messages of pending timers into columns."""

from __future__ import annotations

from timerstore.timelog.append import QueueTable
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.jit.kernel import kernel_ahead
from timerstore.timelog.jit.record import Rows, Words
from timerstore.timelog.message import (
    IDENTITY_HIGH,
    IDENTITY_LOW,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    ROLL_TIMES,
    exact_due_ms,
    identify_timer,
)
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.wheel.pending import GONE, PENDING, Reading, judge_message


@kernel_ahead
def read_pending(
    commitlog: SegmentTable,
    queues: QueueTable,
    messages: Words,
    reading: Reading,
    found: Words,
    columns: Rows,
    verdicts: Words,
) -> int:
    """Read pending messages into `columns`: int64[6, n]; return how many are timers.

    Left out: what is not pending, and what cannot be read, whose verdict is below 0. Segments are
    mapped. `verdicts`: int64[n], written. O(bytes).
    """
    count = 0
    for i in range(len(messages)):
        message = messages[i]
        buf = segment_at(commitlog, message)
        verdicts[i] = GONE
        if len(buf) == 0:
            continue
        at = message % commitlog.words[SEGMENT_BYTES]
        verdicts[i] = judge_message(buf, at, message, False, reading, found)
        if verdicts[i] != PENDING:
            continue
        identify_timer(buf, found, reading.tag)
        columns[0, count] = message
        columns[1, count] = exact_due_ms(buf, found, reading.tag, reading.precision_ms)
        columns[2, count] = found[IDENTITY_HIGH]
        columns[3, count] = found[IDENTITY_LOW]
        columns[4, count] = max(0, found[ROLL_TIMES])
        columns[5, count] = find_row(
            queues, buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES], max(0, found[REAL_QUEUE])
        )
        count += 1
    return count
