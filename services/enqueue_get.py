"""Enqueue-get: reads the timer topic's queue for enqueue-put.

It moves `fetched_index` over the entries of the queue in order. After RocketMQ's
`TimerMessageStore.TimerEnqueueGetService`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.services.needs import BAD_ENTRY, COMMITLOG_READ, LOST, TIMER_QUEUE_READ
from timerstore.services.state import INFO_UNLINKED, tell_need
from timerstore.services.world import (
    ENQUEUE_COLUMNS,
    ENQUEUE_DUE_MS,
    ENQUEUE_HASH,
    ENQUEUE_HIGH,
    ENQUEUE_KIND,
    ENQUEUE_LOW,
    ENQUEUE_MESSAGE,
    ENQUEUE_OUT_MS,
    ENQUEUE_RING,
    ENQUEUE_SIZE,
    KIND_DELETE,
    KIND_TIMER,
    KIND_UNREADABLE,
    RING_COUNT,
    RING_TAIL,
    World,
    note_lost,
    ring_count,
)
from timerstore.timelog.append import (
    TOLD_COLUMNS,
    TOLD_COUNT,
    TOLD_DUE_MS,
    TOLD_INDEX,
    TOLD_MESSAGE,
    TOLD_SIZE_HASH,
)
from timerstore.timelog.format import (
    ENTRY_BYTES,
    ENTRY_OFFSET_AT,
    ENTRY_SIZE_AT,
    MESSAGE_OFFSET_AT,
    MESSAGE_QUEUE_INDEX_AT,
    QUEUE_LOST_SIZE,
    TIMER_TOPIC,
)
from timerstore.timelog.format import MESSAGE_QUEUE_ID_AT as QUEUE_ID_AT
from timerstore.timelog.jit.intrinsics import get_i32, get_i64, get_u8, load_acquire, store_release
from timerstore.timelog.jit.kernel import inlined
from timerstore.timelog.jit.record import Words, publish
from timerstore.timelog.message import (
    AT,
    BAD_PARTS,
    DELETES_BYTES,
    DUE_MS,
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    SIZE,
    TOPIC_AT,
    TOPIC_BYTES,
    exact_due_ms,
    identify_target,
    java_hash,
    read_message,
)
from timerstore.timelog.segmenttable import END, SEGMENT_BYTES, segment_at

BATCH_COUNT: Final = 512
_TIMER_TOPIC = np.frombuffer(TIMER_TOPIC, np.uint8).copy()


@inlined
def enqueue_get(world: World) -> int:
    """Read up to BATCH_COUNT entries; return how many. Takes no lock. O(bytes read)."""
    mine = world.enqueue_get.thread
    if mine.lost_count > 0:
        mine.need = LOST
        return 0
    got = world.enqueue_get.fetched_index
    room = RING_COUNT - ring_count(world.ring_words, ENQUEUE_RING)
    count = min(min(load_acquire(world.queues.next_index, 0) - got, room), BATCH_COUNT)
    done = 0
    while done < count:
        if _take_told(world, got + done):
            done += 1
            continue
        entry_offset = (got + done) * ENTRY_BYTES
        entries = segment_at(world.timer_queue, entry_offset)
        if len(entries) == 0:
            tell_need(mine, TIMER_QUEUE_READ, entry_offset)
            break
        entry_at = entry_offset % world.timer_queue.words[SEGMENT_BYTES]
        message = get_i64(entries, entry_at + ENTRY_OFFSET_AT)
        size = get_i32(entries, entry_at + ENTRY_SIZE_AT)
        buf = segment_at(world.commitlog, message)
        if len(buf) == 0 and 0 <= message < world.commitlog.words[END]:
            tell_need(mine, COMMITLOG_READ, message)
            break
        if not _take_read(world, buf, message, size, got + done):
            tell_need(mine, BAD_ENTRY, got + done)
            break
        done += 1
    publish(world.enqueue_get, "fetched_index", got + done)
    return done


@inlined
def _take_told(world: World, index: int) -> bool:
    """Hand on a timer that its put has told of; False where that was overwritten."""
    told, at = world.queues.told, (index & (TOLD_COUNT - 1)) * TOLD_COLUMNS
    if load_acquire(told, at + TOLD_INDEX) != index:
        return False
    message = load_acquire(told, at + TOLD_MESSAGE)
    due_ms = load_acquire(told, at + TOLD_DUE_MS)
    packed = load_acquire(told, at + TOLD_SIZE_HASH)
    if load_acquire(told, at + TOLD_INDEX) != index:
        return False
    topic_hash = ((packed & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
    _hand_on(world, KIND_TIMER, message, packed >> 32, due_ms, due_ms, topic_hash)
    return True


@inlined
def _take_read(world: World, buf: Any, message: int, size: int, index: int) -> bool:
    """Read one message, and hand it on; False where it is not that of its entry."""
    mine, found = world.enqueue_get.thread, world.enqueue_get.thread.found
    position = message % world.commitlog.words[SEGMENT_BYTES]
    status = BAD_PARTS
    if 0 <= message < world.commitlog.words[END]:
        status = read_message(buf, position, found, world.settings.recovering != 0)
    sound = status == GOOD and found[SIZE] == size and found[DUE_MS] >= 0
    sound = sound and found[REAL_TOPIC_BYTES] >= 0 and _is_of_entry(buf, found, message, index)
    if not sound:
        if world.enqueue_get.lost_index != index or mine.lost_count > 0:
            return False
        if status != GOOD or size != QUEUE_LOST_SIZE:  # else a broker has left the entry out
            note_lost(mine, message, INFO_UNLINKED)
        _hand_on(world, KIND_UNREADABLE, message, size, 0, 0, 0)
        return True
    tag, kind = world.settings.store_tag, KIND_TIMER
    if found[DELETES_BYTES] >= 0:
        kind = KIND_DELETE
        identify_target(buf, found, tag)
    due_ms = exact_due_ms(buf, found, tag, world.settings.precision_ms)
    topic_hash = java_hash(buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES])
    _hand_on(world, kind, message, size, found[DUE_MS], due_ms, topic_hash)
    return True


@inlined
def _hand_on(
    world: World, kind: int, message: int, size: int, out_ms: int, due_ms: int, topic_hash: int
) -> None:
    """Write an entry of the enqueue-put queue; a delete's target stands in `found`."""
    ring, found = world.enqueue_ring, world.enqueue_get.thread.found
    tail = world.ring_words[ENQUEUE_RING + RING_TAIL]
    at = (tail & (RING_COUNT - 1)) * ENQUEUE_COLUMNS
    ring[at + ENQUEUE_KIND] = kind
    ring[at + ENQUEUE_MESSAGE] = message
    ring[at + ENQUEUE_SIZE] = size
    ring[at + ENQUEUE_OUT_MS] = out_ms
    ring[at + ENQUEUE_DUE_MS] = due_ms
    ring[at + ENQUEUE_HASH] = topic_hash
    if kind == KIND_DELETE:
        ring[at + ENQUEUE_HIGH] = found[IDENTITY_HIGH]
        ring[at + ENQUEUE_LOW] = found[IDENTITY_LOW]
    store_release(world.ring_words, ENQUEUE_RING + RING_TAIL, tail + 1)


@inlined
def _is_of_entry(buf: Any, found: Words, message: int, index: int) -> bool:
    """Tell whether a message that was read is the one that stands at `index` of the timer queue."""
    at = found[AT]
    if get_i64(buf, at + MESSAGE_OFFSET_AT) != message:
        return False
    if get_i64(buf, at + MESSAGE_QUEUE_INDEX_AT) != index or get_i32(buf, at + QUEUE_ID_AT) != 0:
        return False
    if found[TOPIC_BYTES] != len(_TIMER_TOPIC):
        return False
    for i in range(len(_TIMER_TOPIC)):
        if get_u8(buf, found[TOPIC_AT] + i) != _TIMER_TOPIC[i]:
            return False
    return True
