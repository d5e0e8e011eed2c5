"""Where the parts of a pending timer's message lie, so that Python can cut them out."""

from __future__ import annotations

from typing import Final

from timerstore.jit.intrinsics import copy_bytes, get_i64
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.record import Bytes, Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts, is_plain, read_message
from timerstore.timelog.bytes.text import get_hex_8, get_hex_12
from timerstore.timelog.files.segmenttable import (
    MESSAGES_AHEAD,
    SegmentTable,
    prefetch_message,
    segment_at,
)
from timerstore.timelog.writing.append import QueueTable
from timerstore.timelog.writing.consumequeue import find_row

# Where a message's parts begin and end in its segment.
SPAN_STATUS: Final = 0  # what `read_message` says of it; −1 if it is not mapped
SPAN_BODY: Final = 1
SPAN_BODY_END: Final = 2
SPAN_PROPERTIES: Final = 3
SPAN_PROPERTIES_END: Final = 4
SPAN_BORN_MS: Final = 5
SPAN_ROW: Final = 6  # of its real topic's queue; −1: its properties have to be looked at
SPAN_KEY: Final = 7  # in a row: the user's key, −1 for none
SPAN_KEY_END: Final = 8
SPAN_TAG: Final = 9
SPAN_TAG_END: Final = 10
SPAN_COLUMNS: Final = 11


@inlined
def _is_hex(buf: Bytes, at: int) -> bool:
    """Tell whether the 32 bytes of an id are hex digits, each a letter by itself."""
    return (
        get_hex_12(buf, at) >= 0 and get_hex_12(buf, at + 12) >= 0 and get_hex_8(buf, at + 24) >= 0
    )


@inlined
def note_parts(
    buf: Bytes, at: int, found: MessageParts, row: int, parts: Words, first: int
) -> None:
    """Note where the parts of a message that was read at `at` lie, from `parts[first]` on.

    `row`: of its real topic's queue.
    """
    parts[first + SPAN_BODY] = found.body_at
    parts[first + SPAN_BODY_END] = found.body_at + found.body_bytes
    parts[first + SPAN_PROPERTIES] = found.properties_at
    parts[first + SPAN_PROPERTIES_END] = found.properties_at + found.properties_bytes
    parts[first + SPAN_BORN_MS] = get_i64(buf, at + fmt.MESSAGE_BORN_AT)
    parts[first + SPAN_ROW] = -1
    if is_plain(buf, found) and _is_hex(buf, found.key_at):
        parts[first + SPAN_ROW] = row
        parts[first + SPAN_KEY] = found.keys_at
        parts[first + SPAN_KEY_END] = found.keys_at + found.keys_bytes
        parts[first + SPAN_TAG] = found.tags_at
        parts[first + SPAN_TAG_END] = found.tags_at + found.tags_bytes


@kernel_ahead
def find_timer_parts(
    commitlog: SegmentTable,
    queues: QueueTable,
    messages: Words,
    found: MessageParts,
    parts: Words,
    ids: Bytes,
) -> int:
    """Fill where each message's parts lie: int64[n * SPAN_COLUMNS]. O(bytes).

    `ids`: uint8[n * 32], written if SPAN_ROW is not −1: the timer's id.
    """
    for i in range(len(messages)):
        if i + MESSAGES_AHEAD < len(messages):
            prefetch_message(commitlog, messages[i + MESSAGES_AHEAD])
        buf = segment_at(commitlog, messages[i])
        at = messages[i] % commitlog.segment_bytes
        first = i * SPAN_COLUMNS
        parts[first + SPAN_STATUS] = -1
        if len(buf) == 0:
            continue
        parts[first + SPAN_STATUS] = read_message(buf, at, found, True)
        if parts[first + SPAN_STATUS] == GOOD:
            topic_at, topic_bytes, row = found.real_topic_at, found.real_topic_bytes, -1
            if topic_bytes >= 0:
                row = find_row(queues, buf, topic_at, topic_bytes, max(0, found.real_queue))
            note_parts(buf, at, found, row, parts, first)
            if parts[first + SPAN_ROW] >= 0:
                copy_bytes(ids, i * fmt.KEY_DIGITS, buf, found.key_at, fmt.KEY_DIGITS)
    return len(messages)
