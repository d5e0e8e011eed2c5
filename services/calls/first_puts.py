"""The messages of a timer: its first put, by what its id says, and all that name it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.intrinsics import bytes_are, get_i32, get_i64
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.record import Bytes, ReadBytes, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.world.floor import find_in
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import id_is
from timerstore.timelog.bytes.message import BAD_CRC, GOOD, MessageParts, read_message
from timerstore.timelog.files.segmenttable import (
    MESSAGES_AHEAD,
    SegmentTable,
    prefetch_message,
    segment_at,
)
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX, QueueTable
from timerstore.timelog.writing.consumequeue import find_row

# What there is in the place of a row.
PUT_UNKNOWN: Final = -1
PUT_GONE: Final = -2
PUT_UNMAPPED: Final = -3
PUT_NO_ROW: Final = -4  # nothing was put to that topic or fired since the store was opened
PUT_DAMAGED: Final = -5  # a message begins there that cannot be read


class FirstPuts(NamedTuple):
    """Where the first puts of some of this store's timers lie; int64[n] each."""

    due_ms: Words
    offset: Words  # as in the id: of a delay level's with LEVEL_MARK
    row: Words  # queue of the real topic, of a delay level's + QUEUE_COUNT_MAX; or a constant above
    entry: Words  # index in the timer topic's queue, or in its level's
    level: Words  # delay level − 1, or −1 for a timer
    born_ms: Words  # of the message, as below
    body_bytes: Words


def new_first_puts(due_ms: Words, offset: Words) -> FirstPuts:
    """Return first puts of which nothing is known but their ids."""
    count = len(offset)
    row, level = np.full(count, PUT_UNMAPPED, np.int64), np.full(count, -1, np.int64)
    entry, born_ms, body_bytes = (np.zeros(count, np.int64) for _ in range(3))
    return FirstPuts(due_ms, offset, row, entry, level, born_ms, body_bytes)


@inlined
def row_of_first_put(
    queues: QueueTable, buf: Bytes, found: MessageParts, due_ms: int, offset: int, tag: int
) -> int:
    """Return the row of the real topic's queue of a message that was read.

    PUT_UNKNOWN if it is not the first put of the id with this due time and offset; PUT_NO_ROW if
    nothing was put to that topic or fired since the store was opened.
    """
    if found.real_topic_bytes < 0 or found.deletes_bytes >= 0:
        return PUT_UNKNOWN
    if found.key_bytes != fmt.KEY_DIGITS or not id_is(buf, found.key_at, due_ms, offset, tag):
        return PUT_UNKNOWN
    row = find_row(
        queues, buf, found.real_topic_at, found.real_topic_bytes, max(0, found.real_queue)
    )
    return row if row >= 0 else PUT_NO_ROW


@kernel_ahead
def look_up(world: World, puts: FirstPuts, start: int, end: int, found: MessageParts) -> int:
    """Read the first put of each id, of which due time and offset are given.

    Return the first whose segment is not mapped, or which has PUT_NO_ROW, or n. `start`, `end`:
    what the commit log holds. O(bytes).
    """
    commitlog, tag, offsets, rows = world.commitlog, world.settings.store_tag, puts.offset, puts.row
    for i in range(len(offsets)):
        if i + MESSAGES_AHEAD < len(offsets):
            prefetch_message(commitlog, offsets[i + MESSAGES_AHEAD] & ~fmt.LEVEL_MARK)
        if rows[i] != PUT_UNMAPPED and rows[i] != PUT_NO_ROW:
            continue
        offset = offsets[i] & ~fmt.LEVEL_MARK
        rows[i] = PUT_UNKNOWN
        if offset < start:
            rows[i] = PUT_GONE
            continue
        if offset >= end:
            continue
        buf = segment_at(commitlog, offset)
        if len(buf) == 0:
            rows[i] = PUT_UNMAPPED
            return i
        at = offset % commitlog.segment_bytes
        status = read_message(buf, at, offset, found, True)
        if status != GOOD:
            its_own = at + fmt.MESSAGE_HEADER_BYTES <= len(buf)
            its_own = its_own and get_i64(buf, at + fmt.MESSAGE_OFFSET_AT) == offset
            if status == BAD_CRC or its_own:
                rows[i] = PUT_DAMAGED
            continue
        rows[i] = row_of_first_put(world.queues, buf, found, puts.due_ms[i], offsets[i], tag)
        if rows[i] == PUT_NO_ROW:
            return i
        if rows[i] == PUT_UNKNOWN:
            continue
        puts.entry[i] = get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT)
        puts.born_ms[i] = get_i64(buf, at + fmt.MESSAGE_BORN_AT)
        puts.body_bytes[i] = found.body_bytes
        if offsets[i] >= fmt.LEVEL_MARK:
            rows[i] += QUEUE_COUNT_MAX
            puts.level[i] = get_i32(buf, at + fmt.MESSAGE_QUEUE_ID_AT) & (fmt.LEVEL_COUNT_MAX - 1)
            if find_in(world.done, offset) >= 0:
                puts.entry[i] = -1  # an earlier life has delivered it
    return len(offsets)


# --- Messages that name a timer, found among those that a queue's entries lead to.

_UNMAPPED: Final = -1


@inlined
def _ends_in(buf: Bytes, at: int, count: int, text: ReadBytes) -> bool:
    """Tell whether `count` bytes of a message end in these characters."""
    return count >= len(text) and bytes_are(buf, at + count - len(text), text, 0, len(text))


@kernel_ahead
def find_id(
    commitlog: SegmentTable, messages: Words, id: ReadBytes, found: MessageParts, start: int
) -> int:
    """Return the first of some messages, from `start` on, that has an id, or deletes it; or n.

    `messages`: int64[n], commit log offsets, any numbers. `id`: its characters. `found`:
    scratch. −1 − i if the segment of message i is not mapped. A message is believed only at its own
    offset; its CRC is not checked. O(n).
    """
    for i in range(start, len(messages)):
        if i + MESSAGES_AHEAD < len(messages):
            prefetch_message(commitlog, messages[i + MESSAGES_AHEAD])
        message = messages[i]
        if message < 0 or message >= commitlog.end:
            continue
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return _UNMAPPED - i
        at = message % commitlog.segment_bytes
        if read_message(buf, at, message, found, False) != GOOD:
            continue
        is_key = found.key_bytes == len(id) and _ends_in(buf, found.key_at, len(id), id)
        if is_key or _ends_in(buf, found.deletes_at, found.deletes_bytes, id):
            return i
    return len(messages)


def find_named(engine: Engine, messages: Words, id: str) -> Iterator[int]:
    """Yield the places of all messages that have an id, or delete it. No lock is held.

    `messages`: int64[n], commit log offsets. What is damaged, or was removed, is passed by.
    """
    log, text = engine.commitlog, np.frombuffer(id.encode("ascii"), np.uint8)
    found, at = MessageParts(), 0
    while at < len(messages):
        with log.reading() as table:
            place = find_id(table, messages, text, found, at)
        if place >= 0:
            if place < len(messages):
                yield place
            at = place + 1
            continue
        at = _UNMAPPED - place
        try:
            log.existing(int(messages[at]) // log.segment_bytes)
        except CorruptStoreError:  # removed just now, or lost
            at += 1
