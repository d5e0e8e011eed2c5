"""Single messages, whose properties differ each time, on their way into a stage.

`frame.py` frames many messages of one kind; this is for a put with properties, a reschedule or a
message that is sent back. The bytes are the same functions': head and tail are put around the body
here, and the kernel closes what they make. What is composed goes through the same stage and the
same appender.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Bytes
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.writing.append import NOT_TOLD, Stage
from timerstore.timelog.writing.frame import (
    close_message,
    encode_head,
    encode_property,
    encode_tail,
)


@kernel_ahead
def _close(message: Bytes, body_bytes: int, properties_at: int, born_ms: int) -> int:
    """Close a message that fills a buffer."""
    return close_message(message, 0, body_bytes, properties_at, len(message), born_ms)


def compose(
    topic: bytes,
    body: bytes,
    properties: bytes,
    *,
    born_ms: int,
    queue_id: int = 0,
    flag: int = 0,
    reconsume_times: int = 0,
) -> bytes:
    """Return a message that lacks only what its place decides; its CRC digits are zeros."""
    head = encode_head(topic, queue_id=queue_id, flag=flag, reconsume_times=reconsume_times)
    tail = encode_tail(topic, properties)
    message = bytearray(b"".join((head, body, tail)))
    properties_at = len(message) - fmt.CRC_PROPERTY_BYTES - len(properties) - 2
    _close(np.frombuffer(message, np.uint8), len(body), properties_at, born_ms)
    return bytes(message)


class Staged(NamedTuple):
    """A composed message, and what it does to the timers of a topic."""

    message: bytes
    row: int  # its queue
    tags_code: int
    pending_row: int  # the row in which the timer is counted, see `QueueTable.pending`; −1: none
    change: int  # of that count
    due_ms: int = 0  # of that timer
    born_ms: int = 0  # this and the next of a delete's target; else the message says it
    body_bytes: int = 0


def stage_messages(stage: Stage, messages: Iterable[Staged], *, own_key: bool = True) -> int:
    """Put composed messages into a stage; return how many.

    With `own_key` the offset digits of each `UNIQ_KEY` are stamped; else the keys stay as they are.
    """
    at = count = 0
    marker = fmt.PROPERTY_UNIQUE_KEY + b"\x01"
    for message, row, tags_code, pending_row, change, due_ms, born_ms, body_bytes in messages:
        stage.buffer[at : at + len(message)] = np.frombuffer(message, np.uint8)
        stage.size[count], stage.row[count] = len(message), row
        stage.tags_code[count] = tags_code
        key_at = message.rfind(b"\x02" + marker)
        stage.key_at[count] = key_at + 1 + len(marker) + 12 if own_key and key_at >= 0 else -1
        stage.pending_row[count], stage.pending_change[count] = pending_row, change
        stage.due_ms[count], stage.counted_ms[count] = NOT_TOLD, due_ms
        header = np.frombuffer(message, fmt.MESSAGE_HEADER, 1)[0]
        stage.keyed[count] = fmt.PROPERTY_KEYS + b"\x01" in message
        stage.born_ms[count] = header["born_ms"] if change > 0 else born_ms
        stage.body_bytes[count] = header["body_bytes"] if change > 0 else body_bytes
        at += len(message)
        count += 1
    return count


# --- Fillers: sound messages of a topic of our own that replace lost parts of a commit log.
#
# A reader of the log passes them, and offsets behind them stay what they were. Nobody reads their
# topic. A filler can carry the `TIMER_ORIGIN` of what stood there: that this message has its copy.

BYTES_MAX: Final = 1 << 20
_REST_BYTES: Final = (
    fmt.MESSAGE_HEADER_BYTES + 1 + len(fmt.SALVAGED_TOPIC) + 2 + fmt.CRC_PROPERTY_BYTES
)
BYTES_MIN: Final = _REST_BYTES + 1
"""An empty body is none that a broker takes."""
BYTES_OF_ORIGIN: Final = BYTES_MIN + len(fmt.PROPERTY_ORIGIN) + 2 + 19


def filler(
    offset: int, size: int, *, queue_id: int, index: int, stored_ms: int, origin: int = -1
) -> bytes:
    """Return a message of `size` bytes for a commit log offset."""
    assert BYTES_MIN <= size <= BYTES_MAX
    properties = b"" if origin < 0 else encode_property(fmt.PROPERTY_ORIGIN, b"%d" % origin)
    body = bytes(size - _REST_BYTES - len(properties))
    data = bytearray(
        compose(fmt.SALVAGED_TOPIC, body, properties, born_ms=stored_ms, queue_id=queue_id)
    )
    header = np.frombuffer(data, fmt.MESSAGE_HEADER, 1)
    header["queue_index"], header["offset"], header["stored_ms"] = index, offset, stored_ms
    crc = zlib.crc32(data[: -fmt.CRC_PROPERTY_BYTES]) & fmt.BODY_CRC_MASK
    data[-11:-1] = f"{crc:010d}"[::-1].encode()
    assert len(data) == size
    return bytes(data)


def cut_range(length: int, origin_count: int, *, to_end: bool) -> list[int] | None:
    """Cut a range of a log into sizes of fillers; None if it is too short for one.

    So many of the first can carry an origin. `to_end`: the segment ends there, so there is room
    for a blank behind the last one.
    """
    if to_end:
        length -= fmt.SEALED_BLANK_BYTES
        if length < BYTES_MIN:
            return []
    elif length < BYTES_MIN:
        return None
    sizes = []
    while origin_count > 0 and length >= BYTES_OF_ORIGIN + BYTES_MIN:
        sizes.append(BYTES_OF_ORIGIN)
        length, origin_count = length - BYTES_OF_ORIGIN, origin_count - 1
    while length > BYTES_MAX:
        sizes.append(min(BYTES_MAX, length - BYTES_MIN))
        length -= sizes[-1]
    return [*sizes, length]


# --- Acknowledgement records: messages that say which delivery the puts behind them acknowledge.
#
# A record and its puts are appended as one; an opening after a crash takes them as one
# (`services/opening/recover_log.py`). Records have a topic of their own, which nobody else reads.

ACKS_TOPIC: Final = b"rmq_sys_timerstore_acks"
ACKS_GROUP: Final = "timerstore"
"""The group whose offset in that topic says which records `config/consumerOffset.json` knows."""
PUTS_MAX: Final = 1_024 - 1
"""Puts of one record; a stage does not hold more messages."""


class AckRecord(NamedTuple):
    """Who has consumed the entry of which queue, and how many puts follow."""

    group: str
    topic: str
    queue_id: int
    queue_index: int
    put_count: int


def compose_record(record: AckRecord, born_ms: int) -> bytes:
    """Return the message that says so; only what its place decides is missing."""
    return compose(ACKS_TOPIC, json.dumps(record).encode(), b"", born_ms=born_ms)


def read_record(body: bytes) -> AckRecord | None:
    """Return what a message of the topic says; None if it was not written by us.

    >>> read_record(b'["mailer", "jobs", 0, 17, 2]').queue_index
    17
    """
    try:
        group, topic, *numbers = json.loads(body)
    except (ValueError, TypeError):
        return None
    if not (isinstance(group, str) and isinstance(topic, str) and len(numbers) == 3):
        return None
    if not all(type(each) is int and each >= 0 for each in numbers):
        return None
    return AckRecord(group, topic, *numbers)
