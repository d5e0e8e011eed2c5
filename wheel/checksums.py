"""Checksums of the wheel's pages, in a small file of ours that a broker leaves alone.

    config/wheelsums    two copies of: header, sums before a write, sums after it

Before pages of the wheel are written, a copy is made durable that holds each page's checksum before
and after; so at any moment every page of the file has one of the two. The copies take turns: one
that was torn leaves the other, which holds for what was written last. A page that has neither is
damaged, or was torn by a power cut within the write; either way the wheel is rebuilt. The
checkpoint behind a write has the write's number: then no page may be as it was before.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.errors import MissingFileError
from timerstore.jit.crc import crc32
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Bytes, ReadBytes, Words, read_only
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.smallfile import read_head

SUMS_FILE: Final = "wheelsums"
PAGE_BYTES: Final = 4_096
_MARK: Final = b"TMSUMS01"
_SEQUENCE_MAX: Final = 1 << 62
_EMPTY_SUM: Final = zlib.crc32(bytes(PAGE_BYTES))
_HEADER: Final = np.dtype(
    [
        ("mark", "S8"),
        ("sequence", ">i8"),
        ("page_count", ">i8"),
        ("crc", ">u4"),  # of the sequence, the page count, both rows of sums
        ("zero", ">u4"),
    ]
)
assert _HEADER.itemsize == 32
Sums = np.ndarray[Any, np.dtype[np.uint32]]


@kernel_ahead
def sum_pages(pages: ReadBytes, sums: Words) -> None:
    """Fill `sums`, int64[n], with the CRC-32 of each page of `pages`, uint8. O(bytes).

    The last page may be shorter.
    """
    for i in range(len(sums)):
        at = i * PAGE_BYTES
        sums[i] = crc32(pages, at, min(PAGE_BYTES, len(pages) - at))


def page_sums(pages: Bytes, used: Iterable[tuple[int, int]] | None = None) -> Sums:
    """Return the checksums of pages that follow each other. O(bytes that are used).

    `used`: ranges outside of which all bytes are 0; None: there may be others anywhere.
    """
    count = -(-len(pages) // PAGE_BYTES)
    sums: Words = np.full(count, _EMPTY_SUM, np.int64)
    ranges = [(0, len(pages))] if used is None else [*used, (len(pages) - 1, len(pages))]
    for first, last in ranges:  # the last page may be shorter, so it is always among them
        start, stop = max(0, first) // PAGE_BYTES, -(-last // PAGE_BYTES)
        sum_pages(read_only(pages[start * PAGE_BYTES : stop * PAGE_BYTES]), sums[start:stop])
    return sums.astype(np.uint32)


class WheelSums:
    """The file with the checksums of one wheel."""

    def __init__(self, disk: Disk, path: Path, page_count: int) -> None:
        """Read the newest copy that is whole; `current`: what the wheel's pages were written as."""
        self.disk, self.path, self.page_count = disk, path, page_count
        self._copy_bytes = _HEADER.itemsize + 8 * page_count
        self.sequence = 0
        """The number of the last write, or of the last checkpoint if that is larger."""
        self._place = 1  # of the newest copy
        self._either: tuple[Sums, Sums] | None = None
        self.before: Sums | None = None
        self.current: Sums | None = None
        self.is_stale = False
        """The file says other sums: a broker wrote since."""
        try:
            data = read_head(path, 2 * self._copy_bytes, disk.at)
        except MissingFileError:
            data = b""
        for place in (0, 1):
            part = data[place * self._copy_bytes : (place + 1) * self._copy_bytes]
            found = self._decode(part)
            if found is not None and found[0] > self.sequence:
                self.sequence, self.before, self.current = found
                self._place = place
        self._is_damaged = self.current is None and any(data)

    def _decode(self, data: bytes) -> tuple[int, Sums, Sums] | None:
        if len(data) != self._copy_bytes:
            return None
        header = np.frombuffer(data[: _HEADER.itemsize], _HEADER)[0]
        if header["mark"] != _MARK or int(header["page_count"]) != self.page_count:
            return None
        rows = data[_HEADER.itemsize :]
        if int(header["crc"]) != zlib.crc32(data[8:24] + rows):
            return None
        if not 0 <= int(header["sequence"]) < _SEQUENCE_MAX:
            return None
        before, after = np.frombuffer(rows, ">u4").astype(np.uint32).reshape(2, -1)
        return int(header["sequence"]), before, after

    def find_damaged(self, wheel: Bytes, used: Iterable[tuple[int, int]], *, is_whole: bool) -> int:
        """Return the first page that is not what was written, or −1. O(pages + bytes of `used`).

        `used`: the ranges of the wheel that are no holes. If checksums were noted and none can
        be read, that may be any page. `is_whole`: the last write is known to have ended, so no page
        may be as it was before: zeros, in a wheel that was written once. A checkpoint says so.
        """
        if self._is_damaged:
            return 0
        if self.current is None or self.before is None:
            return -1
        sums = page_sums(wheel, used)
        wrong = np.flatnonzero((sums != self.current) & (is_whole | (sums != self.before)))
        return int(wrong[0]) if len(wrong) else -1

    def either(self) -> tuple[Sums, Sums] | None:
        """Return the sums that pages of the file may have, the same object until the next write."""
        return self._either

    def adopt(self, wheel: Bytes, used: Iterable[tuple[int, int]]) -> None:
        """Take the wheel as it is for what was written: its writer noted no checksums.

        `used`: the ranges of the wheel that are no holes.
        """
        sums = page_sums(wheel, used)
        self.is_stale = self.current is not None and not np.array_equal(sums, self.current)
        self.current = sums
        self._either = self.current, self.current

    def announce(self, runs: list[tuple[int, Bytes]]) -> None:
        """Make durable what the pages of write `sequence` will be, before they are written."""
        assert self.current is not None
        before, after = self.current, self.current.copy()
        for position, content in runs:
            first, sums = position // PAGE_BYTES, page_sums(content)
            after[first : first + len(sums)] = sums
        header = np.zeros(1, _HEADER)
        header["mark"], header["sequence"] = _MARK, self.sequence
        header["page_count"] = self.page_count
        rows = np.concatenate([before, after]).astype(">u4").tobytes()
        header["crc"] = zlib.crc32(header.tobytes()[8:24] + rows)
        self._either = before, after
        is_new = not self.disk.exists(self.path)
        if is_new:
            self.disk.make_folder(self.path.parent)
        fd = self.disk.open_file(self.path, create=True)
        try:
            data = header.tobytes() + rows
            self.disk.write_at(fd, data, (1 - self._place) * self._copy_bytes, self.path)
            self.disk.sync(fd, self.path)
            self._place = 1 - self._place
        finally:
            os.close(fd)
        if is_new:
            self.disk.sync_folder(self.path.parent)
        self.before, self.current, self.is_stale = before, after, False
