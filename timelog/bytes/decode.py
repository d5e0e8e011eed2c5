"""One message as Python values: what `get`, `pending`, a delivery or an inspector shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.intrinsics import as_word, get_i32, get_word, prefetch
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.objects import Pieces, piece
from timerstore.jit.record import Bytes, ReadBytes, Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import (
    BAD_SIZE,
    GOOD,
    REASONS,
    MessageParts,
    find_byte,
    identify,
    identify_timer,
    name_ends,
    read_message,
)
from timerstore.timelog.bytes.text import (
    get_decimal,
    get_hex_12,
    hex_8_word,
    hex_12_is,
    put_hex_8,
    put_hex_12,
)


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
def read_one(
    buf: ReadBytes, at: int, offset: int, tag: int, found: MessageParts, verify: bool
) -> int:
    """Read a message for Python; return what `read_message` does. `found` says who it is, too."""
    if len(buf) - at < fmt.MESSAGE_BYTES_MIN:
        return BAD_SIZE
    status = read_message(buf, at, offset, found, verify)
    if status == GOOD:
        identify_timer(buf, found, tag)
    return status


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


NO_TAG: Final = -1
"""Of no store: who a message is is not asked."""
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
    status = int(read_one(view, 0, offset, NO_TAG, found, True))
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
        stored_ms=said_stored_ms(view),
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


def said_stored_ms(view: Bytes) -> int:
    """Return the stored time; an IPv6 born host moves it."""
    born_v6 = get_field(view, fmt.MESSAGE_SYSTEM_FLAG_AT, 4) & fmt.SYSTEM_FLAG_BORN_V6
    return get_field(view, fmt.MESSAGE_STORED_AT + (fmt.HOST_V6_EXTRA_BYTES if born_v6 else 0), 8)


def user_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties without those of the system."""
    return {
        name: value for name, value in properties.items() if name not in fmt.RESERVED_PROPERTIES
    }


def told_ms(properties: Mapping[str, str], name: bytes) -> int | None:
    """Return the time in ms that a property says; None if it says none."""
    value = properties.get(name.decode(), "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 16 else None


# --- Until when it is of use


_EXPIRES = as_word(fmt.PROPERTY_EXPIRES)
_EXPIRES_2 = as_word(fmt.PROPERTY_EXPIRES[8:])
_EXPIRES_END = as_word((fmt.PROPERTY_EXPIRES + b"\x01")[-8:])
NEVER: Final = 1 << 62
EXPIRES_MS_MIN: Final = 10**11
"""Earlier times, before March 1973, are none: nobody can have put them."""


@inlined
def read_expires_ms(buf: Bytes, found: MessageParts) -> int:
    """Return after which time a framed message is not to be handed out.

    NEVER if its flag or its properties say none that can be. O(1) if its flag does, else O(size).
    """
    if get_i32(buf, found.at + fmt.MESSAGE_FLAG_AT) & fmt.FLAG_EXPIRES == 0:
        return NEVER
    start = found.properties_at
    end = start + found.properties_bytes
    while start < end:
        stop = find_byte(buf, start, end, fmt.VALUE_END)
        if get_word(buf, start) == _EXPIRES and name_ends(buf, start, stop, 16, _EXPIRES_END):
            if get_word(buf, start + 8) == _EXPIRES_2:
                ms = get_decimal(buf, start + 17, stop - start - 17)
                return ms if ms >= EXPIRES_MS_MIN else NEVER
        start = stop + 1
    return NEVER


def told_expires_ms(properties: Mapping[str, str]) -> int | None:
    """Return when properties say that a message expires, if that can be."""
    told = told_ms(properties, fmt.PROPERTY_EXPIRES)
    return told if told is not None and told >= EXPIRES_MS_MIN else None


def expires_ms(message: Message) -> int:
    """Return after which time a message is not to be handed out, or NEVER."""
    told = told_expires_ms(message.properties) if message.flag & fmt.FLAG_EXPIRES else None
    return NEVER if told is None else told


# --- Timer ids as text, many at once: kernels that read or write their 32 hex digits.

_IDS_AHEAD: Final = 8


@inlined
def put_id(digits: Bytes, at: int, due_ms: int, offset: int, tag: int) -> None:
    """Write the id of a timer."""
    put_hex_12(digits, at, due_ms)
    put_hex_12(digits, at + 12, offset)
    put_hex_8(digits, at + 24, tag)


@inlined
def id_is(digits: Bytes, at: int, due_ms: int, offset: int, tag: int) -> bool:
    """Tell whether `put_id` would have written what stands at `at`, byte for byte."""
    if get_word(digits, at + 24) != hex_8_word(tag):
        return False
    return hex_12_is(digits, at, due_ms) and hex_12_is(digits, at + 12, offset)


@kernel_ahead
def write_ids(due_ms: Words, offsets: Words, tag: int, digits: Bytes) -> None:
    """Write the ids of timers, one behind the other. `digits`: uint8[32 n]. O(n)."""
    for i in range(len(due_ms)):
        put_id(digits, fmt.KEY_DIGITS * i, due_ms[i], offsets[i], tag)


@kernel_ahead
def read_ids(ids: Pieces, tag: int, due_ms: Words, offsets: Words) -> int:
    """Read ids; return how many are as `write_ids` writes them.

    It ends at the first that is not, or has another store's tag. `due_ms`, `offsets`: int64[n],
    written. O(n).
    """
    for i in range(len(due_ms)):
        if i + _IDS_AHEAD < len(due_ms):  # they may be anywhere in memory
            prefetch(piece(ids, i + _IDS_AHEAD), fmt.KEY_DIGITS - 1)
        digits = piece(ids, i)
        if len(digits) != fmt.KEY_DIGITS:
            return i
        due_ms[i], offsets[i] = get_hex_12(digits, 0), get_hex_12(digits, 12)
        if not id_is(digits, 0, due_ms[i], offsets[i], tag):
            return i  # no digits, or lower-case ones
    return len(due_ms)


# --- Who a timer is, from the names of its topic with its unique key.


@kernel_ahead
def _identify(both: ReadBytes, topic_bytes: int, tag: int, found: MessageParts) -> None:
    identify(both, 0, topic_bytes, topic_bytes, len(both) - topic_bytes, tag, found)


def identity_of(topic: bytes, key: bytes, tag: int) -> tuple[int, int]:
    """Return what tells a timer from all others, by its real topic with its unique key."""
    found = MessageParts()
    _identify(np.frombuffer(topic + key, np.uint8), len(topic), tag, found)
    return found.identity_high, found.identity_low
