"""What is to be looked at in a store, cut into ranges that any process can look at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from timerstore.copies.lookat import look_at
from timerstore.jit.record import Flags, Words
from timerstore.tables.bounds import Bounds
from timerstore.tables.splits import Range, plan_views
from timerstore.tables.timers import timers_stop
from timerstore.tables.view import Cut, StoreView, check_upto, keep, open_view
from timerstore.tables.view import look_at as look_as_it_is
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.oserrors import told_of
from timerstore.values.config import DELAY_LEVELS, Config
from timerstore.values.kinds import check_int, check_kind, check_path

SPLIT_BYTES: Final = 64 << 20
"""Of the store's bytes, looked at together."""
_UNITS_TRIED_MAX: Final = 1_000


class Scope(NamedTuple):
    """What every part of a validation must know of its store."""

    cut: Cut
    first_index: int
    """Queue index of the message of the first unit that is kept."""
    window_ms: int
    """A broker's roll window, 0 if unknown."""
    only_bytes: bool = False
    """Only the rules about bytes are asked for, with all places that break them."""
    has_indexes: bool = True
    """A backup has none: it has only the commit log."""
    measures: bool = False
    """What the result tables of `timerstore.pipeline` are made of is asked for as well."""

    @property
    def view(self) -> StoreView:
        """The store, opened once in each process."""
        return open_view(self.cut)

    @property
    def units_stop(self) -> int:
        """Where the units end that opening would keep: it makes those behind a checkpoint again."""
        return timers_stop(self.view)

    @property
    def by_broker(self) -> bool:
        """RocketMQ wrote last."""
        view = self.view
        return view.reader.sizes.by_broker if view.checkpoint is None else not view.ours

    @property
    def is_unclean(self) -> bool:
        """The store is open, or was killed: what was not flushed can be torn."""
        view = self.view
        return view.cut.is_open or (
            view.ours and view.checkpoint is not None and not view.checkpoint.clean
        )

    @property
    def is_wheel_torn(self) -> bool:
        """A broker was killed: it mends its wheel, from what it flushed, when it opens."""
        return self.is_unclean and not self.view.ours

    @property
    def linked_again(self) -> int:
        """From which unit on what the wheel says can be torn.

        A broker that is stopped does not write its wheel. When it opens, it links again what stands
        in the files of the timer log from the last one but one that it had flushed.
        """
        view = self.view
        if self.is_wheel_torn:
            return 0
        if view.ours or view.checkpoint is None:
            return 1 << 62
        segment_bytes = view.reader.timerlog.segment_bytes
        flushed = view.checkpoint.timerlog_flushed
        return int(max(0, flushed // segment_bytes - 1) * segment_bytes)

    @property
    def slots_anew(self) -> int:
        """From which unit on what the slots say does not matter, because opening makes them anew.

        After a kill these are all; see also `linked_again`.
        """
        return 0 if self.is_unclean else self.linked_again

    def torn_in_log(self, messages: Words) -> Flags:
        """Tell for which messages what is wrong can be torn, by their offsets: bool[n]."""
        torn: Flags = (messages >= self.view.durable) & self.is_unclean
        return torn

    def torn_units(self, offsets: Words) -> Flags:
        """Tell for which units what is wrong can be torn: bool[n]."""
        behind = (offsets >= self.view.units_durable) | self.by_broker
        torn: Flags = behind & self.is_unclean
        return torn


class Plan(NamedTuple):
    """A validation before it has begun."""

    scope: Scope
    splits: tuple[tuple[Range, ...], ...]

    @property
    def step_count(self) -> int:
        """Steps of it: splits, then the queries."""
        return len(self.splits) + 1


class Reading(NamedTuple):
    """How a store is read.

    `upto`: "checkpoint", "end"; None: a closed store to its end, any other to its last checkpoint.
    `roll_window_slots`: a broker's, which its store does not say.
    """

    upto: str | None = None
    delay_levels: str = DELAY_LEVELS
    roll_window_slots: int | None = None
    split_bytes: int = SPLIT_BYTES

    def checked(self) -> Reading:
        """Return this, the numbers as ints; refuse what no store can be validated with."""
        check_upto(self.upto)
        check_kind(self.delay_levels, str, "delay_levels")
        Config(delay_levels=self.delay_levels).delay_levels_ms()
        window = self.roll_window_slots
        if window is not None:
            window = check_int(window, "roll_window_slots", 1, 1 << 31)
        split_bytes = check_int(self.split_bytes, "split_bytes", 1, 1 << 62)
        return self._replace(roll_window_slots=window, split_bytes=split_bytes)


USUAL: Final = Reading()


def make_plan(
    path: str | os.PathLike[str],
    how: Reading = USUAL,
    *,
    only_bytes: bool = False,
    has_indexes: bool = True,
    measures: bool = False,
) -> Plan:
    """Plan a validation of a store; the last three are those of `Scope`. Raises NotAStoreError."""
    how = how.checked()
    look = look_at if has_indexes else look_as_it_is
    with told_of(path):
        view = keep(look(str(check_path(path)), upto=how.upto, delay_levels=how.delay_levels))
        table = plan_views([view], "problems", Bounds(), split_bytes=how.split_bytes)
    scope = Scope(
        cut=view.cut,
        first_index=_first_index(view),
        window_ms=(how.roll_window_slots or 0) * view.reader.precision_ms,
        only_bytes=only_bytes,
        has_indexes=has_indexes,
        measures=measures,
    )
    return Plan(scope, tuple(split.ranges for split in table))


def _first_index(view: StoreView) -> int:
    """Return the queue index of the first message that must have a unit.

    If retention removed the first units, that of the first unit whose message can be read.
    """
    if view.reader.timerlog.start == 0:
        return 0
    for message in _first_messages(view):
        if view.reader.commitlog.start <= message < view.log_stop:
            for rows in view.reader.scan(message, message + 1, verify=False):
                return int(rows.queue_index[0])
    return view.queue_index


def _first_messages(view: StoreView) -> Iterator[int]:
    """Yield the messages of the first units, except those of hops, which may be of any age."""
    log = view.reader.timerlog
    for number in log.numbers:
        base = number * log.segment_bytes
        count = min(_UNITS_TRIED_MAX, log.segment_bytes // fmt.UNIT_BYTES)
        units = np.frombuffer(log.read(base, count * fmt.UNIT_BYTES), fmt.UNIT)
        # What a hop linked does not stand in the order of the queue; a blank may be as long.
        first = (units["size"] == fmt.UNIT_BYTES) & (units["magic"] & ~fmt.UNIT_MAGIC_BITS == 0)
        first &= units["magic"] & fmt.UNIT_HOP == 0
        yield from units[first]["message_offset"].tolist()
