"""Enqueue-get: reads the timer topic's queue for enqueue-put.

It moves `fetched_index` over the entries of the queue in order. After RocketMQ's
`TimerMessageStore.TimerEnqueueGetService`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.intrinsics import get_i32, get_i64, load_acquire
from timerstore.jit.kernel import inlined
from timerstore.jit.record import Bytes, publish
from timerstore.services.world import needs
from timerstore.services.world.state import (
    INFO_UNLINKED,
    KIND_DELETE,
    KIND_TIMER,
    KIND_UNREADABLE,
    RING_COUNT,
    place_of,
    tell_need,
    waiting_count,
)
from timerstore.services.world.world import World, note_lost
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import (
    BAD_PARTS,
    GOOD,
    exact_due_ms,
    identify_target,
    java_hash,
    read_message,
)
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.reading.scan import stands_there
from timerstore.timelog.writing.append import (
    TOLD_COLUMNS,
    TOLD_COUNT,
    TOLD_DUE_MS,
    TOLD_INDEX,
    TOLD_MESSAGE,
    TOLD_SIZE_HASH,
)
from timerstore.wheel.timerwheel import CHECKING

BATCH_COUNT: Final = 512
_TIMER_TOPIC = np.frombuffer(fmt.TIMER_TOPIC, np.uint8).copy()


@inlined
def enqueue_get(world: World) -> int:
    """Read up to BATCH_COUNT entries; return how many. Takes no lock. O(bytes read)."""
    mine = world.enqueue_get.thread
    if mine.lost_count > 0:
        mine.need = needs.LOST
        return 0
    got = world.enqueue_get.fetched_index
    room = RING_COUNT - waiting_count(world.enqueue_ring.ends)
    count = min(min(load_acquire(world.queues.next_index, 0) - got, room), BATCH_COUNT)
    done = 0
    while done < count:
        if _take_told(world, got + done):
            done += 1
            continue
        entry_offset = (got + done) * fmt.ENTRY_BYTES
        entries = segment_at(world.timer_queue, entry_offset)
        if len(entries) == 0:
            tell_need(mine, needs.TIMER_QUEUE_READ, entry_offset)
            break
        entry_at = entry_offset % world.timer_queue.segment_bytes
        message = get_i64(entries, entry_at + fmt.ENTRY_OFFSET_AT)
        size = get_i32(entries, entry_at + fmt.ENTRY_SIZE_AT)
        if world.enqueue_get.said_index == got + done:
            message, size = world.enqueue_get.said_message, world.enqueue_get.said_size
        buf = segment_at(world.commitlog, message)
        if len(buf) == 0 and 0 <= message < world.commitlog.end:
            tell_need(mine, needs.COMMITLOG_READ, message)
            break
        if not _take_read(world, buf, message, size, got + done):
            tell_need(mine, needs.BAD_ENTRY, got + done)
            break
        done += 1
    publish(world.enqueue_get, "fetched_index", got + done)
    return done


@inlined
def _take_told(world: World, index: int) -> bool:
    """Hand on what its put, or its cancel, has told of; False if that was overwritten."""
    told, at = world.queues.told, (index & (TOLD_COUNT - 1)) * TOLD_COLUMNS
    if load_acquire(told, at + TOLD_INDEX) != index:
        return False
    message = load_acquire(told, at + TOLD_MESSAGE)
    due_ms = load_acquire(told, at + TOLD_DUE_MS)
    packed = load_acquire(told, at + TOLD_SIZE_HASH)
    if load_acquire(told, at + TOLD_INDEX) != index:
        return False
    topic_hash, size = ((packed & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000, packed >> 32
    kind = KIND_DELETE if size < 0 else KIND_TIMER
    _hand_on(world, kind, message, abs(size), due_ms, due_ms, topic_hash)
    return True


@inlined
def _take_read(world: World, buf: Bytes, message: int, size: int, index: int) -> bool:
    """Read one message, and hand it on; False if it is not that of its entry."""
    mine, found = world.enqueue_get.thread, world.enqueue_get.thread.found
    position = message % world.commitlog.segment_bytes
    status = BAD_PARTS
    if 0 <= message < world.commitlog.end:
        verify = world.settings.recovering == CHECKING
        status = read_message(buf, position, message, found, verify)
    sound = status == GOOD and found.size == size and found.due_ms >= 0
    sound = sound and found.real_topic_bytes >= 0
    sound = sound and stands_there(buf, position, found, _TIMER_TOPIC, 0, index)
    if not sound:
        if world.enqueue_get.lost_index != index or mine.lost_count > 0:
            return False
        if status != GOOD or size != fmt.QUEUE_LOST_SIZE:  # else a broker left it out
            note_lost(mine, message, INFO_UNLINKED)
        _hand_on(world, KIND_UNREADABLE, message, size, 0, 0, 0)
        return True
    tag, kind = world.settings.store_tag, KIND_TIMER
    if found.deletes_bytes >= 0:
        kind, at = KIND_DELETE, place_of(world.enqueue_ring.ends.tail)
        identify_target(buf, found, tag)
        world.enqueue_ring.high[at] = found.identity_high
        world.enqueue_ring.low[at] = found.identity_low
    due_ms = exact_due_ms(buf, found, tag, world.settings.precision_ms)
    topic_hash = java_hash(buf, found.real_topic_at, found.real_topic_bytes)
    _hand_on(world, kind, message, size, found.due_ms, due_ms, topic_hash)
    return True


@inlined
def _hand_on(
    world: World, kind: int, message: int, size: int, out_ms: int, due_ms: int, topic_hash: int
) -> None:
    """Write an entry of the enqueue-put queue."""
    ring, tail = world.enqueue_ring, world.enqueue_ring.ends.tail
    at = place_of(tail)
    ring.kind[at] = kind
    ring.message[at] = message
    ring.size[at] = size
    ring.out_ms[at] = out_ms
    ring.due_ms[at] = due_ms
    ring.topic_hash[at] = topic_hash
    publish(ring.ends, "tail", tail + 1)
