"""One store as one query sees it: its checkpoint, where its logs end.

A query is planned at one place and run at many. What was read when it was planned goes along in a
`Cut`, so that all its splits see the same store, also if that is live.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError, InvalidArgumentError, NotAStoreError
from timerstore.jit.record import Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.bytes.unit import UNIT_GOOD
from timerstore.timelog.files.checkpoint import LevelOffsetFile
from timerstore.timelog.files.oserrors import telling
from timerstore.timelog.files.refuse_rocksdb import find_batch_queues
from timerstore.timelog.reading.pastdamage import log_used_end
from timerstore.timelog.reading.reader import StoreReader, read_entries
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.timelog.reading.units import Wanted, walk_units
from timerstore.values.config import DELAY_LEVELS, Config
from timerstore.wheel.timerwheel import new_slot_array, revise_slots

# --- what delay levels have not delivered


class LevelEntries(NamedTuple):
    """Entries of a level's queue: int64[n] each."""

    message: Words  # commit log offset
    due_ms: Words


def level_offsets(reader: StoreReader) -> list[int]:
    """Return the index of the first message that each delay level has not delivered.

    Raises CorruptStoreError if `delayOffset.json` cannot be read.
    """
    offsets = LevelOffsetFile(reader.path / "config" / "delayOffset.json").read(reader.steady.read)
    if reader.checkpoint is not None and not reader.checkpoint.by_broker:
        pairs = zip(offsets, reader.checkpoint.level_offsets, strict=True)
        offsets = [max(pair) for pair in pairs]
    return offsets


def level_ranges(reader: StoreReader, offsets: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (level − 1, first index, stop) of what each level's queue holds behind its offset."""
    for level, offset in enumerate(offsets):
        queue = reader.queues.get((text(fmt.LEVEL_TOPIC), level))
        if queue is not None:
            first = max(offset, queue.start // fmt.ENTRY_BYTES)
            yield level, first, max(first, -(-queue.used_end() // fmt.ENTRY_BYTES))


def read_level(reader: StoreReader, level: int, first: int, stop: int) -> LevelEntries:
    """Return the messages that entries [first, stop) of a level's queue point to, in order."""
    entries = read_entries(reader.queues[text(fmt.LEVEL_TOPIC), level], first, stop - first)
    entries = entries[(entries["size"] > 0) & (entries["size"] != fmt.QUEUE_BLANK_SIZE)]
    return LevelEntries(entries["offset"].astype(np.int64), entries["tags_code"].astype(np.int64))


def level_targets(rows: LoggedMessages) -> Words:
    """Return the identities of delay level messages that scanned deletes name: int64[n, 2]."""
    who = np.stack((rows.identity_high, rows.identity_low), axis=1)
    of_level = (who[:, 0] == IDENTITY_OURS) & (who[:, 1] >= fmt.LEVEL_MARK)
    named: Words = who[(rows.is_delete == 1) & of_level]
    return named


# --- one store as one query sees it: its checkpoint, where its logs end


UpTo = Literal["checkpoint", "end"]
MAPPED_BYTES_MAX: Final = 256 << 20
"""Of one log that stay mapped at once, but two segments; what is mapped counts as memory used."""
_OPEN_COUNT_MAX: Final = 16_384
_VIEWS_MAX: Final = 2
"""Stores that a process keeps mapped between two splits of a query."""
_PLANNED_MAX: Final = 8
"""Stores that a process keeps mapped since it planned a query. What retention removes meanwhile
takes its space until then."""


class Cut(NamedTuple):
    """What a split must know of its store, to see what the plan saw."""

    path: str
    query: str  # different for each query, so that no other query's view is used
    checkpoint_data: bytes
    is_open: bool
    log_stop: int  # no message is read that begins at or behind this commit log offset
    units_stop: int  # no unit that begins at or behind this timer log offset
    precision_ms: int
    delay_levels: str
    level_offsets: tuple[int, ...]  # the first index of each level that is not delivered
    is_laid: bool = False  # a copy, as a store in a temporary folder of who planned


class StoreView:
    """A store's reader, and how far it is read."""

    def __init__(self, cut: Cut, reader: StoreReader) -> None:
        self.cut, self.reader = cut, reader
        self.checkpoint = reader.checkpoint
        self.log_stop, self.units_stop = cut.log_stop, cut.units_stop
        self.settled: Any = None  # what `timers.py` found once
        self.known: dict[Any, Any] = {}  # what a validation found once: see who asks
        self.batch_queues = find_batch_queues(reader.path, reader.at)
        checkpoint = self.checkpoint
        self.ours = checkpoint is not None and not checkpoint.by_broker
        # Before these offsets everything was flushed: what is wrong there is damage.
        self.durable = self.units_durable = 0
        self.read_slot = self.queue_index = self.floor = 0
        if checkpoint is not None:
            self.read_slot = checkpoint.read_ms // reader.precision_ms
            self.queue_index = checkpoint.queue_index
            self.floor = checkpoint.floor
            if self.ours:
                self.durable = checkpoint.commitlog_flushed
                self.units_durable = checkpoint.timerlog_flushed

    @cached_property
    def slots(self) -> np.ndarray[Any, Any]:
        """The timer wheel as a SLOT array, empty if there is none.

        Only a clean close of ours writes it. Of a store that is open, or was killed, the units that
        are read say what the slots are, as when it is opened. O(units) then.
        """
        reader, checkpoint = self.reader, self.checkpoint
        if checkpoint is None or not self.ours or (checkpoint.clean and not self.cut.is_open):
            return reader.slots
        wheel = new_slot_array(
            np.zeros(2 * reader.sizes.wheel_slot_count * fmt.SLOT_BYTES, np.uint8), ()
        )
        log, wanted = reader.timerlog, Wanted(self.read_slot * reader.precision_ms)
        for units in walk_units(log, log.start, self.units_stop, wanted):
            sound = units[units.status == UNIT_GOOD]
            revise_slots(wheel, sound.offset, sound.ms, sound.magic, reader.precision_ms)
        return wheel.slots.view(fmt.SLOT)

    @cached_property
    def used_slots(self) -> Words:
        """The indexes of the slots that hold anything."""
        if self.slots is self.reader.slots:
            return self.reader.used_slots
        return np.flatnonzero(self.slots["time"] != 0)


def _reader(path: str, delay_levels: str, precision_ms: int | None = None) -> StoreReader:
    levels = np.array(Config(delay_levels=delay_levels).delay_levels_ms(), np.int64)
    reader = StoreReader(Path(path), levels, precision_ms=precision_ms)
    for log in (reader.commitlog, reader.timerlog):
        log.open_count_max = min(_OPEN_COUNT_MAX, max(2, MAPPED_BYTES_MAX // log.segment_bytes))
    return reader


@telling
def check_upto(upto: Any) -> None:
    """Refuse a value that does not say how far a store is read."""
    if upto is not None and (not isinstance(upto, str) or upto not in ("checkpoint", "end")):
        raise InvalidArgumentError(f'upto is {upto!r}. Use "checkpoint" or "end".')


def look_at(path: str, *, upto: str | None = None, delay_levels: str = DELAY_LEVELS) -> StoreView:
    """Look at a store now; its segments stay mapped for as long as the view lives.

    `upto`: "checkpoint", "end"; None: a closed store to its end, one that is open, or that was
    killed, to its last checkpoint; a new one, of which none tells anything yet, to its end. A
    broker's checkpoint does not say how much of the commit log was flushed; it is read to its end.
    """
    check_upto(upto)
    return view_of(_reader(path, delay_levels), upto=upto, delay_levels=delay_levels)


def cut_store(path: str, *, upto: str | None = None, delay_levels: str = DELAY_LEVELS) -> StoreView:
    """Look at a store now, as `look_at` does, for splits that are read later."""
    return keep(look_at(path, upto=upto, delay_levels=delay_levels))


def keep(view: StoreView) -> StoreView:
    """Keep open what was looked at, for splits that are read later, until `forget`."""
    while len(_planned) >= _PLANNED_MAX:
        _planned.pop(next(iter(_planned)), None)
    _planned[view.cut.query] = view.reader
    return view


def view_of(
    reader: StoreReader, *, upto: str | None, delay_levels: str = DELAY_LEVELS
) -> StoreView:
    """Return a store that somebody reads as `cut_store` sees it."""
    checkpoint = reader.checkpoint
    ours = checkpoint is not None and not checkpoint.by_broker
    log_stop, units_stop = log_used_end(reader), reader.timerlog.used_end()
    log_flushed = -1
    if checkpoint is not None and ours:
        log_flushed = min(checkpoint.commitlog_flushed, reader.commitlog.files_end)
        units_flushed = min(checkpoint.timerlog_flushed, reader.timerlog.files_end)
        if upto == "checkpoint" or (upto is None and reader.is_open and log_flushed > 0):
            log_stop, units_stop = log_flushed, units_flushed
        log_stop, units_stop = max(log_stop, log_flushed), max(units_stop, units_flushed)
    cut = Cut(
        path=os.fspath(reader.path),
        query=uuid.uuid4().hex,
        checkpoint_data=reader.checkpoint_data,
        is_open=reader.is_open,
        log_stop=log_stop,
        units_stop=units_stop,
        precision_ms=reader.precision_ms,
        delay_levels=delay_levels,
        level_offsets=_level_offsets(reader, upto_checkpoint=ours and log_stop == log_flushed),
    )
    return StoreView(cut, reader)


@telling
def view_whole(view: StoreView) -> StoreView:
    """Return a store as opening would find it: up to the last message that is whole.

    `view`: of it, up to the end.
    """
    if not view.reader.is_open:
        return view
    scanned = view.reader.scan(view.durable if view.ours else None, verify=True)
    for _ in scanned:
        pass
    return StoreView(view.cut._replace(log_stop=max(scanned.end, view.durable)), view.reader)


def forget(cut: Cut) -> None:
    """Let go of a store that was looked at for splits, once all of them are read."""
    _planned.pop(cut.query, None)
    open_view.cache_clear()


_planned: dict[str, StoreReader] = {}
"""By query, the readers that keep open what the plans of this process have seen."""


def _level_offsets(reader: StoreReader, *, upto_checkpoint: bool) -> tuple[int, ...]:
    """Return how far the delay levels were delivered.

    `upto_checkpoint`: by then; `delayOffset.json` may say what was delivered since. If it cannot
    be read, which the table `problems` tells, a broker's levels begin at their queues' start.
    """
    checkpoint = reader.checkpoint
    if upto_checkpoint and checkpoint is not None:
        return tuple(checkpoint.level_offsets)
    try:
        return tuple(level_offsets(reader))
    except CorruptStoreError:
        if checkpoint is None or checkpoint.by_broker:
            return (0,) * fmt.LEVEL_COUNT_MAX
        return tuple(checkpoint.level_offsets)


@lru_cache(maxsize=_VIEWS_MAX)
def open_view(cut: Cut) -> StoreView:
    """Open the store of a split. A process keeps it for the query's next splits.

    The process that planned the query has kept open all that it saw. Another one may find that
    retention has removed the first segments: their rows are missing.
    """
    planned = _planned.get(cut.query)
    if planned is not None:
        return StoreView(cut, planned)
    if cut.is_laid:
        raise NotAStoreError(
            f"{cut.path} is a copy, which one process reads. Restore it, then read the store."
        )
    reader = _reader(cut.path, cut.delay_levels, cut.precision_ms)
    reader.checkpoint_data, reader.is_open = cut.checkpoint_data, cut.is_open
    reader.decode_checkpoint()
    return StoreView(cut, reader)
