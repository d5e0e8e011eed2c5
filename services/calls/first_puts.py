"""The first put of a timer, found by what its id says."""

from __future__ import annotations

from typing import Final

from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import (
    BAD_CRC,
    GOOD,
    IDENTITY_OURS,
    MessageParts,
    identify_timer,
    read_message,
)
from timerstore.timelog.bytes.text import get_hex
from timerstore.timelog.files.segmenttable import (
    MESSAGES_AHEAD,
    SegmentTable,
    prefetch_message,
    segment_at,
)
from timerstore.timelog.jit.intrinsics import get_i32, get_i64
from timerstore.timelog.jit.kernel import inlined, kernel_ahead
from timerstore.timelog.jit.record import Bytes, Words
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX, QueueTable
from timerstore.timelog.writing.consumequeue import find_row
from timerstore.wheel.sets import map_get

# What there is in the place of a row.
UNKNOWN: Final = -1
GONE: Final = -2
UNMAPPED: Final = -3
NO_ROW: Final = -4
DAMAGED: Final = -5


@inlined
def row_of_first_put(
    queues: QueueTable, buf: Bytes, found: MessageParts, due_ms: int, offset: int, tag: int
) -> int:
    """Return the row of the real topic's queue of a message that was read.

    UNKNOWN where it is not the first put of the id with this due time and offset; NO_ROW where
    nothing was put to that topic or fired since the store was opened.
    """
    if found.real_topic_bytes < 0 or found.deletes_bytes >= 0:
        return UNKNOWN
    identify_timer(buf, found, tag)
    if found.identity_high != IDENTITY_OURS or found.identity_low != offset:
        return UNKNOWN
    if get_hex(buf, found.key_at, 12) != due_ms:
        return UNKNOWN
    row = find_row(
        queues, buf, found.real_topic_at, found.real_topic_bytes, max(0, found.real_queue)
    )
    return row if row >= 0 else NO_ROW


@kernel_ahead
def look_up(
    commitlog: SegmentTable,
    queues: QueueTable,
    offsets: Words,
    due_ms: Words,
    tag: int,
    start: int,
    end: int,
    done: Words,
    done_count: int,
    found: MessageParts,
    rows: Words,
    indexes: Words,
    levels: Words,
    born_ms: Words,
    body_bytes: Words,
) -> int:
    """Read the first put of each id; `rows`: written: its real topic's queue, UNKNOWN or GONE.

    Or NO_ROW, where nothing was put to that topic or fired since the store was opened; or DAMAGED,
    where a message begins that cannot be read.

    `indexes`: written: its index in the timer topic's queue, or in that of `levels`, its delay
    level − 1. `born_ms`, `body_bytes`: written. Return the first whose segment is not mapped, or n.
    `start`, `end`: what the commit log holds.
    """
    for i in range(len(offsets)):
        if i + MESSAGES_AHEAD < len(offsets):
            prefetch_message(commitlog, offsets[i + MESSAGES_AHEAD] & ~fmt.LEVEL_MARK)
        if rows[i] != UNMAPPED and rows[i] != NO_ROW:
            continue
        offset = offsets[i] & ~fmt.LEVEL_MARK
        rows[i] = UNKNOWN
        if offset < start:
            rows[i] = GONE
            continue
        if offset >= end:
            continue
        buf = segment_at(commitlog, offset)
        if len(buf) == 0:
            rows[i] = UNMAPPED
            return i
        at = offset % commitlog.segment_bytes
        status = read_message(buf, at, found, True)
        if status != GOOD:
            its_own = at + fmt.MESSAGE_HEADER_BYTES <= len(buf)
            its_own = its_own and get_i64(buf, at + fmt.MESSAGE_OFFSET_AT) == offset
            if status == BAD_CRC or its_own:
                rows[i] = DAMAGED
            continue
        rows[i] = row_of_first_put(queues, buf, found, due_ms[i], offsets[i], tag)
        if rows[i] == NO_ROW:
            return i
        if rows[i] == UNKNOWN:
            continue
        indexes[i] = get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT)
        born_ms[i] = get_i64(buf, at + fmt.MESSAGE_BORN_AT)
        body_bytes[i] = found.body_bytes
        if offsets[i] >= fmt.LEVEL_MARK:
            rows[i] += QUEUE_COUNT_MAX
            levels[i] = get_i32(buf, at + fmt.MESSAGE_QUEUE_ID_AT) & (fmt.LEVEL_COUNT_MAX - 1)
            if done_count > 0 and map_get(done, offset) >= 0:
                indexes[i] = -1  # an earlier life has delivered it
    return len(offsets)
