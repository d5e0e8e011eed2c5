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
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from timerstore.copies.chains import Chain, read_chains
from timerstore.copies.destination import LOG_FOLDER, POINTS_FOLDER, Destination
from timerstore.copies.frames import pack, unpack_whole
from timerstore.copies.pieces import Piece, Slice, piece_of
from timerstore.copies.points import TIME_MS_MAX, BackupPoint
from timerstore.errors import CorruptStoreError, InvalidArgumentError, NotAStoreError
from timerstore.timelog.files.jsonfile import read_json, understood, whole
from timerstore.timelog.files.names import INT32_MAX, INT64_MAX, is_small_file

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
