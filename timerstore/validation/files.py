"""Looking at what lies beside the logs, then at what needs the whole store."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np

from timerstore.audit.rule import Example
from timerstore.core.offsets import Ranges, gaps
from timerstore.errors import CorruptStoreError
from timerstore.tables.records import find_queue, queue_stop
from timerstore.tables.splits import WHEEL, file_faults, log_faults, stored_ms
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import Stamp
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.smallfile import is_there, status_at
from timerstore.timelog.reading.reader import Fault, read_entries
from timerstore.validation.entries import lost_count
from timerstore.validation.facts import Evidence, Findings
from timerstore.validation.plan import Scope
from timerstore.validation.smallfiles import (
    COUNTS_FILE,
    GROUPS_FILE,
    look_at_copies,
    look_at_cursors,
    look_at_flush_times,
    look_at_groups,
    look_at_json,
    look_at_levels,
    stored_pending_count,
)
from timerstore.wheel.timerwheel import PAGE_BYTES, WRONG_PAGE_REASON, find_damaged


def look_at_files(findings: Findings) -> None:
    """Look at what lies beside the logs. O(files)."""
    tally, view = findings.tally, findings.scope.view
    reader = view.reader
    segments = [reader.commitlog, reader.timerlog, *reader.queues.values()]
    tally.check("files", sum(len(each.numbers) for each in segments) + 1)
    for fault in file_faults(view) if findings.scope.has_indexes else log_faults(view):
        findings.fault("files", fault)
    look_at_json(findings)
    look_at_copies(findings)
    look_at_flush_times(findings)
    if not findings.scope.has_indexes:
        return
    _look_at_wheel(findings, view)
    ends = {each: queue_stop(view, *each) for each in reader.queues}
    look_at_cursors(findings, ends)
    with suppress(CorruptStoreError):  # named above
        look_at_levels(findings, ends)
    try:
        committed = look_at_groups(findings, ends)
        if findings.scope.measures:
            tally.groups += find_groups(view, ends, committed)
    except CorruptStoreError as e:
        findings.fault("files", Fault(GROUPS_FILE, e.offset, e.reason))


def _look_at_wheel(findings: Findings, view: StoreView) -> None:
    """Look at the size of the wheel's file; if ours was closed its lack is named already."""
    path, at = view.reader.path / WHEEL, view.reader.at
    is_file = is_there(path, at, stat.S_ISREG)
    expected = 2 * view.reader.sizes.wheel_slot_count * fmt.SLOT_BYTES
    size = status_at(path, at).st_size if is_file else 0
    if is_file and size != expected:
        reason = f"the wheel has {size} bytes, but {expected} were expected"
        findings.fault("files", Fault(WHEEL, min(size, expected), reason))
    elif not is_file and (view.cut.is_open or not view.ours):
        fault = Fault(WHEEL, 0, "there is no wheel")
        findings.fault("files", fault, torn=findings.scope.is_unclean)


def finish(scope: Scope, tally: Evidence) -> None:
    """Judge what needs the whole store."""
    view = scope.view
    damaged = bool(tally.failed["message_sound"] or tally.mended["message_sound"])
    for name, (low, high, count) in tally.queues.items():
        missing = high - low + 1 - count
        queue = view.reader.queues.get(find_queue(name)) if missing > 0 else None
        if queue is not None:
            lost = lost_count(view, queue, low, high, damaged=damaged)
            missing = max(0, missing - lost)  # a lost one may look like a gap that a broker left
        if missing and not (tally.failed["queue_order"] or tally.mended["queue_order"]):
            reason = f"{count} messages have indexes from {low} to {high} of {name}"
            torn = bool(tally.mended["message_sound"] and not tally.failed["message_sound"])
            tally.fail("queue_order", 1, [Example("commitlog", 0, reason)], torn=torn)
    if scope.has_indexes:
        _judge_wheel_sums(scope, tally)
        _judge_pending(view, tally)


def _judge_wheel_sums(scope: Scope, tally: Evidence) -> None:
    """Judge pages of a closed store's wheel in which no slot is wrong by their checksums."""
    reader = scope.view.reader
    wheel = reader.slots.view(np.uint8)
    if scope.by_broker or not len(wheel):
        return
    checkpoint = scope.view.checkpoint
    if checkpoint is None or not checkpoint.clean or scope.view.cut.is_open:
        return
    stamp = Stamp(checkpoint.store_tag, checkpoint.sequence, checkpoint.commitlog_flushed)
    used, disk = reader.steady.wheel.ranges, Disk(reader.folder)
    page = find_damaged(disk, reader.path, stamp, wheel, used)
    if page is None:
        return
    tally.check("wheel_sums", -(-len(wheel) // PAGE_BYTES))
    places = [*tally.failed.examples.values(), *tally.mended.examples.values()]
    known = {at // PAGE_BYTES for each in places for file, at, _ in each if file == WHEEL}
    if page >= 0 and page // PAGE_BYTES not in known:
        tally.fail("wheel_sums", 1, [Example(WHEEL, page, WRONG_PAGE_REASON)])


def _judge_pending(view: StoreView, tally: Evidence) -> None:
    """Judge the count that a clean close stored, if the timers were counted."""
    try:
        stored = stored_pending_count(view.reader)
    except CorruptStoreError as e:
        tally.fail("files", 1, [Example(COUNTS_FILE, e.offset, e.reason)])
        return
    if stored is None or "pending" not in tally.counts:
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
    sizes += [len(view.used_slots) * 32]
    sizes += [queue.used_end() - queue.start for queue in reader.queues.values()]
    return sum(sizes)


_DEAD: Final = fmt.DEAD_PREFIX.decode()
_RETRY: Final = fmt.RETRY_PREFIX.decode()


def find_groups(
    view: StoreView,
    queue_ends: Mapping[tuple[str, int], int],
    committed_offsets: Mapping[tuple[str, int], tuple[int, Ranges]],
) -> list[dict[str, Any]]:
    """Return how far groups are in the queues that they read, as rows. O(groups).

    `queue_ends`: by (topic, queue id). `committed_offsets`: as of `look_at_groups`. Dead letters of
    which none was put back or dropped are there too, though nothing was committed.
    """
    found, cursors = [], dict[tuple[str, str, int], tuple[int, Ranges]]()
    for (topic, queue_id), queue in view.reader.queues.items():
        if topic.startswith(_DEAD):
            cursors[topic, topic.removeprefix(_DEAD), queue_id] = queue.start // fmt.ENTRY_BYTES, []
    for (name, queue_id), known in committed_offsets.items():
        topic, _, group = name.rpartition("@")
        cursors[topic, group, queue_id] = known
    for (topic, group, queue_id), (committed, done) in sorted(cursors.items()):
        end = queue_ends.get((topic, queue_id), 0)
        lag_count = sum(stop - start for start, stop in gaps(committed, end, done))
        first = committed if committed < end else None
        kind = "dead" if topic.startswith(_DEAD) else "topic"
        found.append(
            {
                "group": group,
                "topic": topic,
                "queue_id": queue_id,
                "kind": "retry" if topic.startswith(_RETRY) else kind,
                "committed": committed,
                "end": end,
                "lag": lag_count,
                "oldest_ms": None if first is None else _oldest_ms(view, topic, queue_id, first),
            }
        )
    return found


def _oldest_ms(view: StoreView, topic: str, queue_id: int, index: int) -> int | None:
    """Return when the message of an entry was stored; None if that cannot be read."""
    queue = view.reader.queues[topic, queue_id]
    index = max(index, queue.start // fmt.ENTRY_BYTES)
    for offset in read_entries(queue, index, 1)["offset"].tolist():
        if view.reader.commitlog.start <= offset < view.log_stop:
            return stored_ms(view, offset)
    return None
