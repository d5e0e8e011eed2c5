"""What a backup holds: its points, the pieces of the log, as one listing found them.

    points/CHAIN/NUMBER-TIME-START-END-CRC.zst    a point: its small files, packed

A point is there once its object is, which is written behind all that it needs. The list says of
each its number, its time, the range of the log, and the CRC-32 of what the object holds, which
begins with the chain's seed.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from timerstore.copies.chains import Chain, read_chains
from timerstore.copies.destination import LOG_FOLDER, POINTS_FOLDER, Destination
from timerstore.copies.report import TIME_MS_MAX, BackupPoint
from timerstore.errors import CorruptStoreError, InvalidArgumentError, NotAStoreError
from timerstore.jit.crc import crc_of, joined
from timerstore.timelog.files.jsonfile import read_json, understood, whole
from timerstore.timelog.files.names import INT32_MAX, INT64_MAX, is_small_file

# --- pieces of the log by name, and how an object is packed
#
# A piece holds bytes [start, end) of one chain's log, packed as below; its name says both offsets
# with the CRC-32 of these bytes, which begins with the chain's seed: no other store's object passes
# for one. So two pieces may overlap, and they say the same if they do.
#
#     0                 8
#     +-----------------+----------+-------------+----------+----------------+-----
#     | TSFRAME1        | raw u32  | packed u32  | crc u32  | packed bytes   | …
#     +-----------------+----------+-------------+----------+----------------+-----
#                       |<------------ one frame, a mebibyte at most ------->|
#
# Little-endian. `crc` is the CRC-32 of what the frame holds once it is unpacked.


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


# --- pieces of the log, by name


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


# --- what is there


_POINT: Final = re.compile(
    r"([0-9]{8})/([0-9]{10})-([0-9]{15})-([0-9]{20})-([0-9]{20})-([0-9a-f]{8})\.zst"
)
_LENGTH: Final = struct.Struct("<I")


class PointRemovedError(InvalidArgumentError):
    """A point was removed while it was read."""

    def __init__(self, dest: object) -> None:
        super().__init__(
            f"A point in {dest} was removed while it was read, because newer points have taken "
            "its place. Try again. If that happens each time, keep more points (--keep)."
        )


class Catalog:
    """What is in a destination, in the order in which it was written."""

    def __init__(self, dest: Destination) -> None:
        """List the points, then the chains; pieces are listed when they are asked for.

        In this order, because each point that is listed is of a chain that was there before it.
        Raises CorruptStoreError, NotAStoreError, StoreAccessError.
        """
        self.dest, self.known = dest, list[Chain]()
        self._chains: dict[int, Chain] = {}
        self._names: dict[int, str] = {}
        self.points: list[BackupPoint] = []
        """Those that are seen, the oldest one first."""
        found: dict[int, list[tuple[BackupPoint, str]]] = {}
        for name in dest.names(POINTS_FOLDER):
            point = point_of(name)
            if point is not None:
                found.setdefault(point.chain, []).append((point, f"{POINTS_FOLDER}/{name}"))
        self.chains = chains = read_chains(dest)
        for number in found:
            chains.run_of(number)  # else points would be passed over without a word
        limits, limit = dict[int, int](), INT32_MAX
        for chain in reversed(chains.known):
            limits[chain.number] = limit
            limit = min(limit, chain.last_point)
        for chain in chains.known:
            self.begin(chain)
            for point, name in sorted(found.get(chain.number, []), key=_in_order):
                if chain.last_point < point.number <= limits[chain.number]:
                    self.add(point, name)

    @property
    def shown(self) -> str:
        """Return what people are told of the place."""
        return self.dest.shown

    @property
    def chain(self) -> Chain | None:
        """The chain that goes on."""
        return self.known[-1] if self.known else None

    @property
    def segment_bytes(self) -> int:
        """Return the length of a commit log segment."""
        return self.known[-1].segment_bytes

    @property
    def sizes(self) -> dict[str, int | None]:
        """Return what the store was made with."""
        return self.known[-1].sizes

    def begin(self, chain: Chain) -> None:
        """Add a chain behind all others."""
        self.known.append(chain)
        self._chains[chain.number] = chain

    def add(self, point: BackupPoint, name: str) -> None:
        """Add a point behind all others; of two that have a number the later one is kept."""
        if self.points and self.points[-1].number == point.number:
            self.points.pop()
        self._names[point.number] = name
        self.points.append(point)

    def remove(self, point: BackupPoint) -> None:
        """Remove a point's object, then forget it: what it needs may go once it is not there."""
        self.dest.remove(self._names[point.number])
        self.points.remove(point)
        del self._names[point.number]

    def run_of(self, point: BackupPoint) -> int:
        """Return the number of the first chain of the log that a point is in, without a gap."""
        return self._chains[point.chain].run

    def has_run(self, number: int, run: int) -> bool:
        """Tell whether a chain is there, and is part of a log without a gap."""
        return number in self._chains and self._chains[number].run == run

    def seed_of(self, piece: Piece) -> int:
        """Return what the checksum of a piece of a known chain begins with."""
        return self._chains[piece.chain].seed

    # --- the log

    @cached_property
    def pieces(self) -> list[Piece]:
        """All pieces, of all chains, in order."""
        found = (piece_of(name) for name in self.dest.names(LOG_FOLDER))
        return sorted(piece for piece in found if piece is not None)

    def refresh(self) -> None:
        """List the pieces anew: some may have been merged."""
        self.__dict__.pop("pieces", None)

    def parts(self, run: int) -> Iterator[Slice]:
        """Yield what of each piece is the log of a run of chains."""
        chains = [each for each in self.known if each.run == run]
        ends = {each.number: INT64_MAX for each in chains}
        ends |= {before.number: after.base for before, after in pairwise(chains)}
        for piece in self.pieces:
            end = min(piece.end, ends.get(piece.chain, 0))
            if piece.start < end:
                yield Slice(piece, piece.start, end)

    # --- a point

    def read_files(self, point: BackupPoint) -> dict[str, bytes]:
        """Return the small files of a point.

        Raises PointRemovedError, CorruptStoreError, StoreAccessError.
        """
        name = self._names[point.number]
        try:
            data = unpack_whole(self.dest.get(name), name)
        except FileNotFoundError as e:
            raise PointRemovedError(self.dest) from e  # it was there when it was listed
        if zlib.crc32(data, self._chains[point.chain].seed) != int(name[-12:-4], 16):
            raise CorruptStoreError(name, 0, "its checksum is not the one in its name")
        return _files_of(data, name)


def kept_from(dest: Destination, run: int) -> int:
    """Return from where on the points that are listed now need the log of a run."""
    catalog = read_catalog(dest)
    starts = [point.log_start for point in catalog.points if catalog.run_of(point) == run]
    return min(starts, default=INT64_MAX)


def read_catalog(dest: Destination) -> Catalog:
    """Return what a destination holds. Raises NotAStoreError if that is no backup."""
    catalog = Catalog(dest)
    if not catalog.known:
        raise NotAStoreError(f"{dest} holds no backup. Pass the place of a backup.")
    return catalog


def point_of(name: str) -> BackupPoint | None:
    """Return the point that a name below `points/` is of; None if it is of none."""
    found = _POINT.fullmatch(name)
    if found is None:
        return None
    chain, number, time_ms, start, end = (int(found[each]) for each in range(1, 6))
    if not (0 < chain <= INT32_MAX and 0 < number <= INT32_MAX and time_ms <= TIME_MS_MAX):
        return None
    if not start <= end <= INT64_MAX:
        return None
    return BackupPoint(number=number, time_ms=time_ms, chain=chain, log_start=start, log_end=end)


def _in_order(found: tuple[BackupPoint, str]) -> tuple[int, int, int]:
    point, _ = found
    return point.number, point.log_end, point.time_ms


def point_object(point: BackupPoint, files: dict[str, bytes], seed: int) -> tuple[str, bytes]:
    """Return the name of a point's object, and what it holds. `seed`: of its chain."""
    head = json.dumps({name: len(data) for name, data in files.items()}).encode()
    content = b"".join([_LENGTH.pack(len(head)), head, *files.values()])
    name = (
        f"{POINTS_FOLDER}/{point.chain:08d}/{point.number:010d}-{point.time_ms:015d}-"
        f"{point.log_start:020d}-{point.log_end:020d}-{zlib.crc32(content, seed):08x}.zst"
    )
    return name, pack(content)


def _files_of(data: bytes, name: str) -> dict[str, bytes]:
    files, at = dict[str, bytes](), _LENGTH.size
    with understood(name):
        if len(data) < at:
            raise ValueError("it is too short")
        stop = at + _LENGTH.unpack_from(data)[0]
        lengths: dict[str, Any] = read_json(Path(name), lambda _: data[at:stop]) or {}
        for file, length in lengths.items():
            if not is_small_file(file):
                raise ValueError(f"a store has no file {file!r:.80}")
            start, stop = stop, stop + whole(length)
            if stop > len(data):
                raise ValueError("it ends within a file")
            files[file] = data[start:stop]
    return files
