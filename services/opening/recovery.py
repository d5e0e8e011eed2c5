"""Recovery: from what is on disk to a store that can be served, as a table of steps.

`docs/recovery.md` says what each case on disk leads to. Nothing is fired before all steps are done,
and each step can be repeated: a process that is killed in between begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import ALONE, Words, acting_as
from timerstore.services.durable.flush import take_ahead, write_abort
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import QUEUES, TIMERS, Place, open_rebuilding
from timerstore.services.looking.read_units import all_units
from timerstore.services.opening.recover_damage import check_files, complete_reschedule
from timerstore.services.opening.recover_log import LogScan, ScannedLog
from timerstore.services.opening.recover_pending import (
    Recount,
    are_sure,
    count_units,
    count_waiting,
    first_kept_index,
    name_stored,
    pass_delivered,
    restore_offsets,
    stored_counts,
    take_stored,
)
from timerstore.services.opening.recover_settled import (
    assume_sources,
    find_cancelled,
    learn_hops,
    learn_sources,
    take_cancelled,
)
from timerstore.services.opening.recovery_findings import OpeningProgress, RecoveryFindings
from timerstore.services.running.runner import provide
from timerstore.services.running.steps import run
from timerstore.services.world.clock import Clock
from timerstore.services.world.state import ENQUEUE_GET, ENQUEUE_PUT
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import decode_message
from timerstore.timelog.bytes.unit import Units
from timerstore.timelog.files.checkpoint import Stamp, TimerCheckpoint, read_checkpoint, standing
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.timerlog import WALK_FULL, scan_units
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX
from timerstore.values.config import Config
from timerstore.wheel.cancelled import map_put_all, new_table
from timerstore.wheel.timerwheel import CHECKED, CHECKING, WRONG_PAGE_REASON

CHUNK_ROWS: Final = 65_536
LEFT_BEHIND_REASON: Final = "a broker has linked a timer to a slot that it had passed"


class Recovery:
    """What the steps of one opening know."""

    recount: Recount  # of the counters of topics; made with the scan

    def __init__(self, engine: Engine, now_ms: int) -> None:
        """Look at what is there; nothing changes yet."""
        self.engine, self.now_ms = engine, now_ms
        self.findings = RecoveryFindings(restored_sizes=engine.restored)
        checkpoint = read_checkpoint(engine.path / "config" / "timercheck", engine.disk.read)
        self.crashed = engine.disk.read(engine.path / "abort") is not None
        self.checkpoint: TimerCheckpoint | None = standing(checkpoint, self.crashed)
        self.is_live = self.crashed and not engine.disk.writes  # another process writes to it
        self.is_new = engine.is_new or (self.checkpoint is None and not engine.commitlog.numbers)
        self.log = ScannedLog()
        self.queue_index = 0  # the queue cursor
        self.linked_before = 0  # the timer log's end before anything is linked
        self.counts: dict[str, Any] | None = None  # what a clean close stored, if it holds

    @property
    def stamp(self) -> Stamp | None:
        """That of derived files which hold; None if none does."""
        if not self.findings.clean or self.checkpoint is None:
            return None
        return Stamp(self.engine.store_tag, self.checkpoint.sequence, self.log.end)

    @property
    def is_empty(self) -> bool:
        """Whether the timer index is made anew from the commit log."""
        return TIMERS in self.findings.rebuilt

    @property
    def is_brokers(self) -> bool:
        """Whether the timer index is what a broker left."""
        return self.findings.by_broker and not self.is_empty


def recover(engine: Engine, now_ms: int) -> RecoveryFindings:
    """Bring the engine into a state from which all services can run.

    O(1) in what is pending after a clean close, else O(commit log behind the copies cursor +
    units). Raises CorruptStoreError if the commit log itself has lost files.
    """
    this = Recovery(engine, now_ms)
    with acting_as(ALONE):
        for step in FIRST_OPENING if this.is_new else OPENING:
            if step.when(this):
                step.run(this)
    log = engine.commitlog
    log.reusable_from = 0
    if this.findings.by_broker or "checkpoint" in this.findings.rebuilt:
        log.reusable_from = log.end // log.segment_bytes + 1  # its blanks do not say their place
    return this.findings


# --- what is there


def _say_that_it_is_open(this: Recovery) -> None:
    """Write `abort` before anything changes: else what a clean close left would still hold."""
    write_abort(this.engine.disk, this.engine.path)


def _begin_the_store(this: Recovery) -> None:
    """Make what an empty store has; its making may have been killed before."""
    engine = this.engine
    engine.counters.forget()
    engine.set_cursors(this.now_ms // engine.precision_ms, 0, this.now_ms)
    engine.prepare_commitlog()
    engine.queues.prepare(0)
    engine.timerlog.prepare()


def _find_what_is_rebuilt(this: Recovery) -> None:
    """Note what is not there, or not whole, and is made anew from the commit log."""
    engine, checkpoint, rebuilt = this.engine, this.checkpoint, this.findings.rebuilt
    if checkpoint is None or not engine.had_timerlog:
        rebuilt.append(TIMERS)
        if checkpoint is None:
            rebuilt.append("checkpoint")
    elif checkpoint.by_broker and _is_too_old(engine, checkpoint.read_ms):
        rebuilt.append(TIMERS)
    if not engine.had_queues:
        rebuilt.append(QUEUES)
    check_files(engine, checkpoint, rebuilt, is_live=this.is_live)


def _is_too_old(engine: Engine, read_ms: int) -> bool:
    """Tell whether a broker's read cursor, which has no checksum, is none that a broker can have.

    It never was further behind the clock than the wheel is long, at which the log's first message
    was stored.
    """
    log = engine.commitlog
    if not log.numbers:
        return False
    try:
        stored_ms = decode_message(log.view(log.start), log.start).stored_ms
    except CorruptStoreError:
        return False
    return read_ms < stored_ms - engine.config.wheel_slot_count * engine.precision_ms


def _find_who_closed(this: Recovery) -> None:
    """Tell a clean close from a kill, and from a broker's."""
    engine, checkpoint, findings = this.engine, this.checkpoint, this.findings
    findings.by_broker = checkpoint is not None and checkpoint.by_broker
    findings.clean = checkpoint is not None and checkpoint.clean and not this.crashed
    findings.clean = findings.clean and not findings.rebuilt
    engine.count_lost = False
    engine.sequence = 0 if checkpoint is None else checkpoint.sequence


def _ask_for_first_pages(this: Recovery) -> None:
    """Have the pages read that are needed first, while all else goes on."""
    engine, checkpoint = this.engine, this.checkpoint
    assert checkpoint is not None
    if engine.disk.writes and not engine.clock.manual:
        stamp = Stamp(engine.store_tag, checkpoint.sequence, checkpoint.commitlog_flushed)
        now_slot = this.now_ms // engine.precision_ms
        engine.first_pages.ask(engine.world.prefetch, stamp, now_slot)


# --- the commit log, then the timer index


def _scan_the_log(this: Recovery) -> None:
    """Find the log's end and its copies; bring queues and topics' counters in line."""
    scan = LogScan(this.engine, this.checkpoint, this.findings, crashed=this.crashed)
    this.findings.restarted_counters = this.engine.counters.damaged_count
    this.recount = scan.recount
    this.log = scan.run(is_live=this.is_live)


def _empty_the_index(this: Recovery) -> None:
    """Forget all units and slots; the queue cursor is at the first message from the floor on."""
    engine, timerlog = this.engine, this.engine.timerlog
    timerlog.zero_from(0)
    timerlog.end = timerlog.start
    engine.wheel.clear()
    timerlog.prepare()
    kept = engine.queues.first_kept(0, max(this.log.floor, engine.commitlog.start))
    this.queue_index = max(this.log.first_timer_index, kept)


def _cut_the_index(this: Recovery) -> None:
    """Take units back to the checkpoint, have slots lead to them; the queue cursor is its own.

    Units behind it are not replayed: their slots were chosen by a read cursor that is gone. After
    a clean close slots hold unless a page is damaged, else it takes O(units).
    """
    engine, checkpoint = this.engine, this.checkpoint
    assert checkpoint is not None
    timerlog, end, damaged = engine.timerlog, checkpoint.timerlog_flushed, None
    timerlog.end = end
    if this.stamp is None:
        timerlog.zero_from(end)
    else:
        damaged = engine.wheel.find_damaged(this.stamp)
    if damaged is not None and damaged >= 0:
        engine.damage.note("timerwheel", damaged, WRONG_PAGE_REASON)
    if damaged != -1:
        engine.wheel.clear()
        from_slot = checkpoint.read_ms // engine.precision_ms
        for units in all_units(engine, timerlog.start, end, from_slot):
            engine.wheel.revise(units, engine.precision_ms)
    top = checkpoint.read_ms // engine.precision_ms + len(engine.wheel.slots)
    engine.wheel.off_grid_until = min(engine.wheel.off_grid_until, top)
    timerlog.prepare()
    this.queue_index = min(checkpoint.queue_index, engine.queues.next_index(0))


def _take_a_brokers_index(this: Recovery) -> None:
    """Take a broker's units as they are, up to the first bad one; the queue cursor is behind it.

    Slots are made anew: what a broker that was killed has left in them may be anything. Raises
    CorruptStoreError if the broker has left a timer behind its read cursor.
    """
    engine, checkpoint, log = this.engine, this.checkpoint, this.log
    assert checkpoint is not None
    copied = np.unique(np.concatenate([*log.origins, log.broker_origins]))
    timerlog = engine.timerlog
    for number in timerlog.numbers:
        timerlog.ensure(number)
    units = Units.room(CHUNK_ROWS)
    where = np.array([timerlog.start, 0], np.int64)
    linked, is_more = -1, True
    engine.wheel.clear()
    while is_more:
        with timerlog.reading() as table:
            count = scan_units(
                *(table, timerlog.files_end, -1, engine.precision_ms, engine.hop_ms, units, where)
            )
        _find_left_behind(engine, units[:count], checkpoint.read_ms, copied)
        whole = units.message[:count] + units.size[:count] <= log.end
        kept = count if whole.all() else int(np.argmin(whole))
        if kept:
            linked = max(linked, _revise_slots(engine, units[:kept], checkpoint))
        if kept < count:
            where[0] = units.offset[kept]
        is_more = kept == count and bool(where[1] == WALK_FULL)
    timerlog.end = int(where[0])
    timerlog.zero_from(timerlog.end)
    timerlog.prepare()
    queue_index = checkpoint.queue_index if linked < 0 else linked + 1
    this.queue_index = min(queue_index, engine.queues.next_index(0))


def _find_left_behind(engine: Engine, units: Units, read_ms: int, copied: Words) -> None:
    """Raise CorruptStoreError if a timer came to a slot that the broker had passed by then.

    `copied`: the messages that have a copy, sorted.
    """
    timerlog = engine.timerlog
    kept = (units.ms < read_ms) & (units.message >= engine.commitlog.start)
    kept &= (units.magic & fmt.UNIT_DELETE == 0) & ~np.isin(units.message, copied)
    for offset in units.offset[kept].tolist():
        if timerlog.view(offset)[fmt.UNIT_DELTA_AT] & 0x80:  # it is negative: written that late
            raise CorruptStoreError("timerlog", offset, LEFT_BEHIND_REASON)


def _revise_slots(engine: Engine, units: Units, checkpoint: TimerCheckpoint) -> int:
    """Have slots from the read cursor on lead to these; return the last queue index, or −1."""
    engine.wheel.revise(units[units.ms >= checkpoint.read_ms], engine.precision_ms)
    there = units[(units.message >= engine.commitlog.start) & (units.magic & fmt.UNIT_HOP == 0)]
    if not len(there):
        return -1
    message = int(there.message.max())  # a broker that was killed goes back, and links again
    return int.from_bytes(engine.commitlog.read(message + fmt.MESSAGE_QUEUE_INDEX_AT, 8), "big")


def _set_the_cursors(this: Recovery) -> None:
    """Begin at the checkpoint's cursors, frontier and floor; find each delay level's offset."""
    engine, checkpoint, log = this.engine, this.checkpoint, this.log
    read_slot, frontier_ms = this.now_ms // engine.precision_ms, log.due_max_ms
    if checkpoint is not None:
        now_slot, read_slot = read_slot, checkpoint.read_ms // engine.precision_ms
        if checkpoint.by_broker and TIMERS in this.findings.rebuilt:
            # It has no checksum, and no slot holds a unit: it is near the clock.
            oldest_slot = now_slot - engine.config.wheel_slot_count
            read_slot = min(max(read_slot, oldest_slot), now_slot)
        frontier_ms = max(frontier_ms, checkpoint.frontier_ms)
    this.queue_index, this.findings.removed_count = first_kept_index(engine, this.queue_index)
    engine.set_cursors(read_slot, this.queue_index, frontier_ms, log.floor)
    engine.adopt_levels()
    restore_offsets(engine, checkpoint, this.findings)


def _learn_what_hopped(this: Recovery) -> None:
    assert this.checkpoint is not None
    learn_hops(this.engine, this.checkpoint)


def _learn_what_is_done(this: Recovery) -> None:
    """Make the set of sources that have their copy, so that they are skipped."""
    engine, log = this.engine, this.log
    ours = np.concatenate([np.zeros(0, np.int64), *log.origins])
    pass_delivered(engine, ours, log.broker_origins)
    origins = np.concatenate([ours, log.broker_origins])
    if not len(origins):
        return
    done = new_table(len(origins))
    map_put_all(done, origins, np.concatenate(log.copies))
    this.findings.copies_count = len(origins)
    engine.use_done(done, len(origins))


def _link_from_queue_cursor(this: Recovery) -> None:
    """Play enqueue-get and enqueue-put until each timer message has its unit."""
    engine = this.engine
    engine.prepare_commitlog()
    engine.queues.prepare(0)
    this.linked_before = engine.timerlog.end
    engine.world.settings.recovering = CHECKED if this.log.is_checked else CHECKING
    first, progress = this.queue_index, OpeningProgress(engine.path, "timers get their units")
    while True:
        linked = engine.world.enqueue_put.linked_index - first
        progress.tell(linked, engine.queues.next_index(0) - first)
        run(engine.world, ENQUEUE_GET, ENQUEUE_PUT, this.now_ms, this.now_ms)
        service = engine.needing()
        if service < 0:
            break
        provide(engine, service)
    engine.world.settings.recovering = 0
    this.findings.relinked_count = engine.world.enqueue_put.linked_count


def _begin_to_write(this: Recovery) -> None:
    """Have the disk write what was made while it is counted."""
    for file, start, stop in _kept_or_made(this):
        file.begin_flush(start, stop)


# --- what is cancelled, what is pending


def _look_for_counts(this: Recovery) -> None:
    """Take what a clean close stored, if nothing has happened since; name the damage it knew."""
    engine = this.engine
    if this.stamp is None:
        return
    is_sound = not engine.damage.count
    counts = stored_counts(engine)
    if counts is None:
        return
    is_sound = is_sound and this.linked_before == engine.timerlog.end and are_sure(counts)
    if is_sound and take_ahead(engine, this.stamp):
        this.counts = counts
    name_stored(engine, counts)


def _take_the_counts(this: Recovery) -> None:
    engine, log, checkpoint, counts = this.engine, this.log, this.checkpoint, this.counts
    assert checkpoint is not None and counts is not None and this.stamp is not None
    take_stored(engine, counts["timingCount"])
    if log.copies:
        waiting = np.concatenate(log.waiting, axis=1)
        assume_sources(engine, np.concatenate(log.origins), waiting, checkpoint.claimed_slot)
    if checkpoint.cancelled_count:
        take_cancelled(engine, this.stamp, log.level_deletes)
    levels = counts.get("levelCount")
    if isinstance(levels, dict):
        take_stored(engine, levels, QUEUE_COUNT_MAX)
    else:
        count_waiting(engine)


def _count_again(this: Recovery) -> None:
    find_cancelled(this.engine, this.log.level_deletes)
    this.findings.removed_count += count_units(this.engine, verify=not this.log.is_checked)
    learn_sources(this.engine)
    count_waiting(this.engine)


def _settle_the_counts(this: Recovery) -> None:
    """Now that what a broker removed is counted, the floor may pass it."""
    engine, log = this.engine, this.log
    if log.copies:
        engine.recovered_copy = min(int(part.min()) for part in log.copies)
    engine.keeps_mark = len(log.broker_origins) > 0 and engine.is_unsettled(
        engine.read_slot, log.floor, engine.levels.offset
    )
    engine.world.cleaning.floor = max(log.floor, engine.commitlog.start)
    engine.world.cleaning.opened_at = log.end
    this.findings.cancelled_count = engine.cancelled.set.count
    this.recount.settle(log.end, by_broker=this.findings.by_broker)


def _complete_a_reschedule(this: Recovery) -> None:
    last = this.log.last
    assert last is not None
    this.findings.repaired_reschedule = complete_reschedule(this.engine, last, this.now_ms)


def _take_the_key_index(this: Recovery) -> None:
    this.engine.keys.open(this.engine.world, this.stamp)


def _begin_to_count(this: Recovery) -> None:
    """From here on services change what was counted."""
    this.findings.pending_count = this.engine.pending_count()
    this.engine.count_lost = True


def _make_durable(this: Recovery) -> None:
    """Make durable what recovery kept or made: the next checkpoint counts on it.

    After a kill, ours or a broker's, what lies behind the last flush is only in the page cache.
    """
    for file, start, stop in _kept_or_made(this):
        file.flush(start, stop)


def _kept_or_made(this: Recovery) -> Iterator[tuple[SegmentedFile, int, int]]:
    """Yield each log with the range of it that recovery kept or made."""
    engine, log = this.engine, this.log
    yield engine.commitlog, log.durable, engine.commitlog.end
    for row, file in enumerate(engine.queues.files):
        first, end = log.queue_ends.get(row, 0), engine.queues.next_index(row)
        yield file, first * fmt.ENTRY_BYTES, end * fmt.ENTRY_BYTES
    units = engine.timerlog
    yield units, min(this.linked_before, units.flushed_end), units.end


# --- the tables


class Step(NamedTuple):
    """What is done, and when."""

    run: Callable[[Recovery], None]
    when: Callable[[Recovery], bool] = lambda this: True


FIRST_OPENING: Final = (
    Step(_say_that_it_is_open),
    Step(_begin_the_store),
    Step(_take_the_key_index),
)
OPENING: Final = (
    Step(_find_what_is_rebuilt),
    Step(_say_that_it_is_open),
    Step(_find_who_closed),
    Step(_ask_for_first_pages, lambda this: this.findings.clean),
    Step(_scan_the_log),
    Step(_take_a_brokers_index, lambda this: this.is_brokers),
    Step(_empty_the_index, lambda this: this.is_empty),
    Step(_cut_the_index, lambda this: not this.is_brokers and not this.is_empty),
    Step(_set_the_cursors),
    Step(_learn_what_hopped, lambda this: not this.is_empty),
    Step(_learn_what_is_done),
    Step(_link_from_queue_cursor),
    Step(_begin_to_write, lambda this: this.engine.disk.writes),
    Step(_look_for_counts),
    Step(_take_the_counts, lambda this: this.counts is not None),
    Step(_count_again, lambda this: this.counts is None),
    Step(_settle_the_counts),
    Step(_complete_a_reschedule, lambda this: this.log.last is not None),
    Step(_take_the_key_index),
    Step(_begin_to_count),
    Step(_make_durable),
)
"""The steps in their order; docs/recovery.md says what each relies on."""


def open_engine(
    path: Path, config: Config, clock: Clock, disk: Disk
) -> tuple[Engine, RecoveryFindings]:
    """Return an engine whose services can run, and what recovery found."""

    def attempt(
        rebuild: frozenset[str], places: tuple[Place, ...]
    ) -> tuple[Engine, RecoveryFindings]:
        engine = Engine(path, config, clock, disk, rebuild)
        try:
            for place in places:
                engine.damage.note(place.file, place.offset, place.reason)
            return engine, recover(engine, clock.now_ms)
        except BaseException:
            engine.close_files()
            raise

    return open_rebuilding(path, disk, attempt)
