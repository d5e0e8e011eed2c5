"""Looking at pending timers: one by id, all in order, or how many fall due when."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from timerstore.arguments import DUE_MS_MAX, check_due_ms
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.ids import parse_id
from timerstore.kinds import check_int, check_name
from timerstore.pending.timers import Timer, decode_timers, read_timer
from timerstore.services.floor import read_floor
from timerstore.services.instant import Instant, Snapshot, capture_instant
from timerstore.services.level_timers import find_waiting, read_kept
from timerstore.services.slot_units import slot_units
from timerstore.timelog.append import QueueTable
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.kernel import kernel_ahead
from timerstore.timelog.message import (
    DELETES_BYTES,
    DUE_MS,
    FOUND_WORDS,
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    ROLL_TIMES,
    exact_due_ms,
    identify_timer,
    read_message,
)
from timerstore.timelog.record import Rows, Words
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.wheel import chain
from timerstore.wheel.cancelled import in_table
from timerstore.wheel.place import may_have_rolled
from timerstore.wheel.sets import map_get
from timerstore.wheel.slots import NO_UNIT

if TYPE_CHECKING:
    from timerstore.store import TimerStore

Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Horizon:
    """How many timers fall due when.

    `start_ms`: int64[n], the beginning of each bucket that holds any; `count`: int64[n].
    """

    start_ms: Int64s
    count: Int64s
    bucket_ms: int

    def plot(self, ax: Any = None) -> Any:
        """Draw the counts over time with matplotlib; return the axes."""
        import matplotlib.pyplot as plt

        axes = plt.gca() if ax is None else ax
        times = self.start_ms.astype("datetime64[ms]")
        axes.bar(times, self.count, width=np.timedelta64(self.bucket_ms, "ms"), align="edge")
        axes.set_xlabel("due (UTC)")
        axes.set_ylabel(f"timers in {self.bucket_ms} ms")
        return axes

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{np.datetime64(start, 'ms')}</td><td>{count}</td></tr>"
            for start, count in zip(self.start_ms[:50].tolist(), self.count[:50], strict=True)
        )
        more = f"<p>… {len(self.count) - 50} more buckets</p>" if len(self.count) > 50 else ""
        return f"<table><tr><th>due (UTC)</th><th>timers</th></tr>{rows}</table>{more}"


# --- what is pending, as arrays


_AT_ONCE: Final = 256
"""Timers that are decoded together."""
# Columns of `_find_parts`.


class Found(NamedTuple):
    """Pending timers, one row each, in no order."""

    message: Int64s  # commit log offset of the latest copy
    due_ms: Int64s
    high: Int64s  # identity
    low: Int64s
    rolls: Int64s
    row: Int64s  # queue of the real topic


@kernel_ahead
def _read_timers(
    commitlog: SegmentTable,
    queues: QueueTable,
    messages: Words,
    tag: int,
    precision_ms: int,
    done: Words,
    done_count: int,
    found: Words,
    columns: Rows,
) -> int:
    """Read pending messages into `columns`: int64[6, n]; return how many are timers.

    Left out: deletes, what cannot be read, and sources that have their copy. Segments are mapped.
    """
    count = 0
    for i in range(len(messages)):
        message = messages[i]
        if done_count > 0 and map_get(done, message) >= 0:
            continue
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            continue
        at = message % commitlog.words[SEGMENT_BYTES]
        if read_message(buf, at, found, False) != GOOD:
            continue
        if found[DUE_MS] < 0 or found[REAL_TOPIC_BYTES] < 0 or found[DELETES_BYTES] >= 0:
            continue
        identify_timer(buf, found, tag)
        columns[0, count] = message
        columns[1, count] = exact_due_ms(buf, found, tag, precision_ms)
        columns[2, count] = found[IDENTITY_HIGH]
        columns[3, count] = found[IDENTITY_LOW]
        columns[4, count] = max(0, found[ROLL_TIMES])
        columns[5, count] = find_row(
            queues, buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES], max(0, found[REAL_QUEUE])
        )
        count += 1
    return count


def read_timers(store: TimerStore, instant: Instant, messages: Int64s) -> Found:
    """Read messages into a `Found`, without the timers that were cancelled by that instant."""
    found = read_messages(store, messages)
    if not len(instant.cancelled):
        return found
    cancelled = in_table(instant.cancelled, found.high, found.low)
    return Found(*(column[~cancelled] for column in found))


def read_messages(store: TimerStore, messages: Int64s) -> Found:
    """Read messages into a `Found`, segment by segment; sources that are done are left out."""
    engine = store.engine
    messages = np.sort(messages)
    segment_bytes = engine.commitlog.segment_bytes
    parts, found = [], np.zeros(FOUND_WORDS, np.int64)
    edges = np.flatnonzero(np.diff(messages // segment_bytes)) + 1
    for part in np.split(messages, edges) if len(messages) else []:
        try:
            pins = engine.commitlog.pin(int(part[0]), int(part[-1]) + 1)
        except CorruptStoreError:
            if int(part[-1]) >= engine.commitlog.start:
                raise
            continue  # fired and removed since
        columns = np.empty((6, len(part)), np.int64)
        count = _read_timers(
            engine.commitlog.table,
            engine.queues.table,
            part,
            engine.store_tag,
            engine.precision_ms,
            engine.done,
            engine.world.done.count,
            found,
            columns,
        )
        del pins
        parts.append(columns[:, :count])
    columns = np.concatenate(parts, axis=1) if parts else np.empty((6, 0), np.int64)
    return Found(*(column.copy() for column in columns))


def capture_locked(store: TimerStore) -> Snapshot:
    """Capture the cursors; under the locks of the services. O(1)."""
    engine, world = store.engine, store.engine.world
    aside_stop, aside = world.dequeue_put.aside_stop, (0, 0, NO_UNIT)
    if engine.read_slot < aside_stop:
        aside = world.aside.claimed_slot, aside_stop, world.aside.claim_offset
    return Snapshot(
        world.dequeue_get.claimed_slot,
        world.dequeue_get.claim_offset,
        *aside,
        world.flush.checkpointed_slot + 2 * world.settings.slot_count,  # see wheel/place.py
        engine.timerlog.end,
        world.enqueue_put.linked_index,
        engine.queues.next_index(0),
        read_floor(world.cleaning),
    )


def unlinked_messages(store: TimerStore, snapshot: Snapshot) -> Int64s:
    """Return the timer messages that had no unit yet."""
    if snapshot.queue_end <= snapshot.queue_start:
        return np.zeros(0, np.int64)
    entries = read_kept(store.engine, 0, snapshot.queue_start, snapshot.queue_end)
    return entries["offset"].astype(np.int64)


def half_claimed(store: TimerStore, snapshot: Snapshot) -> Int64s:
    """Return the messages of the units that are still to be claimed of slots that were begun."""
    parts = [np.zeros(0, np.int64)]
    for claimed, offset in (
        (snapshot.claimed, snapshot.claim_offset),
        (snapshot.aside_claimed, snapshot.aside_offset),
    ):
        if offset != NO_UNIT:
            parts.append(slot_messages(store, snapshot, claimed - 1, offset))
    return np.concatenate(parts)


def slot_messages(store: TimerStore, snapshot: Snapshot, slot: int, start: int = NO_UNIT) -> Int64s:
    """Return the messages of a slot's units, as the snapshot saw them, from `start` back.

    Without those that were superseded.
    """
    parts = [np.zeros(0, np.int64)]
    for units in slot_units(store.engine, slot, start):
        seen = units[:, chain.WALK_OFFSET] < snapshot.timerlog_end
        seen &= ~snapshot.floor.superseded(units[:, chain.WALK_MESSAGE], slot)
        parts.append(units[seen, chain.WALK_MESSAGE])
    return np.concatenate(parts)


def find_pending(store: TimerStore, instant: Instant | None = None) -> Found:
    """Return all timers that were pending at an instant, or now. O(pending).

    What was fired since is among them, as long as retention has not removed it.
    """
    with store.gate:
        store.check_open()
        return _find_pending(store, instant)


def _find_pending(store: TimerStore, instant: Instant | None) -> Found:
    if instant is None:
        instant = capture_instant(store.engine.world)
    snapshot = instant.snapshot
    parts = [
        instant.messages,
        unlinked_messages(store, snapshot),
        half_claimed(store, snapshot),
    ]
    for slot, last in instant.slots.tolist():
        parts.append(slot_messages(store, snapshot, slot, last))
    timers = read_timers(store, instant, np.concatenate(parts))
    levels = find_waiting(store.engine, instant)
    rolls = np.zeros(len(levels.message), np.int64)
    in_levels = Found(*(levels.message, levels.due_ms, levels.high, levels.low, rolls, levels.row))
    return Found(*map(np.concatenate, zip(timers, in_levels, strict=True)))


# --- the public calls


def pending(
    store: TimerStore,
    topic: str | None,
    start_ms: int | None,
    end_ms: int | None,
    limit: int | None,
) -> Iterator[Timer]:
    """Yield pending timers in order; see `TimerStore.pending`."""
    for name, value in (("start_ms", start_ms), ("end_ms", end_ms)):
        if value is not None:
            check_due_ms(value, name)
    if limit is not None:
        check_int(limit, "limit", 0, sys.maxsize)
    if topic is not None:
        check_name(topic)
    return _pending(store, topic, start_ms, end_ms, limit)


def _pending(
    store: TimerStore,
    topic: str | None,
    start_ms: int | None,
    end_ms: int | None,
    limit: int | None,
) -> Iterator[Timer]:
    store.check_process()
    found = find_pending(store)
    keep = np.ones(len(found.due_ms), np.bool_)
    if topic is not None:
        keep &= np.isin(found.row, store.engine.queues.rows(check_name(topic)))
    if start_ms is not None:
        keep &= found.due_ms >= start_ms
    if end_ms is not None:
        keep &= found.due_ms < end_ms
    order = np.flatnonzero(keep)
    order = order[np.lexsort((found.message[order], found.due_ms[order]))][:limit]
    for at in range(0, len(order), _AT_ONCE):
        part = order[at : at + _AT_ONCE]
        with store.gate:
            store.check_open()
            timers = decode_timers(store, found.message[part], found.due_ms[part])
        for timer in timers:
            store.check_process()
            if store.closed:
                store.check_open()
            yield timer


def horizon(store: TimerStore, bucket_ms: int, start_ms: int | None, end_ms: int | None) -> Horizon:
    """Count pending timers by bucket; see `TimerStore.horizon`."""
    check_int(bucket_ms, "bucket_ms", 1, DUE_MS_MAX)
    for name, value in (("start_ms", start_ms), ("end_ms", end_ms)):
        if value is not None:
            check_int(value, name, -DUE_MS_MAX, 2 * DUE_MS_MAX)
    due_ms = find_pending(store).due_ms
    if start_ms is not None:
        due_ms = due_ms[due_ms >= start_ms]
    if end_ms is not None:
        due_ms = due_ms[due_ms < end_ms]
    buckets, counts = np.unique(due_ms // bucket_ms, return_counts=True)
    return Horizon(buckets * bucket_ms, counts.astype(np.int64), bucket_ms)


def get(store: TimerStore, id: str) -> Timer | None:
    """Return a pending timer; see `TimerStore.get`."""
    from timerstore.pending import cancel as cancelling

    if not isinstance(id, str):
        raise InvalidArgumentError(f"id is {id!r}. Pass an id that put returned, a str.")
    parsed = parse_id(id)
    if parsed is None or parsed.tag != store.engine.store_tag:
        return find_foreign(store, id)
    offset, due_ms = parsed.offset, parsed.due_ms
    while True:
        verdict = cancelling.judge(store, [id])
        message = int(verdict.message[0])
        if not verdict.pending[0]:
            return None
        try:
            first = read_timer(store, message, due_ms)
            latest = offset
            if message == offset:
                latest = latest_copy(store, offset, due_ms, first.put_ms)
            return first if latest == offset else read_timer(store, latest, due_ms)
        except CorruptStoreError:
            if message >= store.engine.commitlog.start:
                raise  # else it rolled, and retention removed its segment just now


def latest_copy(store: TimerStore, offset: int, due_ms: int, put_ms: int) -> int:
    """Return the offset of the latest copy of a timer that may have rolled."""
    engine, world = store.engine, store.engine.world
    if not may_have_rolled(world.settings, due_ms, put_ms):
        return offset
    own = due_ms // engine.precision_ms
    instant = capture_instant(engine.world, whole=False)
    at = instant.snapshot
    parts = [instant.messages, unlinked_messages(store, at), half_claimed(store, at)]
    hop = world.settings.hop_slots
    latest = own - max(0, -(-(own - at.top + 1) // hop)) * hop
    waits_aside = range(at.aside_claimed, at.aside_stop)
    for slot in range(latest, min([at.claimed, *waits_aside[:1]]) - 1, -hop):
        if slot >= at.claimed or slot in waits_aside:
            parts.append(slot_messages(store, at, slot))
    found = read_messages(store, np.concatenate(parts))
    mine = found.message[found.low == offset]
    return int(mine.max()) if len(mine) else offset


def find_foreign(store: TimerStore, id: str) -> Timer | None:
    """Return the pending timer of a broker with this unique key. O(pending)."""
    found = find_pending(store)
    for i in np.flatnonzero(found.high != -1).tolist():
        timer = read_timer(store, int(found.message[i]), int(found.due_ms[i]))
        if timer.id == id:
            return timer
    return None
