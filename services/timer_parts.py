"""Where the parts of a pending timer's message lie, for Python to cut them out."""

from __future__ import annotations

from typing import Any, Final

from timerstore.timelog.append import QueueTable
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.format import KEY_DIGITS, MESSAGE_BORN_AT
from timerstore.timelog.jit.intrinsics import copy_bytes, get_i64
from timerstore.timelog.jit.kernel import inlined, kernel_ahead
from timerstore.timelog.jit.record import Bytes, Words
from timerstore.timelog.message import (
    BODY_AT,
    BODY_BYTES,
    GOOD,
    KEY_AT,
    KEYS_AT,
    KEYS_BYTES,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    TAGS_AT,
    TAGS_BYTES,
    is_plain,
    read_message,
)
from timerstore.timelog.segmenttable import (
    MESSAGES_AHEAD,
    SEGMENT_BYTES,
    SegmentTable,
    prefetch_message,
    segment_at,
)
from timerstore.timelog.text import get_hex

# Where a message's parts begin and end in its segment.
PART_STATUS: Final = 0  # what `read_message` says of it; −1 where it is not mapped
PART_BODY: Final = 1
PART_BODY_END: Final = 2
PART_PROPERTIES: Final = 3
PART_PROPERTIES_END: Final = 4
PART_BORN_MS: Final = 5
PART_ROW: Final = 6  # of its real topic's queue; −1: its properties have to be looked at
PART_KEY: Final = 7  # in a row: the user's key, −1 for none
PART_KEY_END: Final = 8
PART_TAG: Final = 9
PART_TAG_END: Final = 10
PART_COLUMNS: Final = 11


@inlined
def _is_hex(buf: Any, at: int) -> bool:
    """Tell whether the 32 bytes of an id are hex digits, each a letter by itself."""
    return (
        get_hex(buf, at, 12) >= 0
        and get_hex(buf, at + 12, 12) >= 0
        and get_hex(buf, at + 24, 8) >= 0
    )


@inlined
def note_parts(buf: Any, at: int, found: Words, row: int, parts: Words, first: int) -> None:
    """Note where the parts of a message that was read at `at` lie, from `parts[first]` on.

    `row`: of its real topic's queue.
    """
    parts[first + PART_BODY] = found[BODY_AT]
    parts[first + PART_BODY_END] = found[BODY_AT] + found[BODY_BYTES]
    parts[first + PART_PROPERTIES] = found[PROPERTIES_AT]
    parts[first + PART_PROPERTIES_END] = found[PROPERTIES_AT] + found[PROPERTIES_BYTES]
    parts[first + PART_BORN_MS] = get_i64(buf, at + MESSAGE_BORN_AT)
    parts[first + PART_ROW] = -1
    if is_plain(buf, found) and _is_hex(buf, found[KEY_AT]):
        parts[first + PART_ROW] = row
        parts[first + PART_KEY] = found[KEYS_AT]
        parts[first + PART_KEY_END] = found[KEYS_AT] + found[KEYS_BYTES]
        parts[first + PART_TAG] = found[TAGS_AT]
        parts[first + PART_TAG_END] = found[TAGS_AT] + found[TAGS_BYTES]


@kernel_ahead
def find_parts(
    commitlog: SegmentTable,
    queues: QueueTable,
    messages: Words,
    found: Words,
    parts: Words,
    ids: Bytes,
) -> int:
    """Fill where each message's parts lie: int64[n * PART_COLUMNS]. O(bytes).

    `ids`: uint8[n * 32], written where PART_ROW is no −1: the timer's id.
    """
    for i in range(len(messages)):
        if i + MESSAGES_AHEAD < len(messages):
            prefetch_message(commitlog, messages[i + MESSAGES_AHEAD])
        buf = segment_at(commitlog, messages[i])
        at = messages[i] % commitlog.words[SEGMENT_BYTES]
        first = i * PART_COLUMNS
        parts[first + PART_STATUS] = -1
        if len(buf) == 0:
            continue
        parts[first + PART_STATUS] = read_message(buf, at, found, True)
        if parts[first + PART_STATUS] == GOOD:
            topic_at, topic_bytes, row = found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES], -1
            if topic_bytes >= 0:
                row = find_row(queues, buf, topic_at, topic_bytes, max(0, found[REAL_QUEUE]))
            note_parts(buf, at, found, row, parts, first)
            if parts[first + PART_ROW] >= 0:
                copy_bytes(ids, i * KEY_DIGITS, buf, found[KEY_AT], KEY_DIGITS)
    return len(messages)
