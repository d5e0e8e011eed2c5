"""A validation in one process, without Spark.

Notes wait in a file without a name until their bucket is judged, so the memory that is needed is
that of one split, or of one bucket, however large the store.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Final

import numpy as np

from timerstore.ground.config import DELAY_LEVELS
from timerstore.jit.record import Words
from timerstore.tables.splits import Range
from timerstore.tables.view import forget
from timerstore.timelog.files.oserrors import telling
from timerstore.validation.evidence import Evidence
from timerstore.validation.files import finish
from timerstore.validation.notes import COLUMNS, Note
from timerstore.validation.plan import SPLIT_BYTES, Plan, make_plan
from timerstore.validation.result import Validation
from timerstore.validation.work import judge_bucket, look_at

HELD_BYTES_MAX: Final = 64 << 20
"""Notes that are held in memory before they go to the file."""
_NO_PIECE: Final = -1
_HEAD_BYTES: Final = 16


class Exchange:
    """Notes on their way from ranges to buckets.

    All wait in one file; a process may not open one for each of thousands of buckets. What a
    bucket has of a kind lies there in pieces. Each begins with two int64: where the one before it
    lies, or −1, and how many bytes follow.
    """

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._held: dict[tuple[int, int], list[Words]] = defaultdict(list)
        self._held_bytes = 0
        self._held_bytes_max = held_bytes_max
        self._file: IO[bytes] | None = None
        self._last: dict[tuple[int, int], int] = {}
        """Where the last piece of each lies."""

    def put(self, notes: Iterable[Note]) -> None:
        """Take notes in."""
        for bucket, kind, rows in notes:
            self._held[bucket, kind].append(rows)
            self._held_bytes += rows.nbytes
        if self._held_bytes > self._held_bytes_max:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="timerstore-")  # noqa: SIM115
        self._file.seek(0, os.SEEK_END)
        for where, parts in self._held.items():
            size = sum(part.nbytes for part in parts)
            head = self._last.get(where, _NO_PIECE), size
            self._last[where] = self._file.tell()
            self._file.write(np.array(head, np.int64).data)
            for part in parts:
                self._file.write(np.ascontiguousarray(part).data)
        self._held.clear()
        self._held_bytes = 0

    def take(self, bucket: int) -> dict[int, list[Words]]:
        """Return all notes of a bucket by kind, and forget them."""
        found: dict[int, list[Words]] = {}
        for kind, columns in enumerate(COLUMNS):
            pieces = [piece.reshape(-1, columns) for piece in self._pieces((bucket, kind))]
            found[kind] = [*pieces[::-1], *self._held.pop((bucket, kind), [])]
        return found

    def _pieces(self, where: tuple[int, int]) -> Iterator[Words]:
        """Yield what was written of a bucket's kind, the last piece first."""
        at = self._last.pop(where, _NO_PIECE)
        while at != _NO_PIECE and self._file is not None:
            self._file.seek(at)
            at, size = np.frombuffer(self._file.read(_HEAD_BYTES), np.int64).tolist()
            yield np.frombuffer(self._file.read(size), np.int64)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def run(plan: Plan, step: Callable[[tuple[Range, ...]], None]) -> Evidence:
    """Do both rounds; return what was found.

    `step`: is told the ranges that were looked at, none when a bucket was judged.
    """
    scope, tally, exchange = plan.scope, plan.scope.new_tally(), Exchange()
    try:
        for ranges in plan.splits:
            found, notes = look_at(scope, ranges)
            tally.merge(found)
            exchange.put(notes)
            step(ranges)
        for bucket in range(2 * scope.bucket_count):
            tally.merge(judge_bucket(scope, bucket, exchange.take(bucket)))
            step(())
    finally:
        exchange.close()
    return tally


@telling
def validate(
    path: str | os.PathLike[str],
    *,
    upto: str | None = None,
    delay_levels: str = DELAY_LEVELS,
    roll_window_slots: int | None = None,
    split_bytes: int = SPLIT_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Check that the parts of a store agree with each other; change nothing.

    Reads a closed store or a copy to its end, one that is open to its last checkpoint, a broker's
    too. `upto`: "checkpoint" or "end", if it is not to choose itself. `delay_levels`: those of
    the store; `roll_window_slots`: of a broker's, which its files do not say. `progress`: is
    told how many steps are done, of how many. Raises NotAStoreError; damage is in the result.
    O(bytes), in bounded memory, with some 80 bytes for each timer in a temporary file.

    >>> timerstore.validation.validate("timers/").ok
    True
    """
    plan = make_plan(
        path,
        upto=upto,
        delay_levels=delay_levels,
        roll_window_slots=roll_window_slots,
        split_bytes=split_bytes,
    )
    done = 0

    def step(_: tuple[Range, ...]) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, plan.step_count)

    try:
        tally = run(plan, step)
        finish(plan.scope, tally)
        return Validation.make(plan.scope, tally)
    finally:
        forget(plan.scope.cut)
