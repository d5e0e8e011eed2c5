"""Composing single messages in Python, for calls whose properties differ each time.

The batch kernels in `frame.py` are for many messages of one kind; this is for a put with
properties, a reschedule or a message that is sent back. What is composed goes through the same
stage and the same appender.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

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
    PROPERTY_CRC,
    PROPERTY_UNIQUE_KEY,
)
from timerstore.timelog.frame import encode_property

_LOCALHOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])


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
    header["born_host"] = header["store_host"] = np.void(_LOCALHOST)
    header["body_bytes"] = len(body)
    properties += encode_property(PROPERTY_CRC, b"0" * 10)
    tail = body + len(topic).to_bytes(2 if long_topic else 1, "big") + topic
    tail += len(properties).to_bytes(2, "big") + properties
    header["size"] = MESSAGE_HEADER.itemsize + len(tail)
    return header.tobytes() + tail


def stage_messages(
    stage: Stage, messages: Iterable[tuple[bytes, int, int, int, int]], *, own_key: bool = True
) -> int:
    """Put composed messages into a stage; return how many.

    Each is (message, queue row, tags code, pending row or −1, change of its count). With `own_key`
    the offset digits of each `UNIQ_KEY` are stamped; else the keys stay as they are.
    """
    at = count = 0
    marker = PROPERTY_UNIQUE_KEY + b"\x01"
    for message, row, tags_code, pending_row, change in messages:
        stage.buffer[at : at + len(message)] = np.frombuffer(message, np.uint8)
        stage.size[count], stage.row[count] = len(message), row
        stage.tags_code[count] = tags_code
        key_at = message.rfind(b"\x02" + marker)
        stage.key_at[count] = key_at + 1 + len(marker) + 12 if own_key and key_at >= 0 else -1
        stage.pending_row[count], stage.pending_change[count] = pending_row, change
        stage.due_ms[count] = NOT_TOLD
        at += len(message)
        count += 1
    return count
