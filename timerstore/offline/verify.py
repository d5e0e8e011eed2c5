"""Verifying: every byte of a closed store, or of a copy, against all the others.

What is looked at, in this order: the small files, the commit log, each consume queue against the
commit log in both directions, the timer log's units against the messages that they point to, the
slots' chains, the cursors. Nothing is changed, no lock is taken, and holes stay holes.

A *problem* is damage: bytes that cannot have been written there. A *warning* is what the next
opening mends by itself, such as a torn tail behind the last checkpoint of a store that was killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Final

import numpy as np

from timerstore.config import Config
from timerstore.errors import CorruptStoreError, TimerStoreError
from timerstore.kinds import check_kind, check_path
from timerstore.offline.auditbackup import backup_faults
from timerstore.offline.auditcursors import (
    LEVELS_FILE,
    cursor_faults,
    group_faults,
    level_faults,
    stored_pending_count,
)
from timerstore.offline.auditlog import LogAudit
from timerstore.offline.audittimers import TimerAudit
from timerstore.offline.points import is_backup
from timerstore.offline.report import Audit, Report
from timerstore.services.level_file import LevelOffsetFile
from timerstore.tables.timers import count_pending
from timerstore.tables.view import view_of
from timerstore.timelog.checkpoint import decode_checkpoint
from timerstore.timelog.format import (
    CHECKPOINT_BYTES,
    CHECKPOINT_COPY_AT,
    CHECKPOINT_EXTENSION,
    IDENTITY,
    IDENTITY_AT,
    STORE_CHECKPOINT,
    TIMER_CHECKPOINT,
)
from timerstore.timelog.identity import decode_identity
from timerstore.timelog.jsonfile import parse_json
from timerstore.timelog.logend import log_used_end
from timerstore.timelog.oserrors import telling
from timerstore.timelog.reader import StoreReader
from timerstore.timelog.smallfile import read_head, read_small

_BASE_BYTES: Final = TIMER_CHECKPOINT.itemsize
_COPY_BYTES: Final = _BASE_BYTES + CHECKPOINT_EXTENSION.itemsize


@telling
def verify(
    path: str | os.PathLike[str],
    *,
    config: Config | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check every byte of a closed store, of a copy, or of a backup; change nothing.

    Of a store that is open it checks what its last checkpoint made durable; what lies behind that
    is a warning at most, for it may be half written. Of a backup it checks all points. Reads
    RocketMQ's own stores as well. `config` says the delay levels where they are not RocketMQ's.
    `progress`: is told how many bytes are done, of how many. Raises NotAStoreError where there is
    no store; damage is in the report. O(bytes).

    >>> timerstore.verify("timers/").ok
    True
    """
    config = Config() if config is None else config
    check_kind(config, Config, "config")
    levels = np.array(config.delay_levels_ms(), np.int64)
    reader = StoreReader(check_path(path), levels)
    audit = Audit(reader, progress=progress)
    log_bytes = log_used_end(reader) - reader.commitlog.start
    audit.bytes_total = log_bytes + reader.timerlog.used_end() - reader.timerlog.start
    checkpoint = reader.checkpoint
    audit.by_broker = checkpoint.by_broker if checkpoint is not None else reader.sizes.by_broker
    ours = checkpoint is not None and not checkpoint.by_broker
    audit.cleaned = checkpoint is not None and checkpoint.floor_offset > 0
    audit.clean = not reader.is_open and (checkpoint is None or not ours or checkpoint.clean)
    if checkpoint is not None and ours:
        audit.durable = checkpoint.commitlog_flushed
    audit.of_backup = is_backup(reader.path)
    audit.faults(reader.faults)
    _check_json_files(audit)
    _check_timercheck(audit)
    _check_store_checkpoint(audit)
    log = LogAudit(audit)
    log.run()
    timers = TimerAudit(audit, log)
    if audit.of_backup:
        audit.faults(list(backup_faults(reader.path)))
    else:
        timers.run()
        _check_cursors(audit, log, timers)
        _check_group_offsets(audit, log)
        _check_level_offsets(audit, log)
    pending_count = None
    if not audit.problems and not audit.of_backup:
        pending_count = count_pending(view_of(reader, upto="end", delay_levels=config.delay_levels))
    _check_pending(audit, pending_count)
    sizes = [reader.commitlog.bytes_count, reader.timerlog.bytes_count, reader.slots.nbytes]
    sizes += [queue.bytes_count for queue in reader.queues.values()]
    return Report(
        path=os.fspath(path),
        problems=tuple(audit.problems),
        warnings=tuple(audit.warnings),
        problem_count=audit.problem_count,
        warning_count=audit.warning_count,
        message_count=log.message_count,
        entry_count=log.entry_count,
        unit_count=timers.unit_count,
        slot_count=timers.slot_count,
        pending_count=pending_count,
        queue_count=len(reader.queues),
        bytes_count=sum(sizes),
        was_open=reader.is_open,
        by_broker=audit.by_broker,
    )


# --- the small files


def _check_json_files(audit: Audit) -> None:
    """Check that every JSON file parses, and is an object."""
    path = audit.reader.path
    files = [path / "config" / "timermetrics", *sorted((path / "config").glob("*.json"))]
    files += sorted((path / "config").glob("*.bak")) + sorted(path.glob("*.json"))
    for file in files:
        if not file.is_file():
            continue
        name = str(file.relative_to(path))
        try:
            data = read_small(file)
        except CorruptStoreError as e:
            audit.problem(name, e.offset, e.reason)
            continue
        except TimerStoreError as e:
            audit.problem(name, 0, str(e))
            continue
        if not data.strip():
            continue  # a broker's `.bak` before anything was written
        try:
            if not isinstance(parse_json(data.decode("utf-8")), dict):
                audit.problem(name, 0, "this is no JSON object")
        except UnicodeDecodeError as e:
            audit.problem(name, e.start, "this is no UTF-8")
        except json.JSONDecodeError as e:
            audit.problem(name, min(e.pos, len(data)), f"this is no JSON: {e.msg}")
        except ValueError as e:  # a number, or a name, that nothing can have
            audit.problem(name, 0, f"this is no JSON that a store has: {e}")
        except RecursionError:
            audit.problem(name, 0, "this is nested too deep for a store's JSON")


def _check_timercheck(audit: Audit) -> None:
    """Check both copies of the cursors, and that nothing else is in the file."""
    data, file = audit.reader.checkpoint_data, "config/timercheck"
    if not data:
        audit.torn(file, 0, "there are no cursors", behind=True)
        return
    if len(data) != CHECKPOINT_BYTES:
        audit.problem(file, min(len(data), CHECKPOINT_BYTES), f"it has {len(data)} bytes")
    first, second = data[:_COPY_BYTES], data[CHECKPOINT_COPY_AT : CHECKPOINT_COPY_AT + _COPY_BYTES]
    data = _without_identities(audit, data)
    used = len(first) if any(first[_BASE_BYTES:]) else _BASE_BYTES
    for start, stop in ((used, CHECKPOINT_COPY_AT), (CHECKPOINT_COPY_AT + len(second), len(data))):
        strange = np.flatnonzero(np.frombuffer(data[start:stop], np.uint8))
        if len(strange):
            audit.problem(file, start + int(strange[0]), "these bytes belong to no cursor")
    if not any(first[_BASE_BYTES:]) and not any(second):
        return  # a broker's alone: 56 bytes without any checksum
    # One copy alone, in the place of the first: valid and its echo equal, or none of ours.
    one, other = decode_checkpoint(first), decode_checkpoint(second)
    if other is None or other.by_broker:
        audit.torn(file, CHECKPOINT_COPY_AT, "the second copy is damaged", behind=True)
    if one is None or one.by_broker:
        base = np.frombuffer(first[:_BASE_BYTES], ">i8")
        echo = np.frombuffer(second[:_BASE_BYTES], ">i8")
        both = other is not None and not other.by_broker and len(base) == len(echo)
        # A broker moves at least its counter and the time beside the cursors.
        if both and int((base != echo).sum()) <= 1:
            at = int(np.argmax(base != echo)) * 8 if (base != echo).any() else _BASE_BYTES
            audit.torn(file, at, "the first copy is damaged", behind=True)
        elif decode_checkpoint(first + bytes(CHECKPOINT_COPY_AT)) is None:
            audit.torn(file, 0, "the first copy is damaged", behind=True)
        return
    if other is not None and not other.by_broker and first != second:
        audit.torn(file, CHECKPOINT_COPY_AT, "the two copies differ", behind=True)


def _without_identities(audit: Audit, data: bytes) -> bytes:
    """Check the copies of `timerstore.json`; return the file's bytes with zeros in their place."""
    content, file = bytearray(data), "config/timercheck"
    for at in (IDENTITY_AT, CHECKPOINT_COPY_AT + IDENTITY_AT):
        stop = at + IDENTITY.itemsize
        if any(data[at:stop]) and decode_identity(data[at:stop]) is None:
            audit.torn(file, at, "the copy of timerstore.json is damaged", behind=True)
        content[at:stop] = bytes(len(content[at:stop]))
    return bytes(content)


def _check_store_checkpoint(audit: Audit) -> None:
    """Check RocketMQ's file of flush times."""
    path = audit.reader.path / "checkpoint"
    if not path.is_file():
        return
    data = read_head(path, 2 * CHECKPOINT_BYTES)
    if len(data) != CHECKPOINT_BYTES:
        audit.problem("checkpoint", min(len(data), CHECKPOINT_BYTES), f"it has {len(data)} bytes")
    start = STORE_CHECKPOINT.itemsize
    strange = np.flatnonzero(np.frombuffer(data[start:], np.uint8))
    if len(strange):
        audit.problem("checkpoint", start + int(strange[0]), "these bytes belong to no time")
    values = np.frombuffer(data[:start].ljust(start, b"\0"), ">i8")
    for i in np.flatnonzero((values < 0) | (values >= 1 << 48)).tolist():
        audit.problem("checkpoint", 8 * i, f"{values[i]} is no time and no offset")
    checkpoint = audit.reader.checkpoint
    if not audit.clean or checkpoint is None or checkpoint.by_broker:
        return
    expected = (values[1], values[1], 0, 0, checkpoint.commitlog_flushed)  # as we write it
    for i in np.flatnonzero(values != np.array(expected)).tolist():
        audit.problem("checkpoint", 8 * i, f"{values[i]} is not what a clean close writes here")


# --- cursors


def _check_cursors(audit: Audit, log: LogAudit, timers: TimerAudit) -> None:
    """Check that every cursor lies within what it points into, and that the tail is flushed."""
    reader, file = audit.reader, "config/timercheck"
    checkpoint = reader.checkpoint
    if checkpoint is None:
        return
    units_end = max(timers.end, reader.timerlog.start)
    audit.faults(cursor_faults(reader, log.end, units_end, log.timer_queue_end))
    if checkpoint.by_broker:
        return
    if audit.clean and checkpoint.timerlog_flushed != timers.end:
        at = checkpoint.timerlog_flushed
        audit.problem("timerlog", at, f"the units end at {timers.end}, where {at} was flushed")
    if checkpoint.store_tag != reader.store_tag and not reader.sizes.by_broker:
        audit.problem(file, _BASE_BYTES, "the store's tag is not the one in timerstore.json")


def _check_group_offsets(audit: Audit, log: LogAudit) -> None:
    """Check that no group is past its queue's end."""
    try:
        for fault in group_faults(audit.reader, log.queue_ends):
            audit.warning(*fault)
    except CorruptStoreError as e:
        audit.problem("config/consumerOffset.json", e.offset, e.reason)


def _check_level_offsets(audit: Audit, log: LogAudit) -> None:
    """Check that no delay level is past its queue's end, and that its copy for brokers agrees."""
    reader, checkpoint = audit.reader, audit.reader.checkpoint
    try:
        offsets = LevelOffsetFile(reader.path / LEVELS_FILE).read(reader.steady.read)
        faults = level_faults(reader, log.queue_ends)
    except CorruptStoreError as e:
        return audit.problem(LEVELS_FILE, 0, e.reason)
    if checkpoint is not None and not checkpoint.by_broker:
        if audit.clean and offsets != checkpoint.level_offsets:
            reason = "it does not say what the checkpoint says, as after a clean close"
            audit.warning(LEVELS_FILE, 0, reason)
    for fault in faults:
        audit.warning(*fault)
    return None


def _check_pending(audit: Audit, pending_count: int | None) -> None:
    """Check the count that a clean close stored."""
    if pending_count is None:
        return
    try:
        stored = stored_pending_count(audit.reader)
    except CorruptStoreError as e:
        audit.problem("config/timermetrics", e.offset, e.reason)
        return
    if stored is not None and stored != pending_count:
        reason = f"it counts {stored} pending timers; there are {pending_count}"
        audit.problem("config/timermetrics", 0, reason)
