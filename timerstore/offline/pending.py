"""What is pending in a store that nobody opens: the answer that recovery would give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.level_file import LevelOffsetFile
from timerstore.timelog import scan
from timerstore.timelog.copies import BrokerCopies
from timerstore.timelog.decode import Message, decode_message, text
from timerstore.timelog.format import (
    ENTRY_BYTES,
    LEVEL_MARK,
    LEVEL_TOPIC,
    QUEUE_BLANK_SIZE,
    QUEUE_ENTRY,
    TIMER_TOPIC,
    TIMERLOG_BLANK_BYTES,
    UNIT_BYTES,
)
from timerstore.timelog.message import IDENTITY_OURS
from timerstore.timelog.reader import Fault, StoreReader
from timerstore.timelog.record import Words
from timerstore.wheel import chain

Flags = np.ndarray[Any, np.dtype[np.bool_]]
_CHUNK_UNITS = 65_536
_IN_LEVEL = -1
_KEPT = (
    scan.ROW_OFFSET,
    scan.ROW_EXACT_DUE_MS,
    scan.ROW_IDENTITY_HIGH,
    scan.ROW_IDENTITY_LOW,
    scan.ROW_IS_DELETE,
    scan.ROW_ROLL_TIMES,
)


class PendingTimers(NamedTuple):
    """Pending timers in the order of due time, then of arrival; int64[n] each."""

    message: Words  # commit log offset of the latest copy
    due_ms: Words
    roll_count: Words


def in_topic(reader: StoreReader, rows: Words, topic: bytes) -> Flags:
    """Tell which scanned messages stand in a topic."""
    likely: Flags = rows[:, scan.ROW_TOPIC_BYTES] == len(topic)
    for i in np.flatnonzero(likely).tolist():
        likely[i] = reader.commitlog.read(int(rows[i, scan.ROW_TOPIC]), len(topic)) == topic
    return likely


def in_timer_topic(reader: StoreReader, rows: Words) -> Flags:
    """Tell which scanned messages wait in the timer topic, queue 0."""
    found: Flags = in_topic(reader, rows, TIMER_TOPIC) & (rows[:, scan.ROW_QUEUE_ID] == 0)
    return found


def find_pending(
    reader: StoreReader,
    messages: Iterable[Words] | None = None,
    faults: list[Fault] | None = None,
    *,
    level_offsets: Sequence[int] | None = None,
) -> PendingTimers:
    """Find all pending timers of a closed store, or of a copy. O(commit log + units).

    A timer is pending where its message has a unit in a slot at or after R, or its entry lies at or
    after Q, or at or after the offset of its delay level; no copy of it was made since L; and no
    delete of the same kind names it. `messages`: where not a plain scan gives them. `faults`: takes
    damaged units, which are an error otherwise. `level_offsets`: where not the store's files say
    them.
    """
    waiting = _waiting_messages(reader, faults)
    in_levels = _waiting_in_levels(reader, level_offsets)
    kept: list[Words] = []
    cancelled: set[tuple[int, int]] = set()
    done: set[int] = set()
    checkpoint = reader.checkpoint
    broker = BrokerCopies() if checkpoint is None or checkpoint.by_broker else None
    for rows in reader.scan(verify=reader.is_open) if messages is None else messages:
        place = np.searchsorted(waiting, rows[:, scan.ROW_OFFSET])
        place[place == len(waiting)] = 0
        found = waiting[place] == rows[:, scan.ROW_OFFSET] if len(waiting) else place < 0
        timed = found & (rows[:, scan.ROW_DUE_MS] >= 0) & (rows[:, scan.ROW_REAL_TOPIC_BYTES] >= 0)
        kept.append(rows[timed][:, _KEPT])
        kept.append(in_levels.take(rows))
        cancelled.update(level_targets(rows))
        done.update(rows[rows[:, scan.ROW_ORIGIN] >= 0, scan.ROW_ORIGIN].tolist())
        if broker is not None:
            broker.take(rows, in_timer_topic(reader, rows), in_topic(reader, rows, LEVEL_TOPIC))
    if broker is not None:
        done.update(broker.match()[0].tolist())
    rows = np.concatenate(kept) if kept else np.zeros((0, len(_KEPT)), np.int64)
    rows = rows[~np.isin(rows[:, 0], np.fromiter(done, np.int64, len(done)))]
    deletes = rows[rows[:, 4] == 1]
    cancelled.update(zip(deletes[:, 2].tolist(), deletes[:, 3].tolist(), strict=True))
    rows = rows[rows[:, 4] == 0]
    if cancelled:
        # What was sent back through a level has the key of its first message, and is not meant.
        low = np.where(rows[:, 5] == _IN_LEVEL, rows[:, 0] | LEVEL_MARK, rows[:, 3])
        who = zip(rows[:, 2].tolist(), low.tolist(), strict=True)
        rows = rows[np.fromiter((each not in cancelled for each in who), np.bool_, len(rows))]
    order = np.lexsort((rows[:, 0], rows[:, 1]))
    return PendingTimers(rows[order, 0], rows[order, 1], np.maximum(rows[order, 5], 0))


class LevelEntries(NamedTuple):
    """What delay levels have not delivered, as their queues say it: int64[n] each."""

    message: Words  # commit log offset
    due_ms: Words

    def take(self, rows: Words) -> Words:
        """Return those of the scanned messages that wait in a level, as columns _KEPT.

        `self.message` must be sorted.
        """
        place = np.searchsorted(self.message, rows[:, scan.ROW_OFFSET])
        place[place == len(self.message)] = 0
        found = np.zeros(len(rows), np.bool_)
        if len(self.message):
            found = self.message[place] == rows[:, scan.ROW_OFFSET]
        found &= rows[:, scan.ROW_REAL_TOPIC_BYTES] > 0
        mine: Words = rows[found][:, _KEPT]
        mine[:, 1] = self.due_ms[place[found]]
        mine[:, 5] = _IN_LEVEL
        return mine


def level_offsets(reader: StoreReader) -> list[int]:
    """Return the index of the first message that each delay level has not delivered.

    Raises CorruptStoreError where `delayOffset.json` cannot be read.
    """
    offsets = LevelOffsetFile(reader.path / "config" / "delayOffset.json").read(reader.steady.read)
    if reader.checkpoint is not None and not reader.checkpoint.by_broker:
        pairs = zip(offsets, reader.checkpoint.level_offsets, strict=True)
        offsets = [max(pair) for pair in pairs]
    return offsets


def level_ranges(reader: StoreReader, offsets: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (level − 1, first index, stop) of what each level's queue holds behind its offset."""
    for level, offset in enumerate(offsets):
        queue = reader.queues.get((text(LEVEL_TOPIC), level))
        if queue is not None:
            first = max(offset, queue.start // ENTRY_BYTES)
            yield level, first, max(first, -(-queue.used_end() // ENTRY_BYTES))


def read_level(reader: StoreReader, level: int, first: int, stop: int) -> LevelEntries:
    """Return the messages that entries [first, stop) of a level's queue point to, in order."""
    queue = reader.queues[text(LEVEL_TOPIC), level]
    data = queue.read(first * ENTRY_BYTES, (stop - first) * ENTRY_BYTES)
    entries = np.frombuffer(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], QUEUE_ENTRY)
    entries = entries[(entries["size"] > 0) & (entries["size"] != QUEUE_BLANK_SIZE)]
    return LevelEntries(entries["offset"].astype(np.int64), entries["tags_code"].astype(np.int64))


def _waiting_in_levels(reader: StoreReader, offsets: Sequence[int] | None) -> LevelEntries:
    """Return what waits in all levels, by commit log offset."""
    offsets = level_offsets(reader) if offsets is None else offsets
    nothing = np.zeros(0, np.int64)
    parts = [LevelEntries(nothing, nothing)]
    parts += [read_level(reader, *each) for each in level_ranges(reader, offsets)]
    message, due_ms = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(message, kind="stable")
    return LevelEntries(message[order], due_ms[order])


def level_targets(rows: Words) -> set[tuple[int, int]]:
    """Return the identities of delay level messages that scanned deletes name."""
    who = rows[:, (scan.ROW_IDENTITY_HIGH, scan.ROW_IDENTITY_LOW)]
    of_level = (who[:, 0] == IDENTITY_OURS) & (who[:, 1] >= LEVEL_MARK)
    return set(map(tuple, who[(rows[:, scan.ROW_IS_DELETE] == 1) & of_level].tolist()))


def copied_sources(reader: StoreReader) -> Words:
    """Return the messages of which a copy stands in the log, fired or rolled. O(commit log)."""
    origins, broker = [np.zeros(0, np.int64)], BrokerCopies()
    for rows in reader.scan(verify=reader.is_open):
        origins.append(rows[rows[:, scan.ROW_ORIGIN] >= 0, scan.ROW_ORIGIN].copy())
        broker.take(rows, in_timer_topic(reader, rows), in_topic(reader, rows, LEVEL_TOPIC))
    return np.unique(np.concatenate([*origins, broker.match()[0]]))


def _waiting_messages(reader: StoreReader, faults: list[Fault] | None) -> Words:
    """Return the messages of live units and of entries without a unit, sorted."""
    checkpoint = reader.checkpoint
    parts = [np.zeros(0, np.int64)]
    read_slot, queue_index = 0, 0
    if checkpoint is not None:
        read_slot = checkpoint.read_ms // reader.precision_ms
        queue_index = checkpoint.queue_index
        stop = reader.timerlog.used_end()
        if not checkpoint.by_broker:
            stop = min(checkpoint.timerlog_flushed, reader.timerlog.files_end)
        for units in live_units(reader, read_slot, stop, faults):
            messages = units[:, chain.WALK_MESSAGE]
            parts.append(messages[messages >= checkpoint.floor_offset])
    queue = reader.queues.get((text(TIMER_TOPIC), 0))
    if queue is not None:
        start = max(queue_index * ENTRY_BYTES, queue.start)
        data = queue.read(start, queue.used_end() + ENTRY_BYTES - start)
        entries = np.frombuffer(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], QUEUE_ENTRY)
        parts.append(entries["offset"][entries["size"] > 0].astype(np.int64))
    return np.unique(np.concatenate(parts))


def live_units(
    reader: StoreReader, read_slot: int, stop: int, faults: list[Fault] | None = None
) -> Iterator[Words]:
    """Yield the units before `stop` of slots from `read_slot` on, see `wheel/chain.py`.

    The arrays are overwritten by the next step. `faults`: takes damaged units.
    """
    log = reader.timerlog
    units = np.zeros((_CHUNK_UNITS, chain.WALK_COLUMNS), np.int64)
    where, scratch = np.array([log.start, 0], np.int64), np.zeros(64, np.uint8)
    # A broker's last unit ends in zeros, so `stop` may lie inside it.
    stop = min(stop + 8, log.files_end)
    while True:
        before = int(where[0])
        log.map_from(before)
        count = chain.scan_units(
            log.table, stop, read_slot, reader.precision_ms, units, scratch, where
        )
        if count:
            yield units[:count]
        if where[1] == chain.WALK_DONE or (where[1] == chain.WALK_DAMAGED and reader.is_open):
            return
        if where[1] == chain.WALK_DAMAGED and faults is not None:
            faults.append(Fault("timerlog", int(where[0]), "this is no unit"))
            where[0] = _behind_unit(int(where[0]), log.segment_bytes)
            continue
        if where[1] == chain.WALK_DAMAGED or (
            where[1] == chain.WALK_UNMAPPED and where[0] == before
        ):
            raise CorruptStoreError("timerlog", int(where[0]), "this is no unit")


def _behind_unit(offset: int, segment_bytes: int) -> int:
    """Return the offset behind the unit that stands at or next after `offset`."""
    left = segment_bytes - offset % segment_bytes
    return offset + (left if UNIT_BYTES + TIMERLOG_BLANK_BYTES > left else 0) + UNIT_BYTES


def read_message(reader: StoreReader, offset: int) -> Message:
    """Decode the message at `offset`."""
    return decode_message(reader.commitlog.view(offset), offset)
