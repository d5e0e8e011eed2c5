"""Scanning the commit log: one kernel that turns a range of messages into rows of numbers.

Recovery, the inspector and the tests all read the log through it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.intrinsics import get_i32, get_i64, get_u8
from timerstore.jit.kernel import inlined, kernel_later
from timerstore.jit.record import Bytes, Table, Words, record
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import BLANK_PLAIN, NO_BLANK, read_blank
from timerstore.timelog.bytes.message import (
    BAD_CRC,
    BAD_MAGIC,
    BAD_PARTS,
    GOOD,
    MessageParts,
    exact_due_ms,
    identify_named,
    is_ours,
    is_topic_at,
    java_hash,
    read_message,
    stored_at,
)
from timerstore.timelog.bytes.text import get_hex_12
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at

# What stopped a scan, `LogPlace.stopped`.
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
def stands_there(
    buf: Bytes, at: int, found: MessageParts, topic: Bytes, queue_id: int, index: int
) -> bool:
    """Tell whether a message says that it is entry `index` of a topic's queue."""
    if get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT) != index or found.topic_bytes != len(topic):
        return False
    if get_i32(buf, at + fmt.MESSAGE_QUEUE_ID_AT) != queue_id:
        return False
    for i in range(len(topic)):
        if get_u8(buf, found.topic_at + i) != topic[i]:
            return False
    return True


@inlined
def tags_code(
    buf: Bytes, found: MessageParts, offset: int, stored_ms: int, tag: int, level_ms: Words
) -> int:
    """Return the tags code of a message's queue entry; for a delay level that is its due time.

    The key that we gave the message at `offset` says it, with any levels that held then.
    """
    if is_level_topic(buf, found.topic_at, found.topic_bytes) and found.level > 0:
        if is_ours(buf, found, tag):
            if get_hex_12(buf, found.key_at + 12) == offset | fmt.LEVEL_MARK:
                return get_hex_12(buf, found.key_at)
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


@record
class LoggedMessages(Table):
    """What the log says of messages; texts are given by commit log offset and count of bytes."""

    offset: Words
    size: Words
    queue_id: Words
    queue_index: Words
    born_ms: Words
    stored_ms: Words
    tags_code: Words
    topic_at: Words
    topic_bytes: Words
    key_at: Words
    key_bytes: Words
    real_topic_at: Words
    real_topic_bytes: Words
    real_queue: Words
    due_ms: Words  # TIMER_OUT_MS
    exact_due_ms: Words
    roll_times: Words
    origin: Words
    is_delete: Words
    is_replacement: Words
    identity_high: Words  # of a delete: its target's
    identity_low: Words
    level: Words
    status: Words


class QueueNames(NamedTuple):
    """Queues by their names, one for each of n messages."""

    topic_at: Words  # commit log offset
    topic_bytes: Words
    queue_id: Words


def stored_in(rows: LoggedMessages) -> QueueNames:
    """Return the queues in which messages stand."""
    return QueueNames(rows.topic_at, rows.topic_bytes, rows.queue_id)


def destined_for(rows: LoggedMessages) -> QueueNames:
    """Return the queues that timers name for when they are due."""
    queue_id = np.maximum(rows.real_queue, 0)
    return QueueNames(rows.real_topic_at, rows.real_topic_bytes, queue_id)


class ReadAs(NamedTuple):
    """How a store's messages are read."""

    tag: int
    precision_ms: int
    level_ms: Words  # int64, delay of each level
    verify: bool  # check CRCs as well


@record
class LogPlace:
    """Where a scan of the commit log is."""

    found: MessageParts  # scratch
    offset: int = 0  # of the next message
    stop: int = 0  # what begins from here on is not read
    sealed_from: int = 0  # from here on only a sealed blank counts, see `blank.py`
    stopped: int = STOP_COUNT  # what stopped it last


@kernel_later
def scan_commitlog(
    commitlog: SegmentTable, place: LogPlace, how: ReadAs, rows: LoggedMessages
) -> int:
    """Read messages from a place on into `rows`, and move the place; return how many. O(bytes)."""
    segment_bytes, found = commitlog.segment_bytes, place.found
    offset, stopped, count = place.offset, STOP_COUNT, 0
    while offset < place.stop and count < len(rows.offset):
        buf = segment_at(commitlog, offset)
        if len(buf) == 0:
            stopped = STOP_UNMAPPED
            break
        at = offset % segment_bytes
        left = segment_bytes - at
        if left < fmt.BLANK_BYTES:
            stopped = STOP_END
            break
        blank = read_blank(buf, at, offset)
        if blank == BLANK_PLAIN and offset >= place.sealed_from:
            stopped = STOP_END  # it may be of an earlier use of the segment
            break
        if blank != NO_BLANK:
            offset += left
            continue
        status = BAD_MAGIC
        if left >= fmt.MESSAGE_BYTES_MIN + fmt.BLANK_BYTES:
            status = read_message(buf, at, offset, found, how.verify)
        if status == BAD_MAGIC:
            stopped = STOP_END
            break
        if status == GOOD and how.verify and found.whole_crc == 0 and _has_hole(buf, found):
            status = BAD_CRC
        if status == GOOD and not is_topic_at(buf, found.topic_at, found.topic_bytes):
            status = BAD_PARTS
        rows.offset[count] = offset
        rows.status[count] = status
        if status != GOOD:
            stopped = STOP_BAD
            break
        fill_message(buf, at, offset - at, found, how, rows, count)
        offset += found.size
        count += 1
    place.offset, place.stopped = offset, stopped
    return count


@inlined
def fill_message(
    buf: Bytes,
    at: int,
    base: int,
    found: MessageParts,
    how: ReadAs,
    rows: LoggedMessages,
    i: int,
) -> None:
    """Write row `i` of what was found about a message; `base`: the segment's offset."""
    tag = how.tag
    rows.size[i] = found.size
    rows.queue_id[i] = get_i32(buf, at + fmt.MESSAGE_QUEUE_ID_AT)
    rows.queue_index[i] = get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT)
    rows.born_ms[i] = get_i64(buf, at + fmt.MESSAGE_BORN_AT)
    stored_ms = get_i64(buf, stored_at(buf, at))
    rows.stored_ms[i] = stored_ms
    rows.tags_code[i] = tags_code(buf, found, base + at, stored_ms, tag, how.level_ms)
    rows.topic_at[i] = base + found.topic_at
    rows.topic_bytes[i] = found.topic_bytes
    rows.key_at[i] = base + found.key_at
    rows.key_bytes[i] = found.key_bytes
    rows.real_topic_at[i] = base + found.real_topic_at
    rows.real_topic_bytes[i] = found.real_topic_bytes
    rows.real_queue[i] = found.real_queue
    rows.due_ms[i] = found.due_ms
    rows.exact_due_ms[i] = -1
    if found.due_ms >= 0:
        rows.exact_due_ms[i] = exact_due_ms(buf, found, tag, how.precision_ms)
    rows.roll_times[i] = max(0, found.roll_times)
    rows.origin[i] = found.origin
    rows.is_delete[i] = 1 if found.deletes_bytes >= 0 else 0
    rows.is_replacement[i] = 1 if found.replaces_bytes >= 0 else 0
    rows.level[i] = found.level
    identify_named(buf, found, tag)
    rows.identity_high[i] = found.identity_high
    rows.identity_low[i] = found.identity_low
