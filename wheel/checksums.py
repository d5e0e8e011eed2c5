"""Checksums of the wheel's pages, as a clean close left them: `config/wheelsums`.

They are a derived file (`checkpoint.py`). After a kill, or a broker, nobody asks for them: the
slots are made anew from the timer log then.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.jit.crc import crc32
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Bytes, ReadBytes, Words, read_only
from timerstore.timelog.files.checkpoint import WHEEL_FILE, Stamp, read_derived, write_derived
from timerstore.timelog.files.disk import Disk

PAGE_BYTES: Final = 4_096
_EMPTY_SUM: Final = zlib.crc32(bytes(PAGE_BYTES))

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


def write_sums(disk: Disk, path: Path, stamp: Stamp, wheel: Bytes) -> None:
    """Note the checksums of a store's wheel, at a clean close. O(bytes)."""
    write_derived(disk, path / WHEEL_FILE, stamp, page_sums(wheel))


def find_damaged(
    disk: Disk,
    path: Path,
    stamp: Stamp,
    wheel: Bytes,
    used: Iterable[tuple[int, int]] | None = None,
) -> int | None:
    """Return the first page that is not as that clean close left it, −1 if all are. O(bytes).

    None: nobody knows. `used`: see `page_sums`.
    """
    arrays = read_derived(disk, path / WHEEL_FILE, stamp, np.dtype("<u4"))
    if arrays is None or len(arrays[0]) != -(-len(wheel) // PAGE_BYTES):
        return None
    wrong = np.flatnonzero(page_sums(wheel, used) != arrays[0])
    return int(wrong[0]) if len(wrong) else -1
