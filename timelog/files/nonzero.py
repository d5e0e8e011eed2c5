"""Finding the indexes at which memory that others may change is not zero.

NumPy counts what is not zero, then collects it, and raises if the two differ. So memory that
another thread or process may write is copied first, piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from timerstore.jit.mapping import PAGE_BYTES
from timerstore.jit.record import Bytes, Words

_PIECE_BYTES: Final = 1 << 20


def nonzero_places(shared: np.ndarray[Any, Any]) -> Words:
    """Return the indexes at which a shared array was not zero, at some moment: int64[]."""
    return np.flatnonzero(shared.copy())


def first_used(shared: Bytes) -> int:
    """Return the place of the first byte that is not zero; −1 if all are. O(zeros before it)."""
    for at, stop in growing_pieces(0, len(shared)):
        used = shared[at:stop] != 0
        if used.any():
            return at + int(used.argmax())
    return -1


def growing_pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut [start, stop) into pieces, small ones first: what is looked for may be near."""
    piece_bytes = PAGE_BYTES
    while start < stop:
        yield start, min(start + piece_bytes, stop)
        start, piece_bytes = start + piece_bytes, min(4 * piece_bytes, _PIECE_BYTES)


def last_used(shared: Bytes) -> int:
    """Return the place of the last byte that is not zero; −1 if all are. O(zeros behind it)."""
    for behind, before in growing_pieces(0, len(shared)):
        stop = len(shared) - behind
        used = shared[len(shared) - before : stop] != 0
        if used.any():
            return stop - 1 - int(used[::-1].argmax())
    return -1


def used_before_gap(shared: Bytes, gap_bytes: int) -> int:
    """Return where more than `gap_bytes` zeros begin for the first time; all, if none do."""
    start = 0
    for at in range(0, len(shared), _PIECE_BYTES):
        used = at + nonzero_places(shared[at : at + _PIECE_BYTES])
        gaps = np.flatnonzero(np.diff(used, prepend=start - 1) > gap_bytes + 1)
        if len(gaps):
            return int(used[gaps[0] - 1]) + 1 if gaps[0] else start
        start = int(used[-1]) + 1 if len(used) else start
        if min(at + _PIECE_BYTES, len(shared)) - start > gap_bytes:
            return start
    return len(shared)


def used_pages(view: Bytes, start: int) -> Iterator[slice]:
    """Give the part of each page, from byte `start` on, that holds anything but zeros.

    The others may be a hole, into which nothing must be written.
    """
    for at in range(start // PAGE_BYTES * PAGE_BYTES, len(view), _PIECE_BYTES):
        if not view[max(at, start) : at + _PIECE_BYTES].any():
            continue
        for page_at in range(at, min(at + _PIECE_BYTES, len(view)), PAGE_BYTES):
            page = slice(max(page_at, start), min(page_at + PAGE_BYTES, len(view)))
            if view[page].any():
                yield page
