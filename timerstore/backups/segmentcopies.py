"""The bytes of a log's segments, with a checksum that goes on where the last one ended."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import IO, Final

from timerstore.backups.points import Mark
from timerstore.errors import CorruptStoreError

PIECE_BYTES: Final = 1 << 20


def crc_of_bytes(file: IO[bytes], count: int, crc: int) -> int:
    """Return the CRC-32 of the next bytes of a segment, which goes on from `crc`. O(count).

    Raises CorruptStoreError if it has fewer.
    """
    while count:
        piece = file.read(min(PIECE_BYTES, count))
        if not piece:
            name = Path(file.name).name
            at = int(name) + file.tell()
            raise CorruptStoreError(name, at, f"{count:,} bytes are missing at the end of it")
        count, crc = count - len(piece), zlib.crc32(piece, crc)
    return crc


class CheckedFile:
    """A segment of a backup, read from its beginning; each mark that is passed is checked."""

    def __init__(self, path: Path, name: str, offset: int, marks: list[Mark]) -> None:
        """Open it. `name`, `offset`: what errors say."""
        self._name, self._offset, self._marks = name, offset, sorted(marks)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as e:
            raise CorruptStoreError(name, offset, "this segment is missing") from e
        self._at = self._crc = 0

    def __enter__(self) -> CheckedFile:
        """Return this object; leaving the block closes the file."""
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def read(self, stop: int) -> bytes:
        """Return the next bytes, up to a piece, a mark, or `stop`. Raises CorruptStoreError."""
        marks = [count for count, _ in self._marks if count > self._at]
        piece = os.pread(
            self._fd, min(PIECE_BYTES, stop - self._at, *(m - self._at for m in marks)), self._at
        )
        if not piece and self._at < stop:
            raise CorruptStoreError(
                self._name, self._offset + self._at, "the file ends at this offset"
            )
        self._at += len(piece)
        self._crc = zlib.crc32(piece, self._crc)
        for count, crc in self._marks:
            if count == self._at and crc != self._crc:
                raise CorruptStoreError(
                    self._name, self._offset, "its checksum is not what was written there"
                )
        return piece
