"""Removing from a remote backup what no point that is kept needs."""

from __future__ import annotations

from timerstore.backups.catalog import Catalog
from timerstore.backups.pieces import Piece, cover
from timerstore.errors import CorruptStoreError


def keep_newest(catalog: Catalog, count: int) -> int:
    """Remove all points but the newest ones; return how many went."""
    gone = catalog.points[:-count]
    for point in gone:
        catalog.dest.remove(catalog.forget(point))
    return len(gone)


def remove_needless(catalog: Catalog) -> int:
    """Remove pieces without which each point can still be read; return how many went.

    Behind the last point nothing is touched: somebody may be about to make a point of it.
    """
    needed, first = set[Piece](), dict[int, tuple[int, int]]()
    for point in catalog.points:
        run = catalog.run_of(point)
        start, end = first.get(run, (point.log_start, point.log_end))
        first[run] = min(start, point.log_start), max(end, point.log_end)
    for run, (start, end) in first.items():
        try:
            needed |= {part.piece for part in cover(catalog.parts(run), start, end)}
        except CorruptStoreError:
            return 0  # something is missing: what is left may help
    last = catalog.points[-1] if catalog.points else None
    gone = [
        piece
        for piece in catalog.pieces
        if last is not None and piece not in needed
        if piece.chain < last.chain or piece.end <= last.log_end
    ]
    for piece in gone:
        catalog.dest.remove(piece.name)
    if gone:
        left = set(gone)
        catalog.pieces = [piece for piece in catalog.pieces if piece not in left]
    return len(gone)
