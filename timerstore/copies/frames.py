"""How an object of a backup is packed: frames of zstd, of which any prefix can be read.

    0                 8
    +-----------------+----------+-------------+----------+----------------+-----
    | TSFRAME1        | raw u32  | packed u32  | crc u32  | packed bytes   | …
    +-----------------+----------+-------------+----------+----------------+-----
                      |<------------ one frame, a mebibyte at most ------->|

Little-endian. `crc` is the CRC-32 of what the frame holds once it is unpacked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from timerstore.errors import CorruptStoreError
from timerstore.timelog.bytes.crcparts import crc_of, joined

FRAME_BYTES: Final = 1 << 20
_MAGIC: Final = b"TSFRAME1"
_HEAD: Final = struct.Struct("<III")
_LEVEL: Final = 1
"""Of zstd: a log's bytes shrink hardly more at 3, which takes half as long again."""


def pack(data: Any) -> bytes:
    """Return bytes in frames. `data`: anything with the buffer protocol. O(bytes)."""
    return pack_checked(data)[0]


def pack_checked(data: Any, seed: int = 0) -> tuple[bytes, int]:
    """Return bytes in frames, with the CRC-32 of what they hold, which begins with `seed`."""
    codec = pa.Codec("zstd", compression_level=_LEVEL)
    view, parts, whole_crc = memoryview(data).cast("B"), [_MAGIC], seed
    for at in range(0, len(view), FRAME_BYTES):
        raw = view[at : at + FRAME_BYTES]
        packed, crc = codec.compress(raw, asbytes=True), crc_of(raw)
        parts += [_HEAD.pack(len(raw), len(packed), crc), packed]
        whole_crc = joined(whole_crc, crc, len(raw))
    return b"".join(parts), whole_crc


def unpack(data: bytes, name: str) -> Iterator[tuple[memoryview, int]]:
    """Yield what each frame holds, in order, with its CRC-32, which was checked before.

    `name`: what errors call the object. Raises CorruptStoreError at the first frame that is not as
    it was written, or does not end.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise CorruptStoreError(name, 0, "its first bytes are not those of a backup's object")
    codec, view, at = pa.Codec("zstd"), memoryview(data), len(_MAGIC)
    while at < len(view):
        head = view[at : at + _HEAD.size]
        if len(head) < _HEAD.size:
            raise CorruptStoreError(name, at, "it ends within a frame")
        raw_bytes, packed_bytes, crc = _HEAD.unpack(head)
        start, stop = at + _HEAD.size, at + _HEAD.size + packed_bytes
        if not 0 < raw_bytes <= FRAME_BYTES or stop > len(view):
            raise CorruptStoreError(name, at, "a frame has an impossible length, or was cut off")
        try:
            buffer = codec.decompress(view[start:stop], decompressed_size=raw_bytes)
            raw = memoryview(buffer).cast("B")
        except (pa.ArrowException, OSError) as e:
            raise CorruptStoreError(name, at, "a frame cannot be unpacked") from e
        if len(raw) != raw_bytes or crc_of(raw) != crc:
            raise CorruptStoreError(name, at, "a frame's checksum does not match")
        yield raw, crc
        at = stop


def unpack_whole(data: bytes, name: str) -> bytes:
    """Return all that the frames hold. Raises CorruptStoreError."""
    return b"".join(raw for raw, _ in unpack(data, name))
