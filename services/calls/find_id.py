"""Messages that name a timer, found among those that a queue's entries lead to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.intrinsics import get_i64, get_u8
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.record import Bytes, Words
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts, read_message
from timerstore.timelog.files.segmenttable import (
    MESSAGES_AHEAD,
    SegmentTable,
    prefetch_message,
    segment_at,
)

_UNMAPPED: Final = -1


@inlined
def _ends_in(buf: Bytes, at: int, count: int, text: Words) -> bool:
    """Tell whether `count` bytes of a message end in these characters."""
    if count < len(text):
        return False
    at += count - len(text)
    for i in range(len(text)):
        if get_u8(buf, at + i) != text[i]:
            return False
    return True


@kernel_ahead
def find_id(
    commitlog: SegmentTable, messages: Words, id: Words, found: MessageParts, start: int
) -> int:
    """Return the first of some messages, from `start` on, that has an id, or deletes it; or n.

    `messages`: int64[n], commit log offsets, any numbers. `id`: int64[32], its characters. `found`:
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
        if read_message(buf, at, found, False) != GOOD:
            continue
        if get_i64(buf, at + fmt.MESSAGE_OFFSET_AT) != message:
            continue  # an old message in a segment that is used again
        is_key = found.key_bytes == len(id) and _ends_in(buf, found.key_at, len(id), id)
        if is_key or _ends_in(buf, found.deletes_at, found.deletes_bytes, id):
            return i
    return len(messages)


def find_named(engine: Engine, messages: Words, id: str) -> Iterator[int]:
    """Yield the places of all messages that have an id, or delete it. No lock is held.

    `messages`: int64[n], commit log offsets. What is damaged, or was removed, is passed by.
    """
    log, text = engine.commitlog, np.frombuffer(id.encode("ascii"), np.uint8).astype(np.int64)
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
