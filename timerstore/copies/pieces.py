"""Pieces of a commit log in a backup: their names, which of them make up a range.

A piece holds bytes [start, end) of one chain's log, as `frames.py` packs them; its name says both
offsets with the CRC-32 of these bytes, which begins with the chain's seed: no other store's object
passes for one. So two pieces may overlap, and they say the same if they do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from timerstore.copies.frames import unpack
from timerstore.errors import CorruptStoreError
from timerstore.timelog.bytes.crcparts import joined
from timerstore.timelog.files.names import INT32_MAX, INT64_MAX

BLOCK_BYTES: Final = 1 << 25
"""No piece crosses a multiple of it within a segment: what is merged is at most so large."""
_NAME: Final = re.compile(r"([0-9]{8})/([0-9]{20})-([0-9]{20})-([0-9a-f]{8})\.zst")


class Piece(NamedTuple):
    """A piece, in the order in which pieces are read."""

    start: int
    end: int
    chain: int
    crc: int

    @property
    def name(self) -> str:
        """Return the object's name.

        >>> Piece(0, 4096, 1, 255).name
        'log/00000001/00000000000000000000-00000000000000004096-000000ff.zst'
        """
        return f"log/{self.chain:08d}/{self.start:020d}-{self.end:020d}-{self.crc:08x}.zst"


class Slice(NamedTuple):
    """A part of a piece: bytes [start, end) of the log."""

    piece: Piece
    start: int
    end: int


def piece_of(name: str) -> Piece | None:
    """Return the piece that a name below `log/` is of; None if it is of none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    piece = Piece(int(found[2]), int(found[3]), int(found[1]), int(found[4], 16))
    is_sound = 0 <= piece.start < piece.end <= INT64_MAX and 0 < piece.chain <= INT32_MAX
    return piece if is_sound else None


def cover(parts: Iterable[Slice], start: int, end: int) -> list[Slice]:
    """Return what makes up [start, end) of the log, without overlaps, as few as there can be.

    Raises CorruptStoreError if a byte is in none of the parts. O(parts · log parts).
    """
    found, at = list[Slice](), start
    waiting = sorted(parts, key=lambda part: (part.start, part.piece))
    index, best = 0, None
    while at < end:
        while index < len(waiting) and waiting[index].start <= at:
            if best is None or waiting[index].end > best.end:
                best = waiting[index]
            index += 1
        if best is None or best.end <= at:
            raise CorruptStoreError(
                "log", at, "no piece of the backup holds the log from this offset on"
            )
        stop = min(best.end, end)
        found.append(Slice(best.piece, at, stop))
        at = stop
    return found


def block_ranges(start: int, end: int, segment_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [start, end) cut where blocks begin, which lie within segments.

    >>> list(block_ranges(10, 30, 16))
    [(10, 16), (16, 30)]
    """
    while start < end:
        base = start - start % segment_bytes
        within = start - base
        stop = base + min(within - within % BLOCK_BYTES + BLOCK_BYTES, segment_bytes)
        yield start, min(stop, end)
        start = min(stop, end)


def parts_of(piece: Piece, data: bytes, seed: int) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset, bytes) of a piece's object, in order; at its end all of it was checked.

    `seed`: of its chain. Raises CorruptStoreError.
    """
    at, crc = piece.start, seed
    for raw, raw_crc in unpack(data, piece.name):
        crc = joined(crc, raw_crc, len(raw))
        if at + len(raw) > piece.end:
            break
        yield at, raw
        at += len(raw)
    if at != piece.end or crc != piece.crc:
        raise CorruptStoreError(
            piece.name, 0, "its content does not match the checksum in its name"
        )
