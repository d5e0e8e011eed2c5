"""Auditing a backup: all files of its points against the checksums in its list."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from timerstore.backups.points import BackupList, read_list
from timerstore.backups.segmentcopies import CheckedFile
from timerstore.core.directory import LIST_FILE
from timerstore.errors import CorruptStoreError, TimerStoreError
from timerstore.timelog.files.steady import read_file
from timerstore.timelog.reading.reader import Fault


def backup_faults(path: Path) -> Iterator[Fault]:
    """Yield what is not as the list says. O(bytes)."""
    try:
        listed = read_list(path)
    except CorruptStoreError as e:
        yield Fault(e.file, e.offset, e.reason)
        return
    except TimerStoreError as e:
        yield Fault(LIST_FILE, 0, str(e))
        return
    for point in listed.points:
        for name, crc in point.files.items():
            file = listed.point_folder(point.number) / name
            data = read_file(file)
            if data is None or zlib.crc32(data) != crc:
                reason = "it is missing" if data is None else "its checksum does not match"
                yield Fault(str(file.relative_to(path)), 0, reason)
    for chain, segments in listed.marks.items():
        for number in segments:
            yield from _segment_faults(listed, chain, number)


def _segment_faults(listed: BackupList, chain: int, number: int) -> Iterator[Fault]:
    path, marks = listed.segment_path(chain, number), listed.marks_of(chain, number)
    name, offset = str(path.relative_to(listed.path)), number * listed.segment_bytes
    try:
        with CheckedFile(path, name, offset, marks) as file:
            stop = max((count for count, _ in marks), default=0)
            left = stop
            while left > 0:
                left -= len(file.read(stop))
    except CorruptStoreError as e:
        yield Fault(e.file, e.offset, e.reason)
