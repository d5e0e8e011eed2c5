"""Merging small pieces of a backup into larger ones, out of the log that is still here.

A block that lies in many pieces gets a piece of its own once it is full. Before that, many small
pieces become one, so that no list of pieces grows without end. What was merged is removed by
`retention.py`, once what replaces it is there.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from timerstore.copies.catalog import Catalog
from timerstore.copies.pieces import BLOCK_BYTES, Slice, block_ranges, cover
from timerstore.copies.ship import send_piece
from timerstore.errors import CorruptStoreError
from timerstore.timelog.reading.reader import StoreReader

_FEW: Final = 4
"""A full block in so many pieces is left as it is."""
_MANY: Final = 64
"""So many small pieces side by side become one."""
_SMALL_BYTES: Final = BLOCK_BYTES // 64
_BLOCKS_AT_ONCE: Final = 8


def merge_pieces(reader: StoreReader, catalog: Catalog) -> int:
    """Write pieces that take the place of many; return how many. O(bytes of eight blocks)."""
    chain = catalog.chain
    last = catalog.points[-1] if catalog.points else None
    if chain is None or last is None or last.chain != chain.number:
        return 0
    start = max(reader.commitlog.start, chain.base, catalog.points[0].log_start)
    try:
        parts = cover(catalog.parts(catalog.run_of(last)), start, last.log_end)
    except CorruptStoreError:
        return 0
    count, size = 0, catalog.segment_bytes
    for block, group in groupby(parts, key=lambda part: _block_of(part, size)):
        span = _to_merge([*group], block)
        if span is None:
            continue
        view = reader.commitlog.view(span[0])[: span[1] - span[0]]
        catalog.pieces.append(send_piece(catalog.dest, chain, *span, view))
        count += 1
        if count == _BLOCKS_AT_ONCE:
            break
    return count


def _block_of(part: Slice, segment_bytes: int) -> tuple[int, int]:
    """Return the block that a part lies in."""
    base = part.start - part.start % segment_bytes
    start = part.start - (part.start - base) % BLOCK_BYTES
    (found,) = block_ranges(start, min(start + BLOCK_BYTES, base + segment_bytes), segment_bytes)
    return found


def _to_merge(parts: list[Slice], block: tuple[int, int]) -> tuple[int, int] | None:
    """Return the range of a block that shall have one piece, None if it is well as it is."""
    if parts[-1].end == block[1] and len(parts) > _FEW:
        return parts[0].start, block[1]
    run = list[Slice]()
    for part in parts:
        run = [*run, part] if part.end - part.start < _SMALL_BYTES else []
        if len(run) >= _MANY:
            return run[0].start, run[-1].end
    return None
