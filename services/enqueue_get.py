"""Enqueue-get: reads the timer topic's queue for enqueue-put.

It moves `GOT` over the entries of the queue in order. After RocketMQ's
`TimerMessageStore.TimerEnqueueGetService`.
"""

from __future__ import annotations

from typing import Any, Final

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
    ring_count,
)
from timerstore.timelog.format import ENTRY_BYTES, ENTRY_OFFSET_AT, ENTRY_SIZE_AT
from timerstore.timelog.intrinsics import get_i32, get_i64, load_acquire
from timerstore.timelog.kernel import inlined
from timerstore.timelog.message import (
    DELETES_BYTES,
    DUE_MS,
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    SIZE,
    exact_due_ms,
    identify_target,
    java_hash,
    read_message,
)
from timerstore.timelog.segments import SEGMENT_BYTES, segment_at
from timerstore.wheel.state import (
    COMMITLOG_READ,
    COUNT_UNREADABLE,
    GOT,
    LAST_UNREADABLE,
    NEED,
    NEED_OFFSET,
    PRECISION,
    STORE_TAG,
    TIMER_QUEUE_READ,
)

BATCH_COUNT: Final = 512


@inlined
def enqueue_get(world: Any) -> int:
    """Read up to BATCH_COUNT entries; return how many. Under the step lock. O(bytes read)."""
    words = world.words
    got = words[GOT]
    room = RING_COUNT - ring_count(world.ring_words, ENQUEUE_RING)
    count = min(min(load_acquire(world.queues.next_index, 0) - got, room), BATCH_COUNT)
    done = 0
    while done < count:
        entry_offset = (got + done) * ENTRY_BYTES
        entries = segment_at(world.timer_queue, entry_offset)
        if len(entries) == 0:
            words[NEED] = TIMER_QUEUE_READ
            words[NEED_OFFSET] = entry_offset
            break
        entry_at = entry_offset % world.timer_queue.words[SEGMENT_BYTES]
        message = get_i64(entries, entry_at + ENTRY_OFFSET_AT)
        size = get_i32(entries, entry_at + ENTRY_SIZE_AT)
        buf = segment_at(world.commitlog, message)
        if len(buf) == 0:
            words[NEED] = COMMITLOG_READ
            words[NEED_OFFSET] = message
            break
        _hand_on(world, buf, message, size)
        done += 1
    words[GOT] = got + done
    return done


@inlined
def _hand_on(world: Any, buf: Any, message: int, size: int) -> None:
    """Read one message into the enqueue-put queue."""
    words, found, ring = world.words, world.found, world.enqueue_ring
    tail = world.ring_words[ENQUEUE_RING + RING_TAIL]
    at = (tail & (RING_COUNT - 1)) * ENQUEUE_COLUMNS
    ring[at + ENQUEUE_MESSAGE] = message
    ring[at + ENQUEUE_SIZE] = size
    position = message % world.commitlog.words[SEGMENT_BYTES]
    status = read_message(buf, position, found, False)
    if status != GOOD or found[SIZE] != size or found[DUE_MS] < 0 or found[REAL_TOPIC_BYTES] < 0:
        ring[at + ENQUEUE_KIND] = KIND_UNREADABLE
        words[COUNT_UNREADABLE] += 1
        words[LAST_UNREADABLE] = message
    else:
        tag = words[STORE_TAG]
        ring[at + ENQUEUE_KIND] = KIND_TIMER
        if found[DELETES_BYTES] >= 0:
            ring[at + ENQUEUE_KIND] = KIND_DELETE
            identify_target(buf, found, tag)
            ring[at + ENQUEUE_HIGH] = found[IDENTITY_HIGH]
            ring[at + ENQUEUE_LOW] = found[IDENTITY_LOW]
        ring[at + ENQUEUE_OUT_MS] = found[DUE_MS]
        ring[at + ENQUEUE_DUE_MS] = exact_due_ms(buf, found, tag, words[PRECISION])
        ring[at + ENQUEUE_HASH] = java_hash(buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES])
    world.ring_words[ENQUEUE_RING + RING_TAIL] = tail + 1
