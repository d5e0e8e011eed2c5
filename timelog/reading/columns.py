"""Kernels that turn messages into columns: numbers, texts, properties.

They fill plain arrays, whose memory Arrow takes over as it is, so that a table of a million rows is
made with no Python object for each of them. Only `message.py` and `scan.py` decide what a message
is, and where its parts lie.
"""

from __future__ import annotations

from typing import NamedTuple

from timerstore.jit.intrinsics import copy_bytes, get_i32, get_u8
from timerstore.jit.kernel import inlined, kernel_later
from timerstore.jit.record import Bytes, Int32s, ReadBytes, Rows, Table, Words, record
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts, find_byte, is_plain, read_message
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.reading.scan import LoggedMessages


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
            same = True
            for i in range(count):
                if get_u8(buf, after + i) != get_u8(buf, start + i):
                    same = False
                    break
            if same:
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
            same = True
            for i in range(count):
                if get_u8(buf, start + i) != names.data[first + i]:
                    same = False
                    break
            if same:
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
