"""One message as Python values: what `get`, `pending`, a delivery or an inspector shows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.arraytypes import read_only
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Bytes, ReadBytes
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import BAD_PARTS, GOOD, REASONS, MessageParts, read_message


class Message(NamedTuple):
    """A decoded message. Texts that are no UTF-8 keep their bytes as surrogates."""

    offset: int
    size: int
    topic: str
    body: bytes
    properties: dict[str, str]
    stored_ms: int
    born_ms: int
    queue_id: int
    queue_index: int
    reconsume_times: int
    flag: int = 0


@kernel_ahead
def _read(buf: ReadBytes, at: int, found: MessageParts) -> int:
    return read_message(buf, at, found, True)


def text(data: bytes) -> str:
    """Decode UTF-8, keeping what is none."""
    return data.decode("utf-8", "surrogateescape")


def decode_properties(data: bytes) -> dict[str, str]:
    """Return the properties that stand in `data`, in their order."""
    properties = {}
    for part in text(data).split("\x02"):
        name, separator, value = part.partition("\x01")
        if separator:
            properties[name] = value
    return properties


_spare: list[MessageParts] = []
"""A decode takes one or makes one, and leaves it here: making one takes long."""


def decode_message(view: Bytes, offset: int) -> Message:
    """Decode the message at the start of `view`, which is at `offset` of the commit log.

    `view` must reach at least 8 bytes behind the message. Its CRC is checked.
    """
    try:
        found = _spare.pop()
    except IndexError:
        found = MessageParts()
    status = int(_read(read_only(view), 0, found))
    if status == GOOD and get_field(view, fmt.MESSAGE_OFFSET_AT, 8) != offset:
        status = BAD_PARTS  # of an earlier use of the segment
    if status != GOOD:
        raise CorruptStoreError("commitlog", offset, REASONS[status])
    body_at, topic_at = found.body_at, found.topic_at
    properties_at = found.properties_at
    header = np.frombuffer(view[: fmt.MESSAGE_HEADER_BYTES].tobytes(), fmt.MESSAGE_HEADER)[0]
    moved = body_at - fmt.MESSAGE_HEADER_BYTES  # IPv6 hosts move what follows them
    properties = view[properties_at : properties_at + found.properties_bytes].tobytes()
    message = Message(
        offset=offset,
        size=found.size,
        topic=text(view[topic_at : topic_at + found.topic_bytes].tobytes()),
        body=view[body_at : body_at + found.body_bytes].tobytes(),
        properties=decode_properties(properties),
        stored_ms=_stored_ms(view),
        born_ms=int(header["born_ms"]),
        queue_id=int(header["queue_id"]),
        queue_index=int(header["queue_index"]),
        reconsume_times=int(get_field(view, fmt.MESSAGE_RECONSUME_AT + moved, 4)),
        flag=int(header["flag"]),
    )
    _spare.append(found)
    return message


def get_field(view: Bytes, at: int, width: int) -> int:
    """Return a big-endian signed integer."""
    return int.from_bytes(view[at : at + width].tobytes(), "big", signed=True)


def _stored_ms(view: Bytes) -> int:
    """Return the stored time; an IPv6 born host moves it."""
    born_v6 = get_field(view, fmt.MESSAGE_SYSTEM_FLAG_AT, 4) & fmt.SYSTEM_FLAG_BORN_V6
    return get_field(view, fmt.MESSAGE_STORED_AT + (fmt.HOST_V6_EXTRA_BYTES if born_v6 else 0), 8)


def user_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties without those of the system."""
    return {
        name: value for name, value in properties.items() if name not in fmt.RESERVED_PROPERTIES
    }
