"""Scanning the commit log: one kernel that turns a range of messages into rows of numbers.

Recovery, the inspector and the tests all read the log through it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.intrinsics import bytes_are, copy_bytes, get_i32, get_i64, get_u8
from timerstore.jit.kernel import inlined, kernel_later
from timerstore.jit.record import Bytes, Int32s, ReadBytes, Rows, Table, Words, record
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import BLANK_PLAIN, NO_BLANK, read_blank
from timerstore.timelog.bytes.message import (
    BAD_CRC,
    BAD_MAGIC,
    BAD_PARTS,
    GOOD,
    MessageParts,
    exact_due_ms,
    find_byte,
    identify_named,
    is_ours,
    is_plain,
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
def is_level_topic(buf: Bytes, at: int, count: int) -> bool:
    """Tell whether a topic is the one of the delay levels."""
    return count == len(_LEVEL_TOPIC) and bytes_are(buf, at, _LEVEL_TOPIC, 0, count)


@inlined
def is_half_topic(buf: Bytes, at: int, count: int) -> bool:
    """Tell whether a topic is the one of transactions that are not committed."""
    return count == len(_HALF_TOPIC) and bytes_are(buf, at, _HALF_TOPIC, 0, count)


@inlined
def stands_there(
    buf: Bytes, at: int, found: MessageParts, topic: Bytes, queue_id: int, index: int
) -> bool:
    """Tell whether a message says that it is entry `index` of a topic's queue."""
    if get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT) != index or found.topic_bytes != len(topic):
        return False
    if get_i32(buf, at + fmt.MESSAGE_QUEUE_ID_AT) != queue_id:
        return False
    return bytes_are(buf, found.topic_at, topic, 0, len(topic))


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


# --- Kernels that turn messages into columns: numbers, texts, properties.
#
# They fill plain arrays, whose memory Arrow takes over as it is, so that a table of a million rows
# is made with no Python object for each of them. Only `message.py` and this file decide what a
# message is, and where its parts lie.


@record
class LoggedParts(Table):
    """Where the other parts of messages lie, by commit log offset and count of bytes; −1: none."""

    body_at: Words
    body_bytes: Words
    properties_at: Words
    properties_bytes: Words
    keys_at: Words
    keys_bytes: Words
    tags_at: Words
    tags_bytes: Words
    flag: Words
    system_flag: Words
    reconsumes: Words
    is_plain: Words  # 1: the user gave no property but key and tag, see `is_plain`


@kernel_later
def find_parts(
    commitlog: SegmentTable, rows: LoggedMessages, found: MessageParts, parts: LoggedParts
) -> None:
    """Find the parts of scanned messages whose segments are mapped. O(bytes of properties).

    `rows`: sound messages. `found`: scratch. `parts`: written.
    """
    segment_bytes = commitlog.segment_bytes
    for i in range(len(rows.offset)):
        buf = segment_at(commitlog, rows.offset[i])
        at = rows.offset[i] % segment_bytes
        if len(buf) == 0 or read_message(buf, at, rows.offset[i], found, False) != GOOD:
            parts.body_at[i] = parts.body_bytes[i] = -1
            parts.properties_at[i] = parts.properties_bytes[i] = -1
            parts.keys_at[i] = parts.keys_bytes[i] = -1
            parts.tags_at[i] = parts.tags_bytes[i] = -1
            parts.flag[i] = parts.system_flag[i] = parts.reconsumes[i] = parts.is_plain[i] = -1
            continue
        fill_parts(buf, at, rows.offset[i] - at, found, parts, i)


@inlined
def fill_parts(
    buf: Bytes, at: int, base: int, found: MessageParts, parts: LoggedParts, i: int
) -> None:
    """Write row `i`: where a message's parts lie; `base`: its segment's offset."""
    system_flag = get_i32(buf, at + fmt.MESSAGE_SYSTEM_FLAG_AT)
    moved = 0
    if system_flag & fmt.SYSTEM_FLAG_BORN_V6:
        moved += fmt.HOST_V6_EXTRA_BYTES
    if system_flag & fmt.SYSTEM_FLAG_STORE_V6:
        moved += fmt.HOST_V6_EXTRA_BYTES
    parts.body_at[i] = base + found.body_at
    parts.body_bytes[i] = found.body_bytes
    parts.properties_at[i] = base + found.properties_at
    parts.properties_bytes[i] = found.properties_bytes
    parts.keys_at[i] = base + found.keys_at
    parts.keys_bytes[i] = found.keys_bytes
    parts.tags_at[i] = base + found.tags_at
    parts.tags_bytes[i] = found.tags_bytes
    parts.flag[i] = get_i32(buf, at + fmt.MESSAGE_FLAG_AT)
    parts.system_flag[i] = system_flag
    parts.reconsumes[i] = get_i32(buf, at + fmt.MESSAGE_RECONSUME_AT + moved)
    parts.is_plain[i] = 1 if is_plain(buf, found) else 0


@kernel_later
def copy_texts(commitlog: SegmentTable, places: Words, starts: Int32s, data: Bytes) -> None:
    """Copy texts one behind the other; their segments are mapped. O(bytes).

    `places`: int64[n], commit log offsets. `starts`: int32[n + 1], where each begins in `data`,
    uint8, written. A text lies in one segment.
    """
    segment_bytes = commitlog.segment_bytes
    for i in range(len(places)):
        count = starts[i + 1] - starts[i]
        if count > 0:
            buf = segment_at(commitlog, places[i])
            copy_bytes(data, starts[i], buf, places[i] % segment_bytes, count)


@inlined
def _comes_again(buf: Bytes, start: int, count: int, after: int, end: int) -> bool:
    """Tell whether a property of the same name follows in [after, end): the last one counts."""
    while after < end:
        stop = find_byte(buf, after, end, fmt.VALUE_END)
        if stop - after > count and get_u8(buf, after + count) == fmt.NAME_END:
            if bytes_are(buf, after, buf, start, count):
                return True
        after = stop + 1
    return False


class Names(NamedTuple):
    """Some names of properties, one behind the other."""

    data: ReadBytes
    starts: Words  # int64[n + 1]


class PropertyTexts(NamedTuple):
    """What `list_properties` writes of m properties."""

    name_starts: Int32s  # int32[m + 1], the first one 0
    names: Bytes
    value_starts: Int32s  # int32[m + 1], the first one 0
    values: Bytes


@inlined
def _is_among(buf: Bytes, start: int, count: int, names: Names) -> bool:
    """Tell whether a property's name is one of some names. O(names)."""
    for each in range(len(names.starts) - 1):
        first = names.starts[each]
        if names.starts[each + 1] - first == count:
            if bytes_are(buf, start, names.data, first, count):
                return True
    return False


@inlined
def _counts(buf: Bytes, start: int, middle: int, stop: int, end: int, hidden: Names) -> bool:
    """Tell whether a property, its name ending at `middle`, is its name's last and not hidden."""
    count = middle - start
    return not _comes_again(buf, start, count, stop + 1, end) and not _is_among(
        buf, start, count, hidden
    )


@kernel_later
def list_properties(
    commitlog: SegmentTable,
    places: Words,
    lengths: Words,
    hidden: Names,
    counts: Rows,
    texts: PropertyTexts,
) -> None:
    """Count the properties of messages, whose segments are mapped, and copy them. O(bytes).

    `places`, `lengths`: int64[n], of the properties. `hidden`: names that do not count. `counts`:
    int64[n, 3], written: how many have different names, bytes of their names, of their values.
    `texts`: written, if there is room for any property; else they are only counted.
    """
    name_starts, names, value_starts, values = texts
    segment_bytes, at, copies = commitlog.segment_bytes, 0, len(name_starts) > 1
    for i in range(len(places)):
        counts[i, 0] = 0
        counts[i, 1] = 0
        counts[i, 2] = 0
        if lengths[i] <= 0:
            continue
        buf = segment_at(commitlog, places[i])
        start = places[i] % segment_bytes
        end = start + lengths[i]
        while start < end:
            stop = find_byte(buf, start, end, fmt.VALUE_END)
            middle = find_byte(buf, start, stop, fmt.NAME_END)
            if middle < stop and _counts(buf, start, middle, stop, end, hidden):
                name_bytes, value_bytes = middle - start, stop - middle - 1
                counts[i, 0] += 1
                counts[i, 1] += name_bytes
                counts[i, 2] += value_bytes
                if copies:
                    if name_bytes > 0:
                        copy_bytes(names, name_starts[at], buf, start, name_bytes)
                    if value_bytes > 0:
                        copy_bytes(values, value_starts[at], buf, middle + 1, value_bytes)
                    name_starts[at + 1] = name_starts[at] + name_bytes
                    value_starts[at + 1] = value_starts[at] + value_bytes
                    at += 1
            start = stop + 1
