"""Copying: what dequeue-put does like deliver-levels to copy messages within the commit log.

A message is found, read, given its destination's row, framed into the stage, appended with others,
counted. Each step says by the thread's `need` what it cannot go on without. All under fire, whose
holder the stage belongs to.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from timerstore.jit.intrinsics import get_i64, prefetch, touch_to_read
from timerstore.jit.kernel import inlined, inlined_always
from timerstore.jit.mapping import PAGE_BYTES
from timerstore.jit.record import Bytes, observe
from timerstore.services.world import needs
from timerstore.services.world.state import CopyCounts, ServiceThread, tell_need
from timerstore.services.world.world import World, lateness_bucket
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.limits import fits_segment
from timerstore.timelog.bytes.message import GOOD, MessageParts, java_hash, read_message
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.writing.append import NEED_COMMITLOG, NOT_TOLD, STAGE_BYTES, append
from timerstore.timelog.writing.consumequeue import find_row
from timerstore.timelog.writing.frame import (
    COPY_EXTRA_BYTES,
    ROLLED,
    CopySays,
    Destination,
    frame_copy,
)

# What became of an entry that is not copied; kept in `world.outcome`. What was copied is 0 or more.
SOURCE_CANCELLED: Final = -1
SOURCE_UNREADABLE: Final = -2
SOURCE_WAIT: Final = -3  # there is a need; nothing was done

SOURCE_FOUND: Final = 0

_TIMER_TOPIC_BYTES = len(fmt.TIMER_TOPIC)
_PREFETCHED_BYTES: Final = 448


@inlined
def prefetch_message(world: World, message: int) -> None:
    """Begin to load a message, if its segment is mapped."""
    buf = segment_at(world.commitlog, message)
    position = message % world.commitlog.segment_bytes
    for line in range(0, _PREFETCHED_BYTES, 64):
        prefetch(buf, position + line)


@inlined
def message_at(log: SegmentTable, message: int, size: int) -> tuple[Bytes, int]:
    """Return a message's segment, and how many of its bytes are there: 0 if none is."""
    buf = segment_at(log, message)
    if message < 0 or message >= observe(log, "end") or len(buf) == 0:
        return buf, 0
    return buf, max(1, min(size, STAGE_BYTES, len(buf) - message % log.segment_bytes))


@inlined
def touch_message(log: SegmentTable, message: int, size: int) -> int:
    """Wait for a message's pages, which a service must not do under a lock; return its bytes."""
    buf, size = message_at(log, message, size)
    if size > 0:
        first = message % log.segment_bytes
        for page in range(first, first + size, PAGE_BYTES):
            touch_to_read(buf, page)
        touch_to_read(buf, first + size - 1)
    return size


@inlined
def stage_is_full(staged: int, staged_bytes: int, size: int) -> bool:
    """Tell whether a message's copy may not fit behind those that are staged."""
    return staged > 0 and staged_bytes + size + 256 + COPY_EXTRA_BYTES > STAGE_BYTES


@inlined
def find_source(world: World, thread: ServiceThread, buf: Bytes, message: int) -> int:
    """Tell whether a message's segment `buf` is there: a SOURCE_ constant, WAIT with a need.

    The caller looked the segment up once, and goes on with what was found: a second look may find
    nothing, because another thread drops maps meanwhile.
    """
    if message < 0 or message >= world.commitlog.end:
        return SOURCE_UNREADABLE
    if len(buf) == 0:
        tell_need(thread, needs.COMMITLOG_READ, message)
        return SOURCE_WAIT
    return SOURCE_FOUND


@inlined_always
def read_source(world: World, buf: Bytes, found: MessageParts, message: int, size: int) -> bool:
    """Read a message that was found, in its segment; tell whether it is sound, of this size."""
    position = message % world.commitlog.segment_bytes
    status = read_message(buf, position, message, found, True)
    return status == GOOD and found.size == size and size + 512 <= STAGE_BYTES


@inlined_always
def find_destination(world: World, thread: ServiceThread, buf: Bytes, message: int) -> int:
    """Return the row of the queue that a message that was read is for; −1 with a need."""
    found = thread.found
    topic_at, topic_bytes = found.real_topic_at, found.real_topic_bytes
    row = find_row(world.queues, buf, topic_at, topic_bytes, max(0, found.real_queue))
    if row < 0:
        tell_need(thread, needs.TOPIC, message)
    return row


class Counted(NamedTuple):
    """Which timer a copy is of, as it is counted."""

    row: int  # its destination's
    pending_row: int  # the row in which it was counted, −1 if it stays pending
    due_ms: int
    counted_ms: int  # it was counted as due then


@inlined_always
def stage_copy(
    world: World,
    buf: Bytes,
    found: MessageParts,
    says: CopySays,
    counts: Counted,
    i: int,
    at: int,
) -> int:
    """Frame a copy as number `i` of the stage, at `at`; return its kind or UNREADABLE. O(bytes)."""
    stage = world.stage
    to = Destination(buf, found.real_topic_at, found.real_topic_bytes, max(0, found.real_queue))
    if says.kind == ROLLED:
        to = Destination(world.queues.name, 0, _TIMER_TOPIC_BYTES, 0)
    size = frame_copy(stage.buffer, at, buf, found, to, says)
    if size < 0 or not fits_segment(world.commitlog.segment_bytes, size):
        return SOURCE_UNREADABLE
    stage.size[i] = size
    stage.row[i] = counts.row
    stage.pending_row[i] = counts.pending_row
    stage.pending_change[i] = -1
    stage.counted_ms[i] = counts.counted_ms
    stage.born_ms[i] = get_i64(stage.buffer, at + fmt.MESSAGE_BORN_AT)
    stage.body_bytes[i] = found.body_bytes
    stage.key_at[i] = -1
    stage.due_ms[i] = NOT_TOLD
    stage.keyed[i] = 1 if found.keys_bytes > 0 else 0
    stage.tags_code[i] = 0
    if found.tags_bytes > 0:
        stage.tags_code[i] = java_hash(buf, found.tags_at, found.tags_bytes)
    world.staged_due[i] = counts.due_ms
    return says.kind


@inlined
def append_staged(world: World, thread: ServiceThread, staged: int, stamp_ms: int) -> int:
    """Append what is staged; return how many, with a need if it is not all. O(bytes)."""
    if staged == 0:
        return 0
    stage = world.stage
    appended = append(
        world.commitlog, world.queues, world.append_lock, stage, staged, stamp_ms, False
    )
    if appended < staged:
        if stage.need == NEED_COMMITLOG:
            tell_need(thread, needs.COMMITLOG_SEGMENT, stage.need_at)
        else:
            tell_need(thread, needs.QUEUE_SEGMENT, stage.need_row)
    return appended


@inlined
def count_fired(world: World, counts: CopyCounts, i: int) -> None:
    """Count number `i` of the stage, which was appended just now, by how late it was."""
    late_ms = max(0, world.queues.stored_ms - world.staged_due[i])
    counts.fired_count += 1
    counts.fired_bytes += world.stage.size[i]
    world.lateness[lateness_bucket(late_ms)] += 1
    counts.lateness_sum_ms += late_ms
    counts.lateness_max_ms = max(counts.lateness_max_ms, late_ms)
