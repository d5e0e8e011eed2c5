"""Composing single messages in Python, for calls whose properties differ each time.

The batch kernels in `frame.py` are for many messages of one kind; this is for a put with
properties, a reschedule or a message that is sent back. What is composed goes through the same
stage and the same appender.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from timerstore.timelog.append import (
    NOT_TOLD,
    Stage,
)
from timerstore.timelog.format import (
    BODY_CRC_MASK,
    MESSAGE_HEADER,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_LONG_TOPIC,
    OUR_HOST,
    PROPERTY_CRC,
    PROPERTY_UNIQUE_KEY,
)
from timerstore.timelog.frame import encode_property


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
    header = np.zeros(1, MESSAGE_HEADER)
    long_topic = len(topic) > 127
    header["magic"] = MESSAGE_MAGIC_LONG_TOPIC if long_topic else MESSAGE_MAGIC
    header["body_crc"] = zlib.crc32(body) & BODY_CRC_MASK
    header["queue_id"], header["flag"] = queue_id, flag
    header["born_ms"], header["reconsume_times"] = born_ms, reconsume_times
    header["born_host"] = header["store_host"] = np.void(OUR_HOST)
    header["body_bytes"] = len(body)
    properties += encode_property(PROPERTY_CRC, b"0" * 10)
    tail = body + len(topic).to_bytes(2 if long_topic else 1, "big") + topic
    tail += len(properties).to_bytes(2, "big") + properties
    header["size"] = MESSAGE_HEADER.itemsize + len(tail)
    return header.tobytes() + tail


class Staged(NamedTuple):
    """A composed message, and what it does to the timers of a topic."""

    message: bytes
    row: int  # its queue
    tags_code: int
    pending_row: int  # where the timer is counted, see `QueueTable.pending`; −1: nowhere
    change: int  # of that count
    due_ms: int = 0  # of that timer
    born_ms: int = 0  # this and the next of a delete's target; else the message says it
    body_bytes: int = 0


def stage_messages(stage: Stage, messages: Iterable[Staged], *, own_key: bool = True) -> int:
    """Put composed messages into a stage; return how many.

    With `own_key` the offset digits of each `UNIQ_KEY` are stamped; else the keys stay as they are.
    """
    at = count = 0
    marker = PROPERTY_UNIQUE_KEY + b"\x01"
    for message, row, tags_code, pending_row, change, due_ms, born_ms, body_bytes in messages:
        stage.buffer[at : at + len(message)] = np.frombuffer(message, np.uint8)
        stage.size[count], stage.row[count] = len(message), row
        stage.tags_code[count] = tags_code
        key_at = message.rfind(b"\x02" + marker)
        stage.key_at[count] = key_at + 1 + len(marker) + 12 if own_key and key_at >= 0 else -1
        stage.pending_row[count], stage.pending_change[count] = pending_row, change
        stage.due_ms[count], stage.counted_ms[count] = NOT_TOLD, due_ms
        header = np.frombuffer(message, MESSAGE_HEADER, 1)[0]
        stage.born_ms[count] = header["born_ms"] if change > 0 else born_ms
        stage.body_bytes[count] = header["body_bytes"] if change > 0 else body_bytes
        at += len(message)
        count += 1
    return count
