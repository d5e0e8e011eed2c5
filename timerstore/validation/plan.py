"""What is to be looked at in a store, cut into ranges that any process can look at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from timerstore.config import DELAY_LEVELS
from timerstore.kinds import check_int, check_path
from timerstore.tables.places import timers_stop
from timerstore.tables.plan import Range, Split
from timerstore.tables.plan import plan as plan_table
from timerstore.tables.view import Cut, StoreView, open_view
from timerstore.timelog import scan
from timerstore.timelog.format import UNIT, UNIT_BYTES

SPLIT_BYTES: Final = 64 << 20
"""Of the store's bytes, looked at together."""
BUCKET_BYTES: Final = 128 << 20
"""Of both logs, whose notes meet in one bucket: about half a million timers, 50 MB of notes."""
BUCKETS_MAX: Final = 1 << 14
_UNITS_TRIED_MAX: Final = 1_000


class Scope(NamedTuple):
    """What every part of a validation must know of its store."""

    cut: Cut
    bucket_count: int
    first_index: int
    """Queue index of the message of the first unit that is kept."""
    window_ms: int
    """A broker's roll window, 0 where unknown."""

    @property
    def view(self) -> StoreView:
        """The store, opened once in each process."""
        return open_view(self.cut)

    @property
    def units_stop(self) -> int:
        """Where the units end that opening would keep: it makes those behind a checkpoint again."""
        return timers_stop(self.view)

    @property
    def is_lenient(self) -> bool:
        """A broker was killed: it mends its wheel from the timer log when it opens."""
        view = self.view
        return view.cut.is_open and not view.ours


class Plan(NamedTuple):
    """A validation before it has begun."""

    scope: Scope
    splits: tuple[tuple[Range, ...], ...]

    @property
    def step_count(self) -> int:
        """Steps of it: splits, then buckets of slots and of timers."""
        return len(self.splits) + 2 * self.scope.bucket_count


def make_plan(
    path: str | os.PathLike[str],
    *,
    upto: str | None = None,
    delay_levels: str = DELAY_LEVELS,
    roll_window_slots: int | None = None,
    split_bytes: int = SPLIT_BYTES,
) -> Plan:
    """Plan a validation of a store.

    `upto`: "checkpoint", "end"; None: a closed store to its end, any other to its last checkpoint.
    `roll_window_slots`: a broker's, which its store does not say. Raises NotAStoreError.
    """
    if roll_window_slots is not None:
        check_int(roll_window_slots, "roll_window_slots", 1, 1 << 31)
    table: list[Split] = plan_table(
        [str(check_path(path))],
        "problems",
        upto=upto,
        delay_levels=delay_levels,
        split_bytes=split_bytes,
    )
    view = open_view(table[0].cut)
    used = view.log_stop - view.reader.commitlog.start
    used += view.units_stop - view.reader.timerlog.start
    scope = Scope(
        cut=view.cut,
        bucket_count=int(min(BUCKETS_MAX, max(1, -(-used // BUCKET_BYTES)))),
        first_index=_first_index(view),
        window_ms=(roll_window_slots or 0) * view.reader.precision_ms,
    )
    return Plan(scope, tuple(split.ranges for split in table))


def _first_index(view: StoreView) -> int:
    """Return the queue index of the first message that must have a unit.

    Where retention removed the first units, that of the first unit whose message can be read.
    """
    if view.reader.timerlog.start == 0:
        return 0
    for message in _first_messages(view):
        if view.reader.commitlog.start <= message < view.log_stop:
            for rows in view.reader.scan(message, message + 1, verify=False):
                return int(rows[0, scan.ROW_QUEUE_INDEX])
    return view.queue_index


def _first_messages(view: StoreView) -> Iterator[int]:
    log = view.reader.timerlog
    for number in log.numbers:
        base = number * log.segment_bytes
        count = min(_UNITS_TRIED_MAX, log.segment_bytes // UNIT_BYTES)
        units = np.frombuffer(log.read(base, count * UNIT_BYTES), UNIT)
        yield from units[units["size"] == UNIT_BYTES]["message_offset"].tolist()
