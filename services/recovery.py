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
from timerstore.services.deletes import append_deletes
from timerstore.services.engine import Engine
from timerstore.services.flush import write_abort
from timerstore.services.recover_deletes import find_cancelled, level_deletes, live_units
from timerstore.services.recover_levels import (
    count_waiting,
    pass_delivered,
    restore_offsets,
    take_level_counts,
)
from timerstore.services.steps import ENQUEUE_GET, ENQUEUE_PUT, run
from timerstore.timelog import scan
from timerstore.timelog.append import new_stage
from timerstore.timelog.audit import find_rows
from timerstore.timelog.checkpoint import Checkpoint, read_checkpoint
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.copies import BrokerCopies
from timerstore.timelog.decode import decode_message
from timerstore.timelog.format import (
    ENTRY_BYTES,
    KEY_DIGITS,
    LEVEL_TOPIC,
    MESSAGE_QUEUE_INDEX_AT,
    QUEUE_ENTRY,
    UNIT_DELETE,
)
from timerstore.timelog.jsonfile import read_json
from timerstore.timelog.kernel import kernel
from timerstore.timelog.message import (
    FOUND_WORDS,
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    REASONS,
    identify_timer,
    read_message,
)
from timerstore.timelog.record import Words
from timerstore.timelog.segments import SEGMENT_BYTES, segment_at
from timerstore.wheel import chain, state
from timerstore.wheel.sets import (
    map_get,
    map_put_all,
    new_table,
    set_add_all,
    set_contains,
)

CHUNK_ROWS: Final = 65_536
_NO_OFFSET: Final = 1 << 62


@dataclass
class Findings:
    """What recovery found and did; part of `stats()`."""

    clean: bool = True
    by_broker: bool = False
    rebuilt: list[str] = field(default_factory=list)
    scanned_count: int = 0
    torn_bytes: int = 0
    cut_slots: int = 0
    relinked_count: int = 0
    copies_count: int = 0
    cancelled_count: int = 0
    pending_count: int = 0
    repaired_reschedule: bool = False
    corrected_levels: list[int] = field(default_factory=list)


@dataclass
class _Log:
    """What the scan of the commit log left behind."""

    durable: int = 0  # what was flushed before
    end: int = 0
    queue_ends: dict[int, int] = field(default_factory=dict)  # by row: what was flushed before
    last: Words | None = None  # the log's last message, as a scanned row
    first_timer_index: int = 0
    origins: list[Words] = field(default_factory=list)
    broker_origins: Words = field(default_factory=lambda: np.zeros(0, np.int64))
    copies: list[Words] = field(default_factory=list)
    level_deletes: list[Words] = field(default_factory=list)
    due_max_ms: int = 0


def recover(engine: Engine, now_ms: int) -> Findings:
    """Bring the engine into a state from which all services can run."""
    findings = Findings()
    checkpoint = read_checkpoint(engine.path / "config" / "timercheck")
    crashed = (engine.path / "abort").exists()
    # Before anything changes: were we killed between writing the wheel and the next checkpoint, the
    # one of a clean close would still hold, with slots that point past its end of the timer log.
    write_abort(engine.disk, engine.path)
    if engine.is_new or (checkpoint is None and not engine.commitlog.numbers):
        engine.set_cursors(now_ms // engine.precision_ms, 0, now_ms)
        engine.prepare_commitlog()
        engine.queues.prepare(0)
        engine.timerlog.ensure(0)
        return findings
    findings.by_broker = checkpoint is not None and checkpoint.by_broker
    findings.clean = checkpoint is not None and checkpoint.clean and not crashed
    if checkpoint is None or not engine.had_timerlog or engine.wheel.is_new:
        findings.rebuilt.append("timer index")
        if checkpoint is None:
            findings.rebuilt.append("checkpoint")
    if not engine.had_queues:
        findings.rebuilt.append("consume queues")
    findings.clean = findings.clean and not findings.rebuilt

    log = _scan_log(engine, checkpoint, findings)
    if findings.by_broker and not findings.rebuilt and checkpoint is not None:
        queue_index = _replay_broker_units(engine, checkpoint, log, findings)
    elif findings.rebuilt and (checkpoint is None or "timer index" in findings.rebuilt):
        queue_index = _empty_timer_index(engine, log)
    else:
        assert checkpoint is not None
        queue_index = _cut_timer_index(engine, checkpoint, findings)

    read_slot = now_ms // engine.precision_ms
    frontier_ms = log.due_max_ms
    if checkpoint is not None:
        read_slot = checkpoint.read_ms // engine.precision_ms
        frontier_ms = max(frontier_ms, checkpoint.frontier_ms)
    engine.set_cursors(read_slot, queue_index, frontier_ms)
    engine.adopt_levels()
    restore_offsets(engine, checkpoint, findings)
    _learn_done(engine, log, findings)
    engine.prepare_commitlog()
    engine.queues.prepare(0)

    linked_before = engine.timerlog.end
    while True:
        run(engine.world, ENQUEUE_GET, ENQUEUE_PUT, now_ms, now_ms)
        if engine.words[state.NEED] == state.NOTHING:
            break
        engine.meet()
    findings.relinked_count = int(engine.words[state.COUNT_LINKED])

    known = _known_counts(engine) if findings.clean else None
    if known is not None and checkpoint is not None and linked_before == engine.timerlog.end:
        _take_counts(engine, known["timingCount"])
        if log.copies:
            engine.recovered_until_slot = checkpoint.claimed_slot
        if checkpoint.cancelled_count:
            find_cancelled(engine, log.level_deletes)
        take_level_counts(engine, known)
    else:
        find_cancelled(engine, log.level_deletes)
        _count_pending(engine)
        count_waiting(engine)
    if log.copies:
        engine.recovered_copy = min(int(part.min()) for part in log.copies)
    findings.cancelled_count = int(engine.words[state.CANCELLED_COUNT])
    _repair_reschedule(engine, log, now_ms, findings)
    findings.pending_count = engine.pending_count()
    _flush(engine, log, linked_before)
    return findings


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


def _scan_log(engine: Engine, checkpoint: Checkpoint | None, findings: Findings) -> _Log:
    """Find the log's end and the copies since L; bring the consume queues in line with it."""
    commitlog, log = engine.commitlog, _Log()
    durable = scan_from = commitlog.start
    ours = checkpoint is not None and not checkpoint.by_broker and not findings.rebuilt
    if ours and checkpoint is not None:
        durable = max(checkpoint.commitlog_flushed, commitlog.start)
        scan_from = min(durable, max(checkpoint.scan_from, commitlog.start))
    for row in range(len(engine.queues.files)):
        _find_queue_end(engine, row, durable)
        log.queue_ends[row] = engine.queues.next_index(row)
    log.durable = durable
    rows = np.zeros((CHUNK_ROWS + 1, scan.ROW_COLUMNS), np.int64)
    found, where = np.zeros(FOUND_WORDS, np.int64), np.array([scan_from, 0], np.int64)
    first_timer_index = -1
    broker: BrokerCopies | None = BrokerCopies() if not ours else None
    while True:
        _map_commitlog(engine, int(where[0]), int(where[0]) + 2 * commitlog.segment_bytes)
        count = scan.scan_commitlog(
            commitlog.table,
            int(where[0]),
            commitlog.allocated_end,
            True,
            engine.store_tag,
            engine.precision_ms,
            engine.level_ms,
            rows[:CHUNK_ROWS],
            found,
            where,
        )
        part = rows[:count]
        if count:
            log.last = part[-1].copy()
            findings.scanned_count += count
            queue_rows = _queue_rows(engine, part)
            level_rows = engine.queues.rows(LEVEL_TOPIC)
            timers = part[queue_rows == 0]
            if first_timer_index < 0 and len(timers):
                first_timer_index = int(timers[0, scan.ROW_QUEUE_INDEX])
            _index_part(engine, part, queue_rows, durable)
            copied = part[part[:, scan.ROW_ORIGIN] >= 0]
            log.origins.append(copied[:, scan.ROW_ORIGIN].copy())
            log.copies.append(copied[:, scan.ROW_OFFSET].copy())
            log.level_deletes.append(level_deletes(part))
            fired = part[(queue_rows != 0) & (part[:, scan.ROW_DUE_MS] >= 0)]
            if len(fired):
                log.due_max_ms = max(log.due_max_ms, int(fired[:, scan.ROW_DUE_MS].max()))
            if broker is not None:
                broker.take(part, queue_rows == 0, np.isin(queue_rows, level_rows))
        stopped = int(where[1])
        if stopped == scan.STOP_COUNT and count == CHUNK_ROWS:
            continue
        if stopped == scan.STOP_UNMAPPED and int(where[0]) < commitlog.allocated_end:
            number = int(where[0]) // commitlog.segment_bytes
            if number in commitlog.numbers:
                continue
        break
    log.end = int(where[0])
    if ours and log.end < durable:
        reason = "the log ends before what was flushed"
        if stopped == scan.STOP_BAD:
            reason = REASONS[int(rows[count, scan.ROW_STATUS])]
        raise CorruptStoreError("commitlog", log.end, reason)
    if not (findings.clean and log.end == durable):
        findings.torn_bytes = _torn_bytes(engine, log.end)
        commitlog.zero_from(log.end)
    commitlog.end = log.end
    log.first_timer_index = max(first_timer_index, 0)
    if broker is not None:
        origins, copies = broker.match()
        log.broker_origins = origins
        log.copies.append(copies)
    log.origins = [part for part in log.origins if len(part)]
    log.copies = [part for part in log.copies if len(part)]
    for row in range(len(engine.queues.files)):
        if not findings.clean:
            engine.queues.files[row].zero_from(engine.queues.next_index(row) * ENTRY_BYTES)
        engine.queues.set_end(row, engine.queues.next_index(row))
    return log


def _torn_bytes(engine: Engine, end: int) -> int:
    number, position = divmod(end, engine.commitlog.segment_bytes)
    if number not in engine.commitlog.numbers:
        return 0
    used = np.flatnonzero(engine.commitlog.ensure(number).view[position:])
    return int(used[-1]) + 1 if len(used) else 0


def _queue_rows(engine: Engine, part: Words) -> Words:
    """Return the queue row of each scanned message."""
    result = np.empty(len(part), np.int64)
    lost = find_rows(engine.queues.table, engine.commitlog.table, part, result)
    while lost >= 0:
        row = part[lost]
        topic = engine.commitlog.read(int(row[scan.ROW_TOPIC]), int(row[scan.ROW_TOPIC_BYTES]))
        engine.queues.row(topic, int(row[scan.ROW_QUEUE_ID]))
        lost = find_rows(engine.queues.table, engine.commitlog.table, part, result)
    return result


def _find_queue_end(engine: Engine, row: int, durable: int) -> None:
    """Set a queue's end behind its last entry whose message lies before `durable`."""
    queues, file = engine.queues, engine.queues.files[row]
    low, high = file.start // ENTRY_BYTES, file.allocated_end // ENTRY_BYTES
    while low < high:  # the entries before the end are sound, those behind it are not
        middle = (low + high) // 2
        entry = queues.read(row, middle, 1)[0]
        if entry["size"] > 0 and entry["offset"] < durable:
            low = middle + 1
        else:
            high = middle
    queues.set_end(row, low)


def _index_part(engine: Engine, part: Words, queue_rows: Words, durable: int) -> None:
    """Write the queue entries of scanned messages behind the durable offset."""
    queues = engine.queues
    fresh = part[:, scan.ROW_OFFSET] >= durable
    for row in np.unique(queue_rows[fresh]).tolist():
        mine = part[fresh & (queue_rows == row)]
        entries = np.zeros(len(mine), QUEUE_ENTRY)
        entries["offset"] = mine[:, scan.ROW_OFFSET]
        entries["size"] = mine[:, scan.ROW_SIZE]
        entries["tags_code"] = mine[:, scan.ROW_TAGS_CODE]
        indexes = mine[:, scan.ROW_QUEUE_INDEX]
        if (np.diff(indexes) != 1).any() or indexes[0] < 0:
            raise CorruptStoreError(
                "commitlog", int(mine[0, scan.ROW_OFFSET]), "queue offsets are not consecutive"
            )
        file, done = queues.files[row], 0
        if not file.numbers:
            queues.fill_blanks(row, int(indexes[0]))
        while done < len(mine):
            number, position = divmod(int(indexes[done]), queues.segment_entries)
            room = min(queues.segment_entries - position, len(mine) - done)
            view = file.ensure(number).view
            data = entries[done : done + room].tobytes()
            at = position * ENTRY_BYTES
            view[at : at + len(data)] = np.frombuffer(data, np.uint8)
            done += room
        queues.table.next_index[row] = queues.table.planned[row] = int(indexes[-1]) + 1


# --- the timer index


def _empty_timer_index(engine: Engine, log: _Log) -> int:
    """Forget all units and slots; return Q, the first timer message that is kept."""
    engine.timerlog.zero_from(0)
    engine.timerlog.end = engine.timerlog.start
    engine.wheel.array.slots[:] = 0
    engine.wheel.array.dirty[:] = 1
    engine.wheel.write(engine.wheel.capture())
    engine.timerlog.ensure(engine.timerlog.end // engine.timerlog.segment_bytes)
    return max(log.first_timer_index, engine.queues.first_index(0))


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
        changed = chain.cut_heads(timerlog.table, engine.world.wheel, end, engine.world.scratch)
        if changed < 0:
            raise CorruptStoreError("timerlog", -1 - changed, "a slot's last unit is damaged")
        findings.cut_slots = changed
        engine.wheel.write(engine.wheel.capture())
        timerlog.zero_from(end)
    timerlog.ensure(end // timerlog.segment_bytes)
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
        count = chain.scan_units(
            timerlog.table,
            timerlog.allocated_end,
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
            live = live[live[:, chain.WALK_UNIT_MS] >= checkpoint.read_ms]
            findings.cut_slots += chain.revise_slots(
                world.wheel, live, len(live), engine.precision_ms
            )
            message = int(units[kept - 1, chain.WALK_MESSAGE])
            data = engine.commitlog.read(message + MESSAGE_QUEUE_INDEX_AT, 8)
            queue_index = int.from_bytes(data, "big") + 1
        if kept < count:
            where[0] = units[kept, chain.WALK_OFFSET]
        if kept < count or where[1] != chain.WALK_FULL:
            break
    timerlog.end = int(where[0])
    timerlog.zero_from(timerlog.end)
    timerlog.ensure(timerlog.end // timerlog.segment_bytes)
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
    engine.use_tables(engine.cancelled, done, 0, len(origins))


def _count_pending(engine: Engine) -> None:
    """Count the pending timers of each topic from the units, once for each timer."""
    engine.queues.table.pending[:] = 0
    where = np.array([0, -1], np.int64)
    for units in live_units(engine):
        where[0] = 0
        while not _count_units(engine.world, units, engine.cancelled, engine.done, where):
            message = int(units[where[0], chain.WALK_MESSAGE])
            engine.commitlog.trim()
            engine.commitlog.existing(message // engine.commitlog.segment_bytes)
            engine.words[state.NEED], engine.words[state.NEED_OFFSET] = state.TOPIC, message
            engine.meet()
    engine.recovered_until_slot = max(engine.recovered_until_slot, int(where[1]))


@kernel
def _count_units(world: Any, units: Any, cancelled: Any, done: Any, where: Any) -> bool:
    """Count timers from `where[0]` on; `where[1]`: the latest slot of a source that is done.

    That may be a delete, whose copy rolled: L stays at its copy as well.

    Return False where a segment or a topic's row is missing.
    """
    words, found = world.words, world.found
    while where[0] < len(units):
        message = units[where[0], chain.WALK_MESSAGE]
        if words[state.DONE_COUNT] > 0 and map_get(done, message) >= 0:
            slot = units[where[0], chain.WALK_UNIT_MS] // words[state.PRECISION]
            where[1] = max(where[1], slot)
            where[0] += 1
            continue
        if units[where[0], chain.WALK_MAGIC] & UNIT_DELETE != 0:
            where[0] += 1
            continue
        buf = segment_at(world.commitlog, message)
        if len(buf) == 0:
            return False
        at = message % world.commitlog.words[SEGMENT_BYTES]
        if read_message(buf, at, found, False) == GOOD and found[REAL_TOPIC_BYTES] > 0:
            identify_timer(buf, found, words[state.STORE_TAG])
            if not set_contains(cancelled, found[IDENTITY_HIGH], found[IDENTITY_LOW]):
                count = found[REAL_TOPIC_BYTES]
                queue = max(0, found[REAL_QUEUE])
                row = find_row(world.queues, buf, found[REAL_TOPIC_AT], count, queue)
                if row < 0:
                    return False
                world.queues.pending[row] += 1
        where[0] += 1
    return True


def _known_counts(engine: Engine) -> dict[str, Any] | None:
    """Return the counts that a clean close stored."""
    metrics = read_json(engine.path / "config" / "timermetrics")
    if metrics is None or not isinstance(metrics.get("timingCount"), dict):
        return None
    return metrics


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
    high, low = np.array([-1], np.int64), np.array([int(key[12:24], 16)], np.int64)
    added = np.zeros(1, np.bool_)
    engine.reserve_cancelled(1)
    if set_add_all(engine.cancelled, high, low, added):
        engine.words[state.CANCELLED_COUNT] += 1
    keys = np.frombuffer(key, np.uint8).reshape(1, -1)
    due_ms = np.array([int(key[:12], 16)], np.int64)
    row = engine.queues.row(topic)
    append_deletes(engine, new_stage(4, 8192), topic, keys, due_ms, now_ms, row)
    findings.repaired_reschedule = True


def _read_replaced(engine: Engine, offset: int) -> tuple[bytes, bytes] | None:
    """Return the topic and the unique key that a replacement names."""
    message = decode_message(engine.commitlog.view(offset).view(np.ndarray), offset)
    key, topic = message.properties.get("TIMER_REPLACES"), message.properties.get("REAL_TOPIC")
    if key is None or topic is None or len(key) != KEY_DIGITS:
        return None
    return os.fsencode(topic), key.encode()
