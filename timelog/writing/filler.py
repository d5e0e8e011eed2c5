"""Fillers: sound messages of a topic of our own that replace lost parts of a commit log.

A reader of the log passes them, and offsets behind them stay what they were. Nobody reads their
topic. A filler can carry the `TIMER_ORIGIN` of what stood there: that this message has its copy.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.writing.compose import compose
from timerstore.timelog.writing.frame import encode_property

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
