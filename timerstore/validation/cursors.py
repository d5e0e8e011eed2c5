"""Looking at a store's small files: its cursors, its groups, what is wrong with the files."""

from __future__ import annotations

import os
from contextlib import suppress

from timerstore.errors import CorruptStoreError
from timerstore.offline.auditcursors import (
    COUNTS_FILE,
    GROUPS_FILE,
    committed_offsets,
    cursor_at,
    cursor_faults,
    group_faults,
    level_faults,
    stored_pending_count,
)
from timerstore.tables.plan import file_faults
from timerstore.tables.queues import find_queue, queue_stop
from timerstore.tables.view import StoreView
from timerstore.timelog.decode import text
from timerstore.timelog.format import LEVEL_TOPIC, TIMER_TOPIC, UNIT_BYTES
from timerstore.timelog.reader import Fault
from timerstore.validation.findings import Findings
from timerstore.validation.plan import Scope
from timerstore.validation.salvaged import lost_count
from timerstore.validation.tally import Example, Tally


def look_at_files(findings: Findings) -> None:
    """Look at what lies beside the logs. O(files)."""
    tally, view = findings.tally, findings.scope.view
    reader = view.reader
    segments = [reader.commitlog, reader.timerlog, *reader.queues.values()]
    tally.check("files", sum(len(each.numbers) for each in segments) + 1)
    for fault in file_faults(view):
        findings.fault("files", fault)
    _look_at_cursors(findings, view)
    ends = {each: queue_stop(view, *each) for each in reader.queues}
    with suppress(CorruptStoreError):  # named above
        tally.check("level_offsets", sum(topic == text(LEVEL_TOPIC) for topic, _ in ends))
        for fault in level_faults(reader, ends):
            findings.fault("level_offsets", fault)
    try:
        tally.check("group_offsets", len(committed_offsets(reader)))
        for fault in group_faults(reader, ends):
            findings.fault("group_offsets", fault)
    except CorruptStoreError as e:
        findings.fault("files", Fault(GROUPS_FILE, e.offset, e.reason))


def _look_at_cursors(findings: Findings, view: StoreView) -> None:
    reader, tally = view.reader, findings.tally
    checkpoint = view.checkpoint
    if checkpoint is None:
        return
    tally.check("cursors", 3 if checkpoint.by_broker else 7)
    log_end = min(view.log_stop, reader.commitlog.files_end)
    used_end = _units_end(view)
    units_end = max(used_end, reader.timerlog.start)
    queue = text(TIMER_TOPIC), 0
    queue_end = queue_stop(view, *queue) if queue in reader.queues else 0
    for fault in cursor_faults(reader, log_end, units_end, queue_end):
        findings.fault("cursors", fault)
    closed = not checkpoint.by_broker and checkpoint.clean and not view.cut.is_open
    if closed and not 0 <= units_end - checkpoint.timerlog_flushed:
        return  # named above
    if closed and checkpoint.timerlog_flushed < used_end:
        reason = f"units stand behind the cursor timerlog_flushed, up to {used_end}"
        at = cursor_at("timerlog_flushed")
        findings.fault("cursors", Fault("config/timercheck", at, reason))


def _units_end(view: StoreView) -> int:
    """Return where the last unit ends, whose last bytes may be zeros."""
    log = view.reader.timerlog
    used_end = log.used_end()
    return used_end + -(used_end % log.segment_bytes) % UNIT_BYTES


def finish(scope: Scope, tally: Tally) -> None:
    """Judge what needs the whole store."""
    view = scope.view
    for name, (low, high, count) in tally.queues.items():
        missing = high - low + 1 - count
        queue = view.reader.queues.get(find_queue(name)) if missing > 0 else None
        if queue is not None:
            missing -= lost_count(view.reader, queue, low, high)
        if missing and not tally.failed["queue_order"]:
            reason = f"{count} messages have indexes from {low} to {high} of {name}"
            tally.fail("queue_order", 1, [Example("commitlog", 0, reason)])
    try:
        stored = stored_pending_count(view.reader)
    except CorruptStoreError as e:
        tally.fail("files", 1, [Example(COUNTS_FILE, e.offset, e.reason)])
        return
    if stored is None:
        return
    tally.check("pending_count", 1)
    if stored != tally.counts["pending"]:
        reason = f"it counts {stored} pending timers; there are {tally.counts['pending']}"
        tally.fail("pending_count", 1, [Example(COUNTS_FILE, 0, reason)])


def bytes_read(scope: Scope) -> int:
    """Return how many bytes of the logs, queues and the wheel were looked at."""
    view = scope.view
    reader = view.reader
    sizes = [view.log_stop - reader.commitlog.start, view.units_stop - reader.timerlog.start]
    sizes += [len(reader.used_slots) * 32]
    sizes += [queue.used_end() - queue.start for queue in reader.queues.values()]
    return sum(sizes)


def store_name(scope: Scope) -> str:
    """Return the store's path, as it was given."""
    return os.fspath(scope.cut.path)
