"""Scanning the commit log: one kernel that turns a range of messages into rows of numbers.

Recovery, the inspector and the tests all read the log through it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import BLANK_PLAIN, NO_BLANK, read_blank
from timerstore.timelog.bytes.message import (
    BAD_CRC,
    BAD_MAGIC,
    BAD_PARTS,
    GOOD,
    MessageParts,
    exact_due_ms,
    identify_target,
    identify_timer,
    is_ours,
    is_topic_at,
    java_hash,
    read_message,
    stored_at,
)
from timerstore.timelog.bytes.text import get_hex
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.jit.intrinsics import get_i32, get_i64, get_u8
from timerstore.timelog.jit.kernel import inlined, kernel_later
from timerstore.timelog.jit.record import Bytes, Rows, Words

# Columns of a scanned row. Texts are given by commit log offset and count of bytes.
ROW_OFFSET: Final = 0
ROW_SIZE: Final = 1
ROW_QUEUE_ID: Final = 2
ROW_QUEUE_INDEX: Final = 3
ROW_BORN_MS: Final = 4
ROW_STORED_MS: Final = 5
ROW_TAGS_CODE: Final = 6
ROW_TOPIC: Final = 7
ROW_TOPIC_BYTES: Final = 8
ROW_KEY: Final = 9
ROW_KEY_BYTES: Final = 10
ROW_REAL_TOPIC: Final = 11
ROW_REAL_TOPIC_BYTES: Final = 12
ROW_REAL_QUEUE: Final = 13
ROW_DUE_MS: Final = 14  # TIMER_OUT_MS
ROW_EXACT_DUE_MS: Final = 15
ROW_ROLL_TIMES: Final = 16
ROW_ORIGIN: Final = 17
ROW_IS_DELETE: Final = 18
ROW_IS_REPLACEMENT: Final = 19
ROW_IDENTITY_HIGH: Final = 20  # of a delete: its target's
ROW_IDENTITY_LOW: Final = 21
ROW_LEVEL: Final = 22
ROW_STATUS: Final = 23
ROW_COLUMNS: Final = 24

# What stopped a scan, in `state[1]`.
STOP_COUNT: Final = 0  # the rows are full, or the limit was reached
STOP_END: Final = 1  # zeroes or something that is no message follow
STOP_BAD: Final = 2  # a message is there, but not whole; its row is written behind the good ones
STOP_UNMAPPED: Final = 3

_LEVEL_TOPIC = np.frombuffer(fmt.LEVEL_TOPIC, np.uint8).copy()
_HALF_TOPIC = np.frombuffer(fmt.HALF_TOPIC, np.uint8).copy()


@inlined
def _is_topic(buf: Bytes, at: int, count: int, topic: Bytes) -> bool:
    if count != len(topic):
        return False
    for i in range(count):
        if get_u8(buf, at + i) != topic[i]:
            return False
    return True


@inlined
def is_level_topic(buf: Bytes, at: int, count: int) -> bool:
    """Tell whether a topic is the one of the delay levels."""
    return _is_topic(buf, at, count, _LEVEL_TOPIC)


@inlined
def is_half_topic(buf: Bytes, at: int, count: int) -> bool:
    """Tell whether a topic is the one of transactions that are not committed."""
    return _is_topic(buf, at, count, _HALF_TOPIC)


@inlined
def tags_code(
    buf: Bytes, found: MessageParts, offset: int, stored_ms: int, tag: int, level_ms: Words
) -> int:
    """Return the tags code of a message's queue entry; for a delay level that is its due time.

    The key that we gave the message at `offset` says it, whatever the levels were then.
    """
    if is_level_topic(buf, found.topic_at, found.topic_bytes) and found.level > 0:
        if is_ours(buf, found, tag):
            if get_hex(buf, found.key_at + 12, 12) == offset | fmt.LEVEL_MARK:
                return get_hex(buf, found.key_at, 12)
        level = min(found.level, len(level_ms))
        return stored_ms + level_ms[level - 1]
    if found.tags_bytes <= 0:
        return 0
    return java_hash(buf, found.tags_at, found.tags_bytes)


@inlined
def _has_hole(buf: Bytes, found: MessageParts) -> bool:
    """Tell whether a message without a CRC of the whole has a zero in its properties.

    It may be one of ours whose last sectors, with that CRC, a power cut took.
    """
    for i in range(found.properties_bytes):
        if get_u8(buf, found.properties_at + i) == 0:
            return True
    return False


class ReadAs(NamedTuple):
    """How a store's messages are read."""

    tag: int
    precision_ms: int
    level_ms: Words  # int64, delay of each level
    verify: bool  # check CRCs as well


@kernel_later
def scan_commitlog(
    commitlog: SegmentTable,
    offset: int,
    stop: int,
    sealed_from: int,
    how: ReadAs,
    rows: Rows,
    found: MessageParts,
    state: Words,
) -> int:
    """Read messages in [offset, stop) into `rows`; return how many. O(bytes).

    `rows`: int64[n, ROW_COLUMNS], written. `found`: scratch. `state`: int64[2],
    written: where to go on, and what stopped the scan.
    `sealed_from`: from here on only a sealed blank counts, see `blank.py`.
    """
    segment_bytes = commitlog.segment_bytes
    count = 0
    state[1] = STOP_COUNT
    while offset < stop and count < len(rows):
        buf = segment_at(commitlog, offset)
        if len(buf) == 0:
            state[1] = STOP_UNMAPPED
            break
        at = offset % segment_bytes
        left = segment_bytes - at
        if left < fmt.BLANK_BYTES:
            state[1] = STOP_END
            break
        blank = read_blank(buf, at, offset)
        if blank == BLANK_PLAIN and offset >= sealed_from:
            state[1] = STOP_END  # it may be of an earlier use of the segment
            break
        if blank != NO_BLANK:
            offset += left
            continue
        status = BAD_MAGIC
        if left >= fmt.MESSAGE_BYTES_MIN + fmt.BLANK_BYTES:
            status = read_message(buf, at, found, how.verify)
        if status == BAD_MAGIC:
            state[1] = STOP_END
            break
        if status == GOOD and how.verify and found.whole_crc == 0 and _has_hole(buf, found):
            status = BAD_CRC
        if status == GOOD and get_i64(buf, at + fmt.MESSAGE_OFFSET_AT) != offset:
            status = BAD_PARTS  # an old message in a segment that is used again
        if status == GOOD and not is_topic_at(buf, found.topic_at, found.topic_bytes):
            status = BAD_PARTS
        row = rows[count]
        row[ROW_OFFSET] = offset
        row[ROW_STATUS] = status
        if status != GOOD:
            state[1] = STOP_BAD
            break
        fill_row(buf, at, offset - at, found, how, row)
        offset += found.size
        count += 1
    state[0] = offset
    return count


@inlined
def fill_row(
    buf: Bytes,
    at: int,
    base: int,
    found: MessageParts,
    how: ReadAs,
    row: Words,
) -> None:
    """Write what was found about a message; `base`: the segment's offset."""
    tag = how.tag
    row[ROW_SIZE] = found.size
    row[ROW_QUEUE_ID] = get_i32(buf, at + fmt.MESSAGE_QUEUE_ID_AT)
    row[ROW_QUEUE_INDEX] = get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT)
    row[ROW_BORN_MS] = get_i64(buf, at + fmt.MESSAGE_BORN_AT)
    stored_ms = get_i64(buf, stored_at(buf, at))
    row[ROW_STORED_MS] = stored_ms
    row[ROW_TAGS_CODE] = tags_code(buf, found, base + at, stored_ms, tag, how.level_ms)
    row[ROW_TOPIC] = base + found.topic_at
    row[ROW_TOPIC_BYTES] = found.topic_bytes
    row[ROW_KEY] = base + found.key_at
    row[ROW_KEY_BYTES] = found.key_bytes
    row[ROW_REAL_TOPIC] = base + found.real_topic_at
    row[ROW_REAL_TOPIC_BYTES] = found.real_topic_bytes
    row[ROW_REAL_QUEUE] = found.real_queue
    row[ROW_DUE_MS] = found.due_ms
    row[ROW_EXACT_DUE_MS] = -1
    if found.due_ms >= 0:
        row[ROW_EXACT_DUE_MS] = exact_due_ms(buf, found, tag, how.precision_ms)
    row[ROW_ROLL_TIMES] = max(0, found.roll_times)
    row[ROW_ORIGIN] = found.origin
    row[ROW_IS_DELETE] = 1 if found.deletes_bytes >= 0 else 0
    row[ROW_IS_REPLACEMENT] = 1 if found.replaces_bytes >= 0 else 0
    row[ROW_LEVEL] = found.level
    if found.deletes_bytes >= 0:
        identify_target(buf, found, tag)
    else:
        identify_timer(buf, found, tag)
    row[ROW_IDENTITY_HIGH] = found.identity_high
    row[ROW_IDENTITY_LOW] = found.identity_low
