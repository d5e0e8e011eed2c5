"""Pending timers as objects: decoded from their messages, one or many at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from timerstore.core import Core
from timerstore.errors import CorruptStoreError
from timerstore.timelog.append import QueueTable
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.decode import decode_message, decode_properties, text, user_properties
from timerstore.timelog.format import KEY_DIGITS, MESSAGE_BORN_AT
from timerstore.timelog.intrinsics import copy_bytes, get_i64
from timerstore.timelog.kernel import inlined, kernel_ahead
from timerstore.timelog.message import (
    BODY_AT,
    BODY_BYTES,
    FOUND_WORDS,
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
from timerstore.timelog.record import Bytes, Words
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.timelog.text import get_hex

Int64s = np.ndarray[Any, np.dtype[np.int64]]

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


@dataclass(frozen=True, slots=True)
class Timer:
    """A pending timer."""

    id: str
    topic: str
    body: bytes
    key: str | None
    tag: str | None
    properties: dict[str, str]
    due_ms: int
    put_ms: int
    roll_count: int


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
def _find_parts(
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
        buf, at = segment_at(commitlog, messages[i]), messages[i] % commitlog.words[SEGMENT_BYTES]
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


def decode_timers(core: Core, messages: Int64s, due_ms: Int64s) -> list[Timer]:
    """Decode pending messages; those that were fired, consumed and removed since are left out."""
    log, queues, timers = core.engine.commitlog, core.engine.queues, []
    parts, found = np.empty(len(messages) * PART_COLUMNS, np.int64), np.zeros(FOUND_WORDS, np.int64)
    ids = np.zeros(len(messages) * KEY_DIGITS, np.uint8)
    numbers = messages // log.segment_bytes
    views: dict[int, Bytes] = {}
    with log.reading():
        for number in np.unique(numbers).tolist():
            try:
                views[number] = log.existing(number).view
            except CorruptStoreError:
                if number * log.segment_bytes >= log.start:
                    raise
        _find_parts(log.table, queues.table, messages, found, parts, ids)
        text_of_ids, topics = ids.tobytes().decode("latin-1"), {-1: ""}
        rows = parts.reshape(-1, PART_COLUMNS).tolist()
        columns = (numbers.tolist(), messages.tolist(), due_ms.tolist(), rows)
        at = -KEY_DIGITS
        for number, message, due, part in zip(*columns, strict=True):
            at += KEY_DIGITS
            view = views.get(number)
            if view is None:
                continue
            if part[PART_STATUS] != GOOD:
                try:  # where its map was dropped just now
                    timers.append(read_timer(core, message, due))
                except CorruptStoreError:
                    if message >= log.start:
                        raise
                continue
            row = part[PART_ROW]
            if row not in topics:
                topics[row] = text(queues.topics[row])
            timers.append(
                from_parts(view, part, text_of_ids[at : at + KEY_DIGITS], topics[row], due)
            )
    return timers


def from_parts(view: Bytes, part: list[int], id: str, topic: str, due_ms: int) -> Timer:
    """Return a timer whose parts were noted; `id`, `topic`: for where PART_ROW is no −1."""
    (
        _,
        body_at,
        body_end,
        properties_at,
        properties_end,
        born_ms,
        row,
        key_at,
        key_end,
        tag_at,
        tag_end,
    ) = part
    body = view[body_at:body_end].tobytes()
    if row < 0:
        properties = decode_properties(view[properties_at:properties_end].tobytes())
        return to_timer(properties, body, due_ms, born_ms)
    key = text(view[key_at:key_end].tobytes()) if key_at >= 0 else None
    tag = text(view[tag_at:tag_end].tobytes()) if tag_at >= 0 else None
    return Timer(id, topic, body, key, tag, {}, due_ms, born_ms, 0)


def read_timer(core: Core, offset: int, due_ms: int) -> Timer:
    """Decode the pending message at `offset`."""
    message = decode_message(core.engine.commitlog.view(offset).view(np.ndarray), offset)
    return to_timer(message.properties, message.body, due_ms, message.born_ms, message.topic)


def to_timer(
    properties: dict[str, str], body: bytes, due_ms: int, put_ms: int, topic: str = ""
) -> Timer:
    """Return a decoded message as a timer; `topic`: where it is, if it names no other."""
    return Timer(
        id=properties.get("UNIQ_KEY", ""),
        topic=properties.get("REAL_TOPIC", topic),
        body=body,
        key=properties.get("KEYS"),
        tag=properties.get("TAGS"),
        properties=user_properties(properties),
        due_ms=due_ms,
        put_ms=put_ms,
        roll_count=int(properties.get("TIMER_ROLL_TIMES", "0")),
    )
