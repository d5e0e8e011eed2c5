"""Removing from a backup what no point that is kept needs."""

from __future__ import annotations

from typing import Final

from timerstore.copies.catalog import Catalog
from timerstore.copies.pieces import Piece, cover
from timerstore.errors import CorruptStoreError

_CLOSE_MS: Final = ((10 * 60_000, 0), (2 * 3_600_000, 60_000), (1 << 62, 3_600_000))
"""Points that are so old at most are so far apart at least."""


def keep_newest(catalog: Catalog, count: int) -> int:
    """Remove all points but the newest ones; return how many went."""
    gone = catalog.points[:-count]
    for point in gone:
        catalog.remove(point)
    return len(gone)


def thin_out(catalog: Catalog, now_ms: int, keep_ms: int) -> int:
    """Remove points that are old, or close to others; return how many went.

    All of the last ten minutes stay; of the two hours before, one for each minute; of what is
    older, one for each hour, up to `keep_ms`. The last one before that stays, since what lies
    between two points can be restored to the millisecond.
    """
    runs = [catalog.run_of(point) for point in catalog.points]
    gone = needless_points([p.time_ms for p in catalog.points], runs, now_ms, keep_ms)
    for point in [catalog.points[index] for index in gone]:
        catalog.remove(point)
    return len(gone)


def needless_points(times_ms: list[int], runs: list[int], now_ms: int, keep_ms: int) -> list[int]:
    """Return the indexes of the points that may go, of times in order; behind a run is a gap.

    >>> needless_points([0, 1_000, 2_000, 3_600_000, 3_600_500], [1] * 5, 3_601_000, 3_600_000)
    [0, 2]
    """
    gone, kept_ms = list[int](), None
    for index, time_ms in enumerate(times_ms[:-1]):
        age_ms = now_ms - time_ms
        if now_ms - times_ms[index + 1] >= keep_ms:
            gone.append(index)  # the next one is old enough to begin with
            continue
        if runs[index + 1] != runs[index]:
            continue  # nothing else has the end of that log
        apart_ms = next(apart for age, apart in _CLOSE_MS if age_ms <= age)
        if kept_ms is not None and time_ms // max(apart_ms, 1) == kept_ms // max(apart_ms, 1):
            gone.append(index)
            continue
        kept_ms = time_ms
    return gone


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
