"""Single messages, whose properties differ each time, on their way into a stage.

`frame.py` frames many messages of one kind; this is for a put with properties, a reschedule or a
message that is sent back. The bytes are the same functions': head and tail are put around the body
here, and the kernel closes what they make. What is composed goes through the same stage and the
same appender.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Bytes
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.writing.append import (
    NOT_TOLD,
    Stage,
)
from timerstore.timelog.writing.frame import close_message, encode_head, encode_tail


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
        stage.born_ms[count] = header["born_ms"] if change > 0 else born_ms
        stage.body_bytes[count] = header["body_bytes"] if change > 0 else body_bytes
        at += len(message)
        count += 1
    return count
