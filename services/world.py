"""What the service kernels work on: all shared arrays of a store.

Four of the services form a pipeline, the fifth stands beside it. Each has a thread of its own:

    timer topic's queue → enqueue-get → [A] → enqueue-put → timer log + wheel
                                                  └ late arrivals [B] ┐
    wheel → dequeue-get → near wheel ←────────────────────────────────┘
            dequeue-get → [C] → dequeue-put → commit log
    queues of the delay levels → deliver-levels → commit log

The queues between them are rings in shared arrays, of one producer and one consumer each: the
producer stores the tail with release order, the consumer loads it with acquire order, and the other
way round for the head. A full ring makes its producer stop; that is the flow control.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.services.levels import LevelTable
from timerstore.services.stages import new_stages
from timerstore.services.state import (
    CANCEL,
    CLEANING,
    DELIVER_LEVELS,
    DEQUEUE_GET,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    ENQUEUE_PUT,
    FLUSH,
    LOST_COLUMNS,
    LOST_INFO,
    LOST_MESSAGE,
    PASS_COLUMNS,
    PASS_COUNT_MAX,
    Callers,
    Cleaning,
    CopyCounts,
    DeliverLevels,
    DequeueGet,
    DequeuePut,
    DoneSources,
    EnqueueGet,
    EnqueuePut,
    Flush,
    ServiceThread,
    Wakeups,
    new_thread,
)
from timerstore.timelog.append import STAGE_COUNT_MAX, QueueTable, Stage, new_stage
from timerstore.timelog.jit.acting import CALLER
from timerstore.timelog.jit.intrinsics import load_acquire
from timerstore.timelog.jit.kernel import inlined
from timerstore.timelog.jit.locks import ServiceLocks
from timerstore.timelog.jit.record import Bytes, Words, own, record
from timerstore.timelog.message import FOUND_WORDS
from timerstore.timelog.segmenttable import TABLE_LENGTH, SegmentTable
from timerstore.wheel.cancelled import CancelledSet
from timerstore.wheel.near import NearWheel
from timerstore.wheel.settings import Settings
from timerstore.wheel.slots import SlotArray

RING_COUNT: Final = 4_096
"""Entries of each queue between services: about a millisecond's work at full speed."""
RING_HEAD: Final = 0
RING_TAIL: Final = 8

# Columns of the enqueue-put queue, ring A.
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

# Columns of the late arrivals, ring B: units linked into a slot that was claimed.
LATE_SLOT: Final = 0
LATE_MAGIC: Final = 1
LATE_MESSAGE: Final = 2
LATE_SIZE: Final = 3
LATE_DUE_MS: Final = 4
LATE_COLUMNS: Final = 5

# Columns of the dequeue-put queue, ring C.
DEQUEUE_MESSAGE: Final = 0
DEQUEUE_INFO: Final = 1  # as in the near wheel's entry
DEQUEUE_MS: Final = 2  # the bucket it was taken from; of a plain delete: its slot
DEQUEUE_COLUMNS: Final = 3

WAITER_COUNT_MAX: Final = 64
"""Threads that can wait for messages at once without polling."""

PUTTERS_WOKEN_AT: Final = 2 * WAITER_COUNT_MAX
"""In `putters`: who waits to put is woken once only so many entries of the timer topic's queue are
unread; −1 where nobody waits."""

LATENESS_BUCKETS: Final = 512
"""Lateness histogram: exact below 256 ms, then 8 steps for each doubling."""


@record
class World:
    """All arrays of an open store that service kernels use."""

    settings: Settings
    enqueue_get: EnqueueGet
    enqueue_put: EnqueuePut
    dequeue_get: DequeueGet
    aside: DequeueGet  # the same of the slots that were put aside, see aside.py
    deliver_levels: DeliverLevels
    dequeue_put: DequeuePut
    cancelled: CancelledSet
    done: DoneSources
    wakeups: Wakeups
    flush: Flush
    cleaning: Cleaning
    callers: Callers
    fire_lock: Words  # int64[LOCK_WORDS], like the other locks; see services/state.py
    near_lock: Words
    wheel_lock: Words
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
    late_ring: Words  # int64[RING_COUNT * LATE_COLUMNS]
    dequeue_ring: Words  # int64[RING_COUNT * DEQUEUE_COLUMNS]
    ring_words: Words  # int64[64]: head and tail of each ring, a cache line each
    stage: Stage  # of whoever holds fire: dequeue-put's and deliver-levels'
    outcome: Words  # of what is taken at once, scratch under fire
    targets: Words  # int64[2 * RING_COUNT]: who the deletes among them cancel, scratch under fire
    staged_due: Words  # int64[STAGE_COUNT_MAX]: scratch under fire
    found: Words  # int64[FOUND_WORDS]: scratch of recovery
    scratch: Bytes  # uint8[64]: scratch of recovery
    lateness: Words  # int64[LATENESS_BUCKETS]: fired timers by ms late
    stages: Words  # see stages.py
    waiters: (
        Words  # int64[2 * WAITER_COUNT_MAX]: eventfd, then 1 where its consumer wants to be woken
    )
    putters: Words  # int64[2 * WAITER_COUNT_MAX + 1]: as `waiters`, of who waits to put
    clock: Words  # int64[8]: scratch of clock_ms under fire


ENQUEUE_RING: Final = 0
LATE_RING: Final = 16
DEQUEUE_RING: Final = 32


@inlined
def ring_count(words: Any, ring: int) -> int:
    """Return how many entries wait in a ring."""
    return load_acquire(words, ring + RING_TAIL) - load_acquire(words, ring + RING_HEAD)


@inlined
def service_of(world: World, service: int) -> ServiceThread:
    """Return what a service has as every one, by its number."""
    found = world.enqueue_get.thread
    if service == ENQUEUE_PUT:
        found = world.enqueue_put.thread
    elif service == DEQUEUE_GET:
        found = world.dequeue_get.thread
    elif service == DELIVER_LEVELS:
        found = world.deliver_levels.thread
    elif service == DEQUEUE_PUT:
        found = world.dequeue_put.thread
    return found


def new_world(
    settings: Settings,
    locks: ServiceLocks,
    append_lock: Words,
    commitlog: SegmentTable,
    queues: QueueTable,
    timer_queue: SegmentTable,
    timerlog: SegmentTable,
    wheel: SlotArray,
    near: NearWheel,
    levels: LevelTable,
    cancelled: CancelledSet,
    eventfds: list[int],
) -> World:
    """Return a world over these arrays, with empty queues; `eventfds`: one for each service."""
    threads = [new_thread(service, eventfd) for service, eventfd in enumerate(eventfds)]
    return World(
        settings=own(settings),
        enqueue_get=own(EnqueueGet(threads[ENQUEUE_GET]), ENQUEUE_GET),
        enqueue_put=own(EnqueuePut(threads[ENQUEUE_PUT]), ENQUEUE_PUT),
        dequeue_get=own(DequeueGet(threads[DEQUEUE_GET]), DEQUEUE_GET),
        aside=own(DequeueGet(threads[DEQUEUE_GET]), DEQUEUE_GET),
        deliver_levels=own(
            DeliverLevels(threads[DELIVER_LEVELS], own(CopyCounts(), DELIVER_LEVELS)),
            DELIVER_LEVELS,
        ),
        dequeue_put=own(
            DequeuePut(threads[DEQUEUE_PUT], own(CopyCounts(), DEQUEUE_PUT)), DEQUEUE_PUT
        ),
        cancelled=own(cancelled, DEQUEUE_PUT, DELIVER_LEVELS, CANCEL),
        done=own(DoneSources()),
        wakeups=Wakeups(),
        flush=own(Flush(), FLUSH),
        cleaning=own(
            Cleaning(new_thread(CLEANING, -1), np.zeros(PASS_COUNT_MAX * PASS_COLUMNS, np.int64)),
            CLEANING,
        ),
        callers=own(Callers(), CALLER),
        fire_lock=locks.fire.words,
        near_lock=locks.near.words,
        wheel_lock=locks.wheel.words,
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
        late_ring=np.zeros(RING_COUNT * LATE_COLUMNS, np.int64),
        dequeue_ring=np.zeros(RING_COUNT * DEQUEUE_COLUMNS, np.int64),
        ring_words=np.zeros(64, np.int64),
        stage=new_stage(),
        outcome=np.zeros(max(RING_COUNT, STAGE_COUNT_MAX), np.int64),
        targets=np.zeros(2 * RING_COUNT, np.int64),
        staged_due=np.zeros(STAGE_COUNT_MAX, np.int64),
        found=np.zeros(FOUND_WORDS, np.int64),
        scratch=np.zeros(64, np.uint8),
        lateness=np.zeros(LATENESS_BUCKETS, np.int64),
        stages=new_stages(),
        waiters=np.full(2 * WAITER_COUNT_MAX, -1, np.int64),
        putters=np.full(2 * WAITER_COUNT_MAX + 1, -1, np.int64),
        clock=np.zeros(8, np.int64),
    )


@inlined
def note_lost(service: ServiceThread, message: int, info: int) -> None:
    """Note that a service passed a message by; before its next step Python names it."""
    at = service.lost_count * LOST_COLUMNS
    service.lost[at + LOST_MESSAGE] = message
    service.lost[at + LOST_INFO] = info
    service.lost_count += 1
    service.unreadable_count += 1
    service.unreadable_offset = message


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
