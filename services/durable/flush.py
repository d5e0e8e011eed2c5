"""Flushing: makes what was written durable.

The order of a checkpoint is what recovery relies on. Under locks the cursors are captured. Then,
without them: commit log, consume queues and timer log are made durable; then the checkpoint. So no
unit that counts points past the commit log. The wheel is written by a clean close alone.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError, FlushFailedError, StoreFullError, TimerStoreError
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Rows, Words, observe, record
from timerstore.services.durable.group_commit import IS_DURABLE, LEADS, MAY_LEAD, GroupCommit
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import remove_mark
from timerstore.services.looking.instant import used_slots
from timerstore.services.looking.read_units import chain_units, read_timers, reading_all
from timerstore.services.world.state import PASS_COLUMNS, PASS_FIRST_COPY
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.bytes.message import IDENTITY_HELD
from timerstore.timelog.files.checkpoint import (
    AHEAD_FILE,
    CANCELLED_FILE,
    LevelOffsetFile,
    Stamp,
    TimerCheckpoint,
    read_derived,
    write_checkpoint,
    write_derived,
    write_store_checkpoint,
)
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import sealed, write_json
from timerstore.timelog.files.names import INT32_MAX, is_topic
from timerstore.timelog.writing.append import NAME_STRIDE
from timerstore.timelog.writing.tally import (
    AHEAD_BUCKETS,
    DUE_RING_COUNT,
    FAR_COUNT,
    KEPT_FROM,
    PENDING_BYTES,
    RING_PASSED,
    RING_SHIFT,
    RING_STEP,
    TALLY_WORDS,
)
from timerstore.values.blocked_loop import note_blocking
from timerstore.wheel import judge
from timerstore.wheel.cancelled import SET_ENTRY_WORDS, are_of_level
from timerstore.wheel.near import PAGE_PLACES, give_back_page, slot_place

# --- What a clean close leaves, so that opening need not read all: two derived files.
#
# `config/aheadcounts`: when what is pending falls due, by topic. It is the arrays as they are in
# memory, without their zeros. If they do not hold, or the clock went back, opening counts again.
# `config/cancelledset`: which timers still ahead were cancelled; else opening looks for deletes
# among all units.

_WORDS: Final = slice(PENDING_BYTES, KEPT_FROM + DUE_RING_COUNT)
_ROW: Final = np.dtype(
    [
        ("queue_id", "<i4"),
        ("name_bytes", "<i4"),
        ("name", "u1", NAME_STRIDE),
        ("words", "<i8", _WORDS.stop - _WORDS.start),
    ]
)
_BUCKET: Final = np.dtype([("place", "<i8"), ("count", "<i8")])
"""Counts of what is due: `place` is its row's number here × AHEAD_BUCKETS + the bucket."""


def write_ahead(engine: Engine, stamp: Stamp) -> None:
    """Write the file; no service runs any more. Durable on return. O(queues)."""
    words, ahead = (each[: len(engine.queues.topics)] for each in _of_rows(engine))
    kept = words[:, KEPT_FROM : KEPT_FROM + DUE_RING_COUNT].any(axis=1) | (words[:, FAR_COUNT] != 0)
    numbers = np.flatnonzero(kept).tolist()
    rows, buckets = np.zeros(len(numbers), _ROW), [np.zeros(0, _BUCKET)]
    rows["words"] = words[numbers, _WORDS]
    rows["queue_id"] = engine.queues.table.queue_id[numbers]
    for place, row in enumerate(numbers):
        name = np.frombuffer(engine.queues.topics[row], np.uint8)
        rows["name_bytes"][place], rows["name"][place, : len(name)] = len(name), name
        counts = ahead[row]
        used = np.flatnonzero(counts)
        buckets.append(np.zeros(len(used), _BUCKET))
        buckets[-1]["place"], buckets[-1]["count"] = place * AHEAD_BUCKETS + used, counts[used]
    write_derived(engine.disk, engine.path / AHEAD_FILE, stamp, rows, np.concatenate(buckets))


def take_ahead(engine: Engine, stamp: Stamp) -> bool:
    """Take the counts; False, and nothing taken, if they do not hold."""
    arrays = read_derived(engine.disk, engine.path / AHEAD_FILE, stamp, _ROW, _BUCKET)
    if arrays is None:
        return False
    rows, buckets = arrays
    topics = [each["name"][: each["name_bytes"]].tobytes() for each in rows]
    sound = all(map(is_topic, topics)) and (rows["queue_id"] >= 0).all()
    sound &= (0 <= buckets["place"]).all() and (buckets["place"] < len(rows) * AHEAD_BUCKETS).all()
    sound &= (buckets["count"] > 0).all() and (buckets["count"] <= INT32_MAX).all()
    if not sound:
        return False
    kept = rows["words"][:, KEPT_FROM - _WORDS.start :] + RING_PASSED
    now = engine.clock.now_ms >> (RING_SHIFT + RING_STEP * np.arange(DUE_RING_COUNT))
    if (kept > now).any():
        return False  # the clock went back
    numbers = np.zeros(len(rows), np.int64)
    for place, topic in enumerate(topics):
        numbers[place] = engine.queues.row(topic, int(rows["queue_id"][place]))
    words, ahead = _of_rows(engine)
    words[numbers, _WORDS] = rows["words"]
    places, bucket = np.divmod(buckets["place"], AHEAD_BUCKETS)
    ahead[numbers[places], bucket] = buckets["count"]
    return True


def _of_rows(engine: Engine) -> tuple[Any, Any]:
    """Return the words and the buckets of each row."""
    tally = engine.queues.table.tally
    return tally.words.reshape(-1, TALLY_WORDS), tally.ahead.reshape(-1, AHEAD_BUCKETS)


# --- what was cancelled


def write_cancelled(engine: Engine, stamp: Stamp, checkpoint: TimerCheckpoint) -> None:
    """Write the file of a clean close; no service runs any more. Durable on return.

    O(set + units of slots that were claimed). What is held is left out: opening finds it behind the
    copies cursor.
    """
    if not checkpoint.cancelled_count:
        return
    entries = engine.cancelled.table.reshape(-1, SET_ENTRY_WORDS)
    is_kept = (entries != 0).any(axis=1) & (entries[:, 0] != IDENTITY_HELD)
    try:
        passed = list(_passed_targets(engine, checkpoint))
    except CorruptStoreError:  # opening names it when it reads all units
        return
    identities = np.concatenate([entries[is_kept], *passed])
    write_derived(engine.disk, engine.path / CANCELLED_FILE, stamp, identities)


def _passed_targets(engine: Engine, checkpoint: TimerCheckpoint) -> Iterator[Rows]:
    """Yield the targets of timers' deletes in slots that are claimed: int64[n, 2].

    Some have left the set, because they were passed. The next life reads these slots again, and in
    them what was cancelled. A level's loop does not read its messages again.
    """
    reading = reading_all(engine)
    read_slot = checkpoint.read_ms // engine.precision_ms
    for units in chain_units(engine, used_slots(engine.world, read_slot, checkpoint.claimed_slot)):
        messages: Words = units.message[units.magic & fmt.UNIT_DELETE != 0]
        found = read_timers(engine, messages, reading)
        known = found.verdict == judge.DELETE
        known &= ~are_of_level(found.high, found.low)
        yield np.stack((found.high[known], found.low[known]), axis=1)


def read_cancelled(engine: Engine, stamp: Stamp) -> Rows | None:
    """Return the identities in it, int64[n, 2]; None if it does not hold."""
    arrays = read_derived(engine.disk, engine.path / CANCELLED_FILE, stamp, np.dtype("<i8"))
    if arrays is None or len(arrays[0]) % SET_ENTRY_WORDS:
        return None
    words: Rows = arrays[0].reshape(-1, SET_ENTRY_WORDS)
    return words


# --- Checkpoints, and the durable end of the log.

log = logging.getLogger("timerstore")

_READ_SLOT_ALONE_S: Final = 10
"""How often the read cursor is made durable if nothing else moves."""


# --- the cursors, all of one moment


@kernel_ahead
def read_appended(world: World, into: Words) -> None:
    """Fill what was appended since the store was opened, of one moment under fire: int64[4].

    Bytes of what fired; units of hops; bytes that cleaning copied; the commit log's end.
    """
    lock_acquire(world.fire_lock)
    into[0] = world.dequeue_put.counts.fired_bytes + world.deliver_levels.counts.fired_bytes
    into[1] = world.dequeue_get.hop_count
    into[2] = world.cleaning.copied_bytes
    into[3] = observe(world.commitlog, "end")
    lock_release(world.fire_lock)


@record
class Captured:
    """What stood in an engine at one moment."""

    next_index: Words  # of each queue
    level_offsets: Words
    queue_count: int = 0
    read_slot: int = 0
    linked: int = 0
    claimed_slot: int = 0
    frontier_ms: int = 0
    cancelled_count: int = 0
    timerlog_end: int = 0
    commitlog_end: int = 0
    scan_from: int = 0  # the copies cursor, as far as this life's copies say
    floor: int = 0
    hops_from: int = 0  # the hops cursor, as far as this life's hops say


@kernel_ahead
def _capture(world: World, into: Captured) -> bool:
    """Capture; False if the queues do not fit, whose count is told."""
    near = world.near
    next_index, level_offsets = into.next_index, into.level_offsets
    lock_acquire(world.fire_lock)
    lock_acquire(world.wheel_lock)
    for level in range(len(level_offsets)):
        level_offsets[level] = world.levels.offset[level]
    # Of one instant: of what the log is said to be durable up to, recovery reads no entry anew.
    lock_acquire(world.append_lock)
    end = world.commitlog.end
    queues = world.queues.count
    for row in range(min(queues, len(next_index))):
        next_index[row] = world.queues.next_index[row]
    lock_release(world.append_lock)
    into.queue_count = queues
    if queues > len(next_index):
        lock_release(world.wheel_lock)
        lock_release(world.fire_lock)
        return False
    oldest = min(end, world.cancelled.held_from)
    hops_from = world.timerlog.end
    for slot in range(world.dequeue_put.passed_slot, world.dequeue_get.claimed_slot):
        place = slot_place(near, slot)
        oldest = min(oldest, near.first_copy[place])
        hops_from = min(hops_from, near.first_hop[place])
    for i in range(world.cleaning.pass_count):
        oldest = min(oldest, world.cleaning.passes[i * PASS_COLUMNS + PASS_FIRST_COPY])
    into.read_slot = world.dequeue_put.passed_slot
    into.linked = world.enqueue_put.linked_index
    into.claimed_slot = world.dequeue_get.claimed_slot
    into.frontier_ms = world.dequeue_put.frontier_ms
    into.cancelled_count = world.cancelled.count
    into.timerlog_end = world.timerlog.end
    into.commitlog_end = end
    into.scan_from = oldest
    into.floor = world.cleaning.floor
    into.hops_from = hops_from
    lock_release(world.wheel_lock)
    lock_release(world.fire_lock)
    return True


def capture(world: World) -> Captured:
    """Capture the cursors. O(queues + claimed slots)."""
    level_offsets, queues = np.zeros(len(world.levels.offset), np.int64), int(world.queues.count)
    while True:
        into = Captured(np.zeros(queues, np.int64), level_offsets)
        if _capture(world, into):
            return into
        queues = into.queue_count


@kernel_ahead
def give_back(world: World, start: int, stop: int) -> int:
    """Give back the memory of slots in [start, stop), all of which were passed. Takes wheel.

    Else the columns of a store that is open for a week would take their whole length. A place is
    used again once the slot that is the columns' length later is claimed. The claim cursor moves
    under wheel, so whether that is so is asked, and the memory given back, in one hold of it.

    Return the slot to go on from next time. O(places): some 10 µs under wheel for each 512.
    """
    near, place_count = world.near, len(world.near.waiting)
    if place_count % PAGE_PLACES != 0:
        return stop
    slot = -(-max(start, stop - place_count) // PAGE_PLACES) * PAGE_PLACES
    while slot + PAGE_PLACES <= stop:
        lock_acquire(world.wheel_lock)
        if world.dequeue_get.claimed_slot <= slot + place_count:  # else the place may be in use
            give_back_page(near, slot_place(near, slot))
        lock_release(world.wheel_lock)
        slot += PAGE_PLACES
    return max(start, slot)


# --- checkpoints


class Flusher:
    """Makes an engine's bytes durable.

    Ground rules: Only the thread that leads the group commit moves `durable_end`, which only grows.
    `flush` and `wait_durable` may be called by any thread; who makes an fsync leads, so fsyncs
    never overlap. Only the flush thread writes `waiting_for_space`; `error` is final.
    """

    def __init__(self, engine: Engine) -> None:
        """Take the engine's present state for durable: recovery has flushed it."""
        self.engine = engine
        self.commit = GroupCommit(engine.commitlog.end)
        self.last: TimerCheckpoint | None = None  # the last durable checkpoint of this life
        self.timerlog_from = engine.timerlog.start
        """Where the timer log may begin once a checkpoint says so: no unit before it is needed."""
        self.error: BaseException | None = None
        self.waiting_for_space: StoreFullError | None = None
        self.waiting_since_ms: int | None = None
        self.sync_count = 0
        self.checkpoint_count = 0
        self._kept_slot = 0  # memory of slots before it was given back
        self._flushed_s = time.monotonic()
        self._flushed_timerlog = engine.timerlog.end
        self._flushed_index = engine.queues.table.next_index.copy()
        self._level_file = LevelOffsetFile(engine.path / "config" / "delayOffset.json")

    # --- group commit

    @property
    def durable_end(self) -> int:
        """Bytes of the commit log before it are durable."""
        return self.commit.durable_end

    def wait_durable(self, offset: int) -> None:
        """Return once the commit log is durable up to `offset`; one fsync serves all who wait.

        A thread that finds that nobody makes the fsync makes it, for everything that is in the log
        when it begins; see `GroupCommit`. A signal's handler that comes here in the midst of this
        thread's fsync makes another one. Raises FlushFailedError.
        """
        note_blocking()
        while (outcome := self.commit.wait(offset)) != IS_DURABLE:
            if outcome == MAY_LEAD:
                with self.commit.leading.guard() as leads:
                    if leads and self.durable_end < offset:
                        self._sync_log()
            elif outcome == LEADS:
                self._sync_log()
            else:
                self._check()

    def sync_log(self) -> None:
        """Make the commit log durable up to its present end."""
        self.wait_durable(self.engine.commitlog.end)

    def _sync_log(self) -> None:
        """Make the commit log durable, and say so; for the thread that leads."""
        self._check()
        self.commit.gather()
        try:
            end = self.engine.commitlog.end
            self.engine.commitlog.flush(self.durable_end, end)
        except FlushFailedError as e:
            self.fail(e)
            raise
        except StoreFullError as e:  # no descriptor is left, say: no page was dropped
            raise FlushFailedError(
                f"{e} What was put is in the log, but is not durable yet."
            ) from e
        self.sync_count += 1
        self.commit.advance(end)

    def fail(self, error: BaseException) -> None:
        """Remember a failed fsync; it is final, because the kernel may have dropped the pages."""
        if self.error is None:
            self.error = error
            self.commit.fail()
            self.engine.stop(error)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    # --- checkpoint

    def check_outside(self) -> None:
        """Raise if this thread is in the midst of an fsync: a checkpoint would wait for ever."""
        if self.commit.leads:
            raise TimerStoreError(
                "flush() was called inside another call of the same thread, for example in a "
                "signal handler. Raise an exception in the signal handler instead, and call "
                "flush() where you catch it."
            )

    def flush(self, *, clean: bool = False) -> None:
        """Write a checkpoint; everything put before the call is durable on return.

        `clean`: of a store that is being closed; it says whether it is clean, see `_has_wheel`.
        """
        self.check_outside()
        note_blocking()
        with self.commit.alone.guard():
            self._check()
            engine, world = self.engine, self.engine.world
            engine.keys.drop_settled()
            clean = clean and self._has_wheel()
            captured = capture(world)
            hops_from, claimed_slot = engine.keep_hops(
                captured.read_slot, captured.hops_from, captured.claimed_slot
            )
            checkpoint = TimerCheckpoint(
                read_ms=captured.read_slot * engine.precision_ms,
                timerlog_flushed=captured.timerlog_end,
                queue_index=captured.linked,
                scan_from=engine.scan_from(
                    captured.read_slot,
                    captured.floor,
                    captured.level_offsets,
                    captured.scan_from,
                ),
                floor=captured.floor,
                timerlog_from=self.timerlog_from,
                commitlog_flushed=captured.commitlog_end,
                hops_from=hops_from,
                claimed_slot=claimed_slot,
                frontier_ms=captured.frontier_ms,
                cancelled_count=captured.cancelled_count,
                level_offsets=captured.level_offsets.tolist(),
                store_tag=engine.store_tag,
                identity=engine.identity,
                clean=clean,
            )
            try:
                self._write(checkpoint, captured)
            except FlushFailedError as e:
                self.fail(e)
                raise
            if engine.keeps_mark and not engine.is_unsettled(
                captured.read_slot, captured.floor, captured.level_offsets
            ):
                engine.keeps_mark = False
                remove_mark(engine.disk, engine.path)
                engine.wanted.write()
            kept_slot = self._kept_slot or captured.read_slot
            self._kept_slot = int(give_back(world, kept_slot, captured.read_slot))
            engine.disk.keep_spare()
            self.checkpoint_count += 1
            self._flushed_s = time.monotonic()
            self.last = checkpoint

    def _write(self, checkpoint: TimerCheckpoint, captured: Captured) -> None:
        engine, config = self.engine, self.engine.path / "config"
        next_index = captured.next_index
        engine.commitlog.flush(self.durable_end, checkpoint.commitlog_flushed)
        self.commit.advance(checkpoint.commitlog_flushed, at_once=True)
        if checkpoint.clean:
            engine.commitlog.clear_behind()
        before = self._flushed_index[: len(next_index)]
        for row in np.flatnonzero(next_index != before).tolist():
            file = engine.queues.files[row]
            file.flush(int(before[row]) * fmt.ENTRY_BYTES, int(next_index[row]) * fmt.ENTRY_BYTES)
            self._flushed_index[row] = next_index[row]
        if checkpoint.clean:
            engine.queues.drop_behind()
        engine.timerlog.flush(self._flushed_timerlog, checkpoint.timerlog_flushed)
        self._flushed_timerlog = checkpoint.timerlog_flushed
        engine.sequence += 1
        checkpoint.sequence = checkpoint.state_counter = engine.sequence
        lock = engine.world.append_lock
        with engine.commitlog.reading() as commitlog:
            ends, flushed_log = self._flushed_index, checkpoint.commitlog_flushed
            engine.counters.write(commitlog, lock, ends, flushed_log, durably=checkpoint.clean)
        checkpoint.state_timestamp = engine.queues.table.stored_ms
        if checkpoint.clean:
            self._write_of_close(config, checkpoint)
        self._level_file.write(engine.disk, checkpoint)
        write_checkpoint(engine.disk, config / "timercheck", checkpoint)

    def _has_wheel(self) -> bool:
        """Write the wheel, at a close; False if there is no room: the next opening does without."""
        try:
            self.engine.wheel.write()
        except StoreFullError as e:
            log.warning("%s: %s The next opening reads all units.", self.engine.path, e)
            return False
        return True

    def _write_of_close(self, config: Path, checkpoint: TimerCheckpoint) -> None:
        """Write what a clean close leaves behind besides the cursors."""
        engine = self.engine
        stored_ms = engine.queues.table.stored_ms
        timers, levels = engine.queues.table.pending.reshape(2, -1)
        version = {"counter": checkpoint.sequence, "stateVersion": 0, "timestamp": stored_ms}
        metrics = {
            "dataVersion": version,
            "timingCount": self._counts(timers, stored_ms),
            "levelCount": self._counts(levels, stored_ms),  # a broker leaves it alone
            "unattributedCount": engine.unattributed_count,
            "damagedCount": len(engine.uncounted),
            "damage": engine.damage.lasting(),
        }
        write_json(engine.disk, config / "timermetrics", sealed(metrics))
        stamp = Stamp(engine.store_tag, checkpoint.sequence, engine.commitlog.end)
        engine.wheel.leave(stamp)
        write_ahead(engine, stamp)
        write_cancelled(engine, stamp, checkpoint)
        engine.keys.write(stamp)
        engine.first_pages.write(engine.wheel.array, engine.read_slot, engine.precision_ms, stamp)
        write_store_checkpoint(
            engine.disk, engine.path / "checkpoint", stored_ms, engine.commitlog.end
        )

    def _counts(self, pending: Words, stored_ms: int) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for row, topic in enumerate(self.engine.queues.topics):
            if pending[row]:
                entry = counts.setdefault(text(topic), {"count": 0, "timeStamp": stored_ms})
                entry["count"] += int(pending[row])
        return counts

    def wait_for_space(self, full: StoreFullError | None) -> None:
        """Say whether anything waits for room; a full disk is waited out, never an end."""
        if (full is None) != (self.waiting_for_space is None):
            fields = {"store": str(self.engine.path), "waiting_for_space": full is not None}
            text = full or "there is room again"
            log.warning("%s: %s", self.engine.path, text, extra=fields)
            self.waiting_since_ms = None if full is None else time.time_ns() // 1_000_000
        self.waiting_for_space = full

    @property
    def has_changed(self) -> bool:
        """Whether anything is worth a checkpoint."""
        engine, last = self.engine, self.last
        if last is None:
            return True
        if engine.levels.offset.tolist() != last.level_offsets:
            return True
        if engine.world.cleaning.floor != last.floor:  # what lies below it can go
            return True
        if self.timerlog_from != last.timerlog_from:
            return True
        if (
            engine.commitlog.end != self.durable_end
            or engine.timerlog.end != self._flushed_timerlog
        ):
            return True
        return self._read_slot_matters(last)

    def _read_slot_matters(self, last: TimerCheckpoint) -> bool:
        """Tell whether the read cursor is worth a checkpoint of its own.

        What was stored and fired can go once the read cursor is past it. Later it only
        says how many empty slots recovery need not look at, and an idle store should not touch the
        disk.
        """
        if self.engine.read_slot == last.read_ms // self.engine.precision_ms:
            return False
        if last.read_ms <= self.engine.queues.table.stored_ms:
            return True
        return time.monotonic() - self._flushed_s >= _READ_SLOT_ALONE_S


def remove_abort(disk: Disk, path: Path) -> None:
    """Say that a store was closed cleanly."""
    disk.unlink(path / "abort")


def write_abort(disk: Disk, path: Path) -> None:
    """Say that a store is open, with this process's id as RocketMQ does; durable on return.

    If the disk is full, only the name is there, which takes no block.
    """
    try:
        disk.replace(path / "abort", str(os.getpid()).encode())
    except StoreFullError:
        os.close(disk.open_file(path / "abort", create=True))
        disk.sync_folder(path)
