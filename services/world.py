"""What the service kernels work on: all shared arrays of a store.

Four of the services form a pipeline, the fifth stands beside it; each takes the whole `World`:

    timer topic's queue → enqueue-get → [enqueue-put queue] → enqueue-put → timer log + wheel
    wheel → dequeue-get → near wheel → [dequeue-put queue] → dequeue-put → commit log
    queues of the delay levels → deliver-levels → commit log

Both queues are rings in shared arrays. A full ring makes its producer stop; that is the flow
control. Each is used under the step lock, by one producer and one consumer.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.services.levels import LevelTable
from timerstore.timelog.append import STAGE_COUNT_MAX, QueueTable, Stage, new_stage
from timerstore.timelog.kernel import inlined
from timerstore.timelog.message import FOUND_WORDS
from timerstore.timelog.record import Bytes, Words, record
from timerstore.timelog.segments import TABLE_LENGTH, SegmentTable
from timerstore.wheel.near import NearWheel
from timerstore.wheel.slots import SlotArray

RING_COUNT: Final = 4_096
"""Entries of each queue between services: about a millisecond's work at full speed."""
RING_HEAD: Final = 0
RING_TAIL: Final = 1

# Columns of the enqueue-put queue.
ENQUEUE_OUT_MS: Final = 0  # TIMER_OUT_MS: the unit's time
ENQUEUE_DUE_MS: Final = 1  # exact
ENQUEUE_MESSAGE: Final = 2
ENQUEUE_SIZE: Final = 3
ENQUEUE_HASH: Final = 4
ENQUEUE_KIND: Final = 5
ENQUEUE_HIGH: Final = 6  # of a delete: its target's identity
ENQUEUE_LOW: Final = 7
ENQUEUE_COLUMNS: Final = 8
KIND_TIMER: Final = 0
KIND_DELETE: Final = 1
KIND_UNREADABLE: Final = 2

# Columns of the dequeue-put queue.
DEQUEUE_MESSAGE: Final = 0
DEQUEUE_INFO: Final = 1  # as in the near wheel's node
DEQUEUE_MS: Final = 2  # the bucket it was taken from
DEQUEUE_COLUMNS: Final = 3

WAITER_COUNT_MAX: Final = 64
"""Threads that can wait for messages at once without polling."""

LATENESS_BUCKETS: Final = 512
"""Lateness histogram: exact below 256 ms, then 8 steps for each doubling."""


@record
class World:
    """All arrays of an open store that service kernels use."""

    words: Words  # int64[WORDS], see wheel/state.py
    step_lock: Words  # int64[LOCK_WORDS]
    append_lock: Words  # int64[LOCK_WORDS]
    commitlog: SegmentTable
    queues: QueueTable
    timer_queue: SegmentTable  # the timer topic's queue, to read
    timerlog: SegmentTable
    wheel: SlotArray
    near: NearWheel
    levels: LevelTable
    latest_slot: Words  # int64[TABLE_LENGTH]: of all units into a commit log segment, by number
    enqueue_ring: Words  # int64[RING_COUNT * ENQUEUE_COLUMNS]
    dequeue_ring: Words  # int64[RING_COUNT * DEQUEUE_COLUMNS]
    ring_words: Words  # int64[32]: head and tail of each ring, a cache line apart
    stage: Stage  # dequeue-put's and deliver-levels'
    outcome: Words  # int64[RING_COUNT]: their scratch
    staged_due: Words  # int64[STAGE_COUNT_MAX]: their scratch
    found: Words  # int64[FOUND_WORDS]: scratch of whoever holds the step lock
    scratch: Bytes  # uint8[64]
    lateness: Words  # int64[LATENESS_BUCKETS]: fired timers by ms late
    waiters: (
        Words  # int64[2 * WAITER_COUNT_MAX]: eventfd, then 1 where its consumer wants to be woken
    )
    poll: Words  # int64[8], see wait_readable
    clock: Words  # int64[8]: scratch of clock_ms


ENQUEUE_RING: Final = 0
DEQUEUE_RING: Final = 16


@inlined
def ring_count(words: Any, ring: int) -> int:
    """Return how many entries wait in a ring."""
    return words[ring + RING_TAIL] - words[ring + RING_HEAD]


def new_world(
    words: Words,
    step_lock: Words,
    append_lock: Words,
    commitlog: SegmentTable,
    queues: QueueTable,
    timer_queue: SegmentTable,
    timerlog: SegmentTable,
    wheel: SlotArray,
    near: NearWheel,
    levels: LevelTable,
    poll: Words,
) -> World:
    """Return a world over these arrays, with empty queues."""
    return World(
        words=words,
        step_lock=step_lock,
        append_lock=append_lock,
        commitlog=commitlog,
        queues=queues,
        timer_queue=timer_queue,
        timerlog=timerlog,
        wheel=wheel,
        near=near,
        levels=levels,
        latest_slot=np.full(TABLE_LENGTH, -1, np.int64),
        enqueue_ring=np.zeros(RING_COUNT * ENQUEUE_COLUMNS, np.int64),
        dequeue_ring=np.zeros(RING_COUNT * DEQUEUE_COLUMNS, np.int64),
        ring_words=np.zeros(32, np.int64),
        stage=new_stage(),
        outcome=np.zeros(RING_COUNT, np.int64),
        staged_due=np.zeros(STAGE_COUNT_MAX, np.int64),
        found=np.zeros(FOUND_WORDS, np.int64),
        scratch=np.zeros(64, np.uint8),
        lateness=np.zeros(LATENESS_BUCKETS, np.int64),
        waiters=np.full(2 * WAITER_COUNT_MAX, -1, np.int64),
        poll=poll,
        clock=np.zeros(8, np.int64),
    )


@inlined
def lateness_bucket(late_ms: int) -> int:
    """Return the histogram's bucket of a lateness >= 0."""
    if late_ms < 256:
        return late_ms
    octave = 0
    while late_ms >= 512 and octave < 31:
        late_ms >>= 1
        octave += 1
    return min(LATENESS_BUCKETS - 1, 256 + octave * 8 + ((late_ms - 256) >> 5))


def bucket_lateness_ms(bucket: int) -> int:
    """Return the smallest lateness of a histogram's bucket."""
    if bucket < 256:
        return bucket
    octave, step = divmod(bucket - 256, 8)
    return (256 + 32 * step) << octave
