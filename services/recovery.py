"""Recovery: from what is on disk to a store that can be served.

`docs/recovery.md` is its decision table. In order: find the log's end and cut what is torn, make
the consume queues agree, cut the timer index back to the checkpoint (or rebuild it, or replay a
broker's units), learn which sources have their copy, link what is not linked, find the cancelled
timers, count, and repair a torn reschedule. Nothing is fired before all of that is done.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.ahead_file import take_ahead
from timerstore.services.deletes import append_deletes
from timerstore.services.engine import Engine
from timerstore.services.findings import Findings
from timerstore.services.flush import write_abort
from timerstore.services.level_due_times import LevelDueTimes
from timerstore.services.pass_lost import pass_lost
from timerstore.services.pending_rows import reading_of
from timerstore.services.provide import provide
from timerstore.services.rebuild import QUEUES, TIMERS
from timerstore.services.recover_copies import assume_sources, drop_before, learn_sources
from timerstore.services.recover_counts import Recount
from timerstore.services.recover_damage import NO_MESSAGE, DamagedLog
from timerstore.services.recover_deletes import (
    find_cancelled,
    find_timer,
    level_deletes,
    live_units,
)
from timerstore.services.recover_files import check_files
from timerstore.services.recover_levels import (
    count_waiting,
    pass_delivered,
    restore_offsets,
    take_level_counts,
)
from timerstore.services.recover_queue_files import check_queue_files
from timerstore.services.recover_queues import check_queue_end, find_queue_end, index_part
from timerstore.services.recover_removed import count_removed, first_kept_index
from timerstore.services.recover_torn import torn_bytes, whole_count
from timerstore.services.state import ENQUEUE_GET, ENQUEUE_PUT, LOST_COUNT_MAX
from timerstore.services.steps import run
from timerstore.services.world import World, note_lost
from timerstore.timelog import scan
from timerstore.timelog.acting import ALONE, acting_as
from timerstore.timelog.append import new_stage
from timerstore.timelog.audit import find_rows
from timerstore.timelog.checkpoint import Checkpoint, read_checkpoint, sealed_from
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.copies import BrokerCopies
from timerstore.timelog.decode import decode_message
from timerstore.timelog.filler import SALVAGED_TOPIC
from timerstore.timelog.format import (
    ENTRY_BYTES,
    LEVEL_TOPIC,
    MESSAGE_BORN_AT,
    MESSAGE_QUEUE_INDEX_AT,
    UNIT_DELETE,
)
from timerstore.timelog.intrinsics import get_i64
from timerstore.timelog.jsonfile import check_seal, read_json
from timerstore.timelog.kernel import kernel_later
from timerstore.timelog.message import (
    BODY_BYTES,
    FOUND_WORDS,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    REASONS,
    exact_due_ms,
)
from timerstore.timelog.record import Rows, Words
from timerstore.timelog.segmenttable import SEGMENT_BYTES, segment_at
from timerstore.timelog.tally import count_pending
from timerstore.timelog.timeridentity import identity_of
from timerstore.wheel import chain
from timerstore.wheel.pending import CANCELLED, PENDING, Reading, judge_message
from timerstore.wheel.sets import (
    map_get,
    map_put_all,
    new_table,
)

CHUNK_ROWS: Final = 65_536


@dataclass
class _Log:
    """What the scan of the commit log left behind."""

    durable: int = 0  # what was flushed before
    floor: int = 0  # F
    end: int = 0
    queue_ends: dict[int, int] = field(default_factory=dict)  # by row: what was flushed before
    damaged: DamagedLog | None = None
    last: Words | None = None  # the log's last message, as a scanned row
    first_timer_index: int = 0
    origins: list[Words] = field(default_factory=list)
    broker_origins: Words = field(default_factory=lambda: np.zeros(0, np.int64))
    copies: list[Words] = field(default_factory=list)
    has_hops: bool = False  # some of the copies wait in the timer topic again
    level_deletes: list[Words] = field(default_factory=list)
    due_max_ms: int = 0


def recover(engine: Engine, now_ms: int) -> Findings:
    """Bring the engine into a state from which all services can run."""
    with acting_as(ALONE):
        findings = _recover(engine, now_ms)
    log = engine.commitlog
    log.reusable_from = 0
    if findings.by_broker or "checkpoint" in findings.rebuilt:  # its blanks do not say their place
        log.reusable_from = log.end // log.segment_bytes + 1
    return findings


def _recover(engine: Engine, now_ms: int) -> Findings:
    findings = Findings(restored_sizes=engine.restored)
    checkpoint = read_checkpoint(engine.path / "config" / "timercheck", engine.disk.read)
    crashed = engine.disk.read(engine.path / "abort") is not None
    is_live = crashed and not engine.disk.writes
    _find_rebuilt(engine, checkpoint, findings, is_live=is_live)
    # Before anything changes: were we killed between writing the wheel and the next checkpoint, the
    # one of a clean close would still hold, with slots that point past its end of the timer log.
    write_abort(engine.disk, engine.path)
    if engine.is_new or (checkpoint is None and not engine.commitlog.numbers):
        engine.counters.forget()
        engine.wheel.check_pages(is_unknown=True)  # the making of the store may have been killed
        engine.set_cursors(now_ms // engine.precision_ms, 0, now_ms)
        engine.prepare_commitlog()
        engine.queues.prepare(0)
        engine.prepare_timerlog()
        return findings
    findings.by_broker = checkpoint is not None and checkpoint.by_broker
    findings.clean = checkpoint is not None and checkpoint.clean and not crashed
    findings.clean = findings.clean and not findings.rebuilt
    engine.count_lost = False
    # Of a store that another process is writing to, what is read is of no one moment.
    engine.wheel.check_pages(is_unknown=findings.by_broker or is_live)

    recount = Recount(engine)
    findings.restarted_counters = engine.counters.damaged_count
    log = _scan_log(engine, checkpoint, findings, recount, crashed=crashed, is_live=is_live)
    if findings.by_broker and TIMERS not in findings.rebuilt and checkpoint is not None:
        queue_index = _replay_broker_units(engine, checkpoint, log, findings)
    elif TIMERS in findings.rebuilt:
        queue_index = _empty_timer_index(engine, log)
    else:
        assert checkpoint is not None
        queue_index = _cut_timer_index(engine, checkpoint, findings)

    read_slot = now_ms // engine.precision_ms
    frontier_ms = log.due_max_ms
    if checkpoint is not None:
        read_slot = checkpoint.read_ms // engine.precision_ms
        frontier_ms = max(frontier_ms, checkpoint.frontier_ms)
    queue_index, findings.removed_count = first_kept_index(engine, queue_index)
    engine.set_cursors(read_slot, queue_index, frontier_ms, log.floor)
    engine.adopt_levels()
    restore_offsets(engine, checkpoint, findings)
    _learn_done(engine, log, findings)
    engine.prepare_commitlog()
    engine.queues.prepare(0)

    linked_before = engine.timerlog.end
    engine.world.settings.recovering = 1
    while True:
        run(engine.world, ENQUEUE_GET, ENQUEUE_PUT, now_ms, now_ms)
        service = engine.needing()
        if service < 0:
            break
        provide(engine, service)
    engine.world.settings.recovering = 0
    engine.mending, engine.mended_run = None, (-1, range(0), {})
    findings.relinked_count = engine.world.enqueue_put.linked_count

    sound = findings.clean and not engine.damage.count
    known = _known_counts(engine) if sound else None
    is_known = known is not None and linked_before == engine.timerlog.end
    if is_known and checkpoint and known and take_ahead(engine, log.end, known):
        _take_counts(engine, known["timingCount"])
        if log.has_hops:
            learn_sources(engine)
        elif log.copies:  # what was fired was claimed
            assume_sources(engine, np.concatenate(log.origins), checkpoint.claimed_slot)
        if checkpoint.cancelled_count:
            find_cancelled(engine, log.level_deletes)
        take_level_counts(engine, known)
    else:
        find_cancelled(engine, log.level_deletes)
        findings.removed_count += _count_pending(engine)
        learn_sources(engine)
        count_waiting(engine)
    if log.copies:
        engine.recovered_copy = min(int(part.min()) for part in log.copies)
    engine.keeps_mark = len(log.broker_origins) > 0 and engine.is_unsettled(
        read_slot, log.floor, engine.levels.offset
    )
    # Now that what a broker has removed is counted.
    engine.world.cleaning.floor = max(log.floor, engine.commitlog.start)
    findings.cancelled_count = engine.cancelled.set.count
    recount.settle(log.end, by_broker=findings.by_broker)
    _repair_reschedule(engine, log, now_ms, findings)
    findings.pending_count = engine.pending_count()
    engine.count_lost = True
    engine.put_aside(now_ms)
    _flush(engine, log, linked_before)
    return findings


def _find_rebuilt(
    engine: Engine, checkpoint: Checkpoint | None, findings: Findings, *, is_live: bool
) -> None:
    """Note what is not there, or not whole, and is made anew from the commit log."""
    if engine.is_new or (checkpoint is None and not engine.commitlog.numbers):
        return
    if checkpoint is None or not engine.had_timerlog or engine.wheel.is_new:
        findings.rebuilt.append(TIMERS)
        if checkpoint is None:
            findings.rebuilt.append("checkpoint")
    if not engine.had_queues:
        findings.rebuilt.append(QUEUES)
    check_files(engine, checkpoint, findings.rebuilt, is_live=is_live)


def _flush(engine: Engine, log: _Log, linked_before: int) -> None:
    """Make durable what recovery kept or made: the next checkpoint counts on it.

    After a kill, what lies behind the last flush is in the page cache alone.
    """
    engine.commitlog.flush(log.durable, engine.commitlog.end)
    for row, file in enumerate(engine.queues.files):
        first = log.queue_ends.get(row, 0)
        file.flush(first * ENTRY_BYTES, engine.queues.next_index(row) * ENTRY_BYTES)
    engine.timerlog.flush(linked_before, engine.timerlog.end)


# --- the commit log


def _map_commitlog(engine: Engine, start: int, stop: int) -> None:
    for number in engine.commitlog.numbers:
        offset = number * engine.commitlog.segment_bytes
        if offset + engine.commitlog.segment_bytes > start and offset < stop:
            engine.commitlog.ensure(number)


def _scan_log(
    engine: Engine,
    checkpoint: Checkpoint | None,
    findings: Findings,
    recount: Recount,
    *,
    crashed: bool,
    is_live: bool,
) -> _Log:
    """Find the log's end and the copies since L; bring the consume queues in line with it."""
    commitlog, log = engine.commitlog, _Log()
    durable = scan_from = index_from = commitlog.start
    sealed = sealed_from(checkpoint, crashed)
    ours = checkpoint is not None and not checkpoint.by_broker
    if ours and checkpoint is not None:
        durable = max(checkpoint.commitlog_flushed, commitlog.start)
        log.floor = checkpoint.floor
        if not findings.rebuilt:
            scan_from = min(durable, max(checkpoint.scan_from, commitlog.start))
        if QUEUES not in findings.rebuilt:
            index_from = durable
    checked, asked = index_from > commitlog.start and not is_live, list[int]()
    for row in range(len(engine.queues.files)):
        find_queue_end(engine, row, index_from)
        asked += [row] if checked and check_queue_end(engine, row, index_from) else []
        log.queue_ends[row] = engine.queues.next_index(row)
    if checked and checkpoint is not None:
        check_queue_files(engine, index_from, checkpoint.queue_index, asked)
    log.durable = durable
    damaged = log.damaged = DamagedLog(engine, durable if ours else None)
    rows = np.zeros((CHUNK_ROWS + 1, scan.ROW_COLUMNS), np.int64)
    found, where = np.zeros(FOUND_WORDS, np.int64), np.array([scan_from, 0], np.int64)
    first_timer_index, level_due_times = -1, LevelDueTimes(engine)
    broker: BrokerCopies | None = None if ours and not findings.rebuilt else BrokerCopies()

    def take(part: Words, queue_rows: Words) -> None:
        """Learn from messages what they say."""
        nonlocal first_timer_index
        if not len(part):
            return
        log.last = part[-1].copy()
        findings.scanned_count += len(part)
        level_rows = engine.queues.rows(LEVEL_TOPIC)
        timers = part[queue_rows == 0]
        if first_timer_index < 0 and len(timers):
            first_timer_index = int(timers[0, scan.ROW_QUEUE_INDEX])
        level_due_times.keep(part, queue_rows)
        recount.take(part, queue_rows, level_rows, _queue_rows)
        damaged.take_fillers(part[np.isin(queue_rows, engine.queues.rows(SALVAGED_TOPIC))])
        lost = damaged.lost_bytes, damaged.starts
        index_part(engine, part, queue_rows, index_from, *lost)
        copied = part[part[:, scan.ROW_ORIGIN] >= 0]
        log.origins.append(copied[:, scan.ROW_ORIGIN].copy())
        log.copies.append(copied[:, scan.ROW_OFFSET].copy())
        log.has_hops |= bool((queue_rows[part[:, scan.ROW_ORIGIN] >= 0] == 0).any())
        log.level_deletes.append(level_deletes(part))
        fired = part[(queue_rows != 0) & (part[:, scan.ROW_DUE_MS] >= 0)]
        if len(fired):
            log.due_max_ms = max(log.due_max_ms, int(fired[:, scan.ROW_DUE_MS].max()))
        if broker is not None:
            broker.take(part, queue_rows == 0, np.isin(queue_rows, level_rows))

    reached = 0
    while True:
        stop = max(reached, int(where[0])) + 2 * commitlog.segment_bytes
        _map_commitlog(engine, int(where[0]), stop)
        with commitlog.reading() as table:
            count = scan.scan_commitlog(
                table,
                int(where[0]),
                commitlog.files_end,
                sealed,
                True,
                engine.store_tag,
                engine.precision_ms,
                engine.level_ms,
                rows[:CHUNK_ROWS],
                found,
                where,
            )
        part = rows[:count]
        queue_rows = _queue_rows(engine, part)
        whole = whole_count(engine, part, queue_rows)
        take(part[:whole], queue_rows[:whole])
        again = int(part[whole, scan.ROW_OFFSET]) if whole < count else NO_MESSAGE
        stopped, reached = int(where[1]), int(where[0])
        goes_on = stopped == scan.STOP_COUNT and count == CHUNK_ROWS
        if stopped == scan.STOP_UNMAPPED and reached < commitlog.files_end:
            goes_on = reached // commitlog.segment_bytes in commitlog.numbers
        if goes_on:
            where[0] = reached if again == NO_MESSAGE else again
            continue
        bad, reason = int(where[0]), "this is no message"
        if stopped == scan.STOP_BAD:
            reason = REASONS[int(rows[count, scan.ROW_STATUS])]
        resume = damaged.resume(bad, reason)
        if resume == NO_MESSAGE:
            where[0] = bad if again == NO_MESSAGE else again
            break
        take(part[whole:], queue_rows[whole:])  # damage, which came later: the batch was whole
        fired = damaged.fired_from(bad)
        if fired != NO_MESSAGE:
            log.origins.append(np.array([fired], np.int64))
            log.copies.append(np.array([bad], np.int64))
        where[0] = resume
    log.end = int(where[0])
    if not (findings.clean and log.end == durable):
        findings.torn_bytes = torn_bytes(engine, log.end)
        if engine.disk.writes:
            commitlog.cut_from(log.end)
        else:
            commitlog.distrust(log.end)  # it would all be copied
    commitlog.end = log.end
    log.first_timer_index = max(first_timer_index, 0)
    if damaged.ranges:
        origins, copies = damaged.rolled_from(log.origins, log.copies)
        log.origins.append(origins)
        log.copies.append(copies)
    if broker is not None:
        origins, copies = broker.match()
        log.broker_origins = origins
        log.copies.append(copies)
    log.origins, log.broker_origins, log.copies = drop_before(
        log.floor, log.origins, log.broker_origins, log.copies
    )
    for row in range(len(engine.queues.files)):
        if not findings.clean:
            engine.queues.files[row].zero_from(engine.queues.next_index(row) * ENTRY_BYTES)
        engine.queues.set_end(row, engine.queues.next_index(row))
    return log


def _queue_rows(engine: Engine, part: Words) -> Words:
    """Return the queue row of each scanned message."""
    result = np.empty(len(part), np.int64)
    with engine.commitlog.reading() as commitlog:
        while (lost := find_rows(engine.queues.table, commitlog, part, result)) >= 0:
            row = part[lost]
            topic = engine.commitlog.read(int(row[scan.ROW_TOPIC]), int(row[scan.ROW_TOPIC_BYTES]))
            engine.queues.row(topic, int(row[scan.ROW_QUEUE_ID]))
    return result


# --- the timer index


def _empty_timer_index(engine: Engine, log: _Log) -> int:
    """Forget all units and slots; return Q, the first timer message that is kept."""
    engine.timerlog.zero_from(0)
    engine.timerlog.end = engine.timerlog.start
    engine.wheel.array.slots[:] = 0
    engine.wheel.array.dirty[:] = 1
    engine.wheel.write(engine.wheel.capture())
    engine.prepare_timerlog()
    return max(
        log.first_timer_index, engine.queues.first_kept(0, max(log.floor, engine.commitlog.start))
    )


def _cut_timer_index(engine: Engine, checkpoint: Checkpoint, findings: Findings) -> int:
    """Take slots and units back to the checkpoint; return its Q.

    Units behind it are not replayed: their slots were chosen by an R that is gone.
    """
    timerlog, end = engine.timerlog, checkpoint.timerlog_flushed
    timerlog.end = end
    if not findings.clean:
        for number in timerlog.numbers:
            if (number + 1) * timerlog.segment_bytes > end:
                timerlog.ensure(number)
        with timerlog.reading() as table:
            changed = chain.cut_heads(table, engine.world.wheel, end, engine.world.scratch)
        if changed < 0:
            raise CorruptStoreError("timerlog", -1 - changed, "a slot's last unit is damaged")
        findings.cut_slots = changed
        engine.wheel.write(engine.wheel.capture())
        timerlog.zero_from(end)
    engine.prepare_timerlog()
    return min(checkpoint.queue_index, engine.queues.next_index(0))


def _replay_broker_units(
    engine: Engine, checkpoint: Checkpoint, log: _Log, findings: Findings
) -> int:
    """Take a broker's units as they are, up to the first bad one; return Q."""
    timerlog, world = engine.timerlog, engine.world
    for number in timerlog.numbers:
        timerlog.ensure(number)
    units = np.zeros((CHUNK_ROWS, chain.WALK_COLUMNS), np.int64)
    where = np.array([timerlog.start, 0], np.int64)
    queue_index = checkpoint.queue_index
    while True:
        with timerlog.reading() as table:
            count = chain.scan_units(
                table,
                timerlog.files_end,
                -1,
                engine.precision_ms,
                units,
                world.scratch,
                where,
            )
        whole = units[:count, chain.WALK_MESSAGE] + units[:count, chain.WALK_SIZE] <= log.end
        kept = count if whole.all() else int(np.argmin(whole))
        if kept:
            live = units[:kept]
            there = live[live[:, chain.WALK_MESSAGE] >= engine.commitlog.start]
            live = live[live[:, chain.WALK_UNIT_MS] >= checkpoint.read_ms]
            findings.cut_slots += chain.revise_slots(
                world.wheel, live, len(live), engine.precision_ms
            )
            if len(there):
                message = int(there[-1, chain.WALK_MESSAGE])
                data = engine.commitlog.read(message + MESSAGE_QUEUE_INDEX_AT, 8)
                queue_index = int.from_bytes(data, "big") + 1
        if kept < count:
            where[0] = units[kept, chain.WALK_OFFSET]
        if kept < count or where[1] != chain.WALK_FULL:
            break
    timerlog.end = int(where[0])
    timerlog.zero_from(timerlog.end)
    engine.prepare_timerlog()
    return min(queue_index, engine.queues.next_index(0))


# --- which sources are done, which timers are cancelled, how many are pending


def _learn_done(engine: Engine, log: _Log, findings: Findings) -> None:
    """Make the set of sources that have their copy, so that they are skipped."""
    ours = np.concatenate([np.zeros(0, np.int64), *log.origins])
    pass_delivered(engine, ours, log.broker_origins)
    origins = np.concatenate([ours, log.broker_origins])
    if not len(origins):
        return
    copies = np.concatenate(log.copies)
    done = new_table(len(origins))
    map_put_all(done, origins, copies)
    findings.copies_count = len(origins)
    engine.use_done(done, len(origins))


def _count_pending(engine: Engine) -> int:
    """Count the pending timers of each topic from the units; return how many are gone."""
    engine.queues.table.pending[:] = 0
    where, removed_count = np.zeros(1, np.int64), 0
    reading = reading_of(engine, engine.cancelled.table)
    for units in live_units(engine):
        removed_count += count_removed(engine, units)
        where[0] = 0
        while not _count_units(engine.world, units, reading, where, engine.clock.now_ms):
            message = int(units[where[0], chain.WALK_MESSAGE])
            pass_lost(engine, engine.world.dequeue_put.thread)
            engine.commitlog.trim()
            engine.commitlog.readable(message // engine.commitlog.segment_bytes)
            engine.row_of_message(message)
    pass_lost(engine, engine.world.dequeue_put.thread)
    return removed_count


@kernel_later
def _count_units(world: World, units: Rows, reading: Reading, where: Words, now_ms: int) -> bool:
    """Count timers from `where[0]` on; return False where a segment or a topic's row is missing."""
    found = world.found
    while where[0] < len(units):
        message = units[where[0], chain.WALK_MESSAGE]
        is_done = reading.done_count > 0 and map_get(reading.done, message) >= 0
        if is_done or units[where[0], chain.WALK_MAGIC] & UNIT_DELETE != 0:
            where[0] += 1
            continue
        buf = segment_at(world.commitlog, message)
        if len(buf) == 0:
            return False
        at = message % world.commitlog.words[SEGMENT_BYTES]
        verdict = judge_message(buf, at, message, False, reading, found)
        if verdict == PENDING:
            count = found[REAL_TOPIC_BYTES]
            queue = max(0, found[REAL_QUEUE])
            row = find_row(world.queues, buf, found[REAL_TOPIC_AT], count, queue)
            if row < 0:
                return False
            world.queues.pending[row] += 1
            due_ms = exact_due_ms(buf, found, reading.tag, reading.precision_ms)
            born_ms, body_bytes = get_i64(buf, at + MESSAGE_BORN_AT), found[BODY_BYTES]
            count_pending(world.queues.tally, row, due_ms, born_ms, body_bytes, now_ms)
        elif verdict != CANCELLED:
            if world.dequeue_put.thread.lost_count == LOST_COUNT_MAX:
                return False
            note_lost(world.dequeue_put.thread, message, units[where[0], chain.WALK_MAGIC])
        where[0] += 1
    return True


def _known_counts(engine: Engine) -> dict[str, Any] | None:
    """Return the counts that a clean close stored."""
    path = engine.path / "config" / "timermetrics"
    try:
        metrics = read_json(path, engine.disk.read)
        check_seal(path, metrics or {})
    except CorruptStoreError as e:  # they are counted again
        engine.damage.note("config/timermetrics", e.offset, e.reason)
        return None
    if metrics is None or not isinstance(metrics.get("timingCount"), dict):
        return None
    # Nobody knew of which topic a lost message was, or it is met again, and must not count twice.
    is_sure = not (metrics.get("unattributedCount") or metrics.get("damagedCount"))
    return metrics if is_sure else None


def _take_counts(engine: Engine, counts: dict[str, Any]) -> None:
    for topic, entry in counts.items():
        row = engine.queues.row(os.fsencode(topic))
        engine.queues.table.pending[row] = int(entry["count"])


def _repair_reschedule(engine: Engine, log: _Log, now_ms: int, findings: Findings) -> None:
    """Append the delete that a crash tore off the replacement at the log's end."""
    last = log.last
    if last is None or not last[scan.ROW_IS_REPLACEMENT] or last[scan.ROW_ORIGIN] >= 0:
        return
    if int(last[scan.ROW_OFFSET]) + int(last[scan.ROW_SIZE]) != log.end:
        return
    replaced = _read_replaced(engine, int(last[scan.ROW_OFFSET]))
    if replaced is None:
        return
    topic, key = replaced
    names = identity_of(topic, key, engine.store_tag)
    old = find_timer(engine, *names)
    if old < 0:
        return
    timer = decode_message(engine.commitlog.view(old), old)
    engine.cancelled.add(np.array([names[0]], np.int64), np.array([names[1]], np.int64))
    keys = np.frombuffer(key, np.uint8).reshape(1, -1)
    due_ms = np.array([int(timer.properties["TIMER_OUT_MS"])], np.int64)
    row, who = engine.queues.row(topic), (timer.born_ms, len(timer.body))
    append_deletes(engine, new_stage(4, 8192), topic, keys, due_ms, now_ms, row, *who)
    findings.repaired_reschedule = True


def _read_replaced(engine: Engine, offset: int) -> tuple[bytes, bytes] | None:
    """Return the topic and the unique key that a replacement names."""
    message = decode_message(engine.commitlog.view(offset), offset)
    key, topic = message.properties.get("TIMER_REPLACES"), message.properties.get("REAL_TOPIC")
    if not key or topic is None:
        return None
    return os.fsencode(topic), key.encode("utf-8", "surrogateescape")
