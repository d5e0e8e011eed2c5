"""What the service kernels work on: all shared arrays of a store.

Four of the services form a pipeline, the fifth stands beside it. Each has a thread of its own:

    timer topic's queue → enqueue-get → [enqueue ring] → enqueue-put → timer log + wheel
                                                             └ late arrivals [late ring] ┐
    wheel → dequeue-get → near wheel ←───────────────────────────────────────────────────┘
            dequeue-get → [dequeue ring] → dequeue-put → commit log
    queues of the delay levels → deliver-levels → commit log

The queues between them are rings, see `rings.py`. A full one makes its producer stop; that is the
flow control.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.acting import CALLER
from timerstore.jit.kernel import inlined
from timerstore.jit.lent import new_lent
from timerstore.jit.locks import new_lock
from timerstore.jit.record import Words, own, record
from timerstore.services.world.level_arrays import LevelTable
from timerstore.services.world.rings import (
    RING_COUNT,
    DequeueRing,
    EnqueueRing,
    LateRing,
    new_dequeue_ring,
    new_enqueue_ring,
    new_late_ring,
)
from timerstore.services.world.stages import new_stages
from timerstore.services.world.state import (
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
    PREFETCH,
    Callers,
    Cleaning,
    CopyCounts,
    DeliverLevels,
    DequeueGet,
    DequeuePut,
    EnqueueGet,
    EnqueuePut,
    Flush,
    OffsetMap,
    Prefetch,
    ServiceThread,
    Wakeups,
    new_pages,
    new_prefetch,
    new_thread,
)
from timerstore.timelog.files.segmenttable import TABLE_LENGTH, SegmentTable
from timerstore.timelog.writing.append import STAGE_COUNT_MAX, QueueTable, Stage, new_stage
from timerstore.wheel.cancelled import CancelledSet
from timerstore.wheel.near import NearWheel
from timerstore.wheel.settings import Settings
from timerstore.wheel.timerwheel import SlotArray

WAITER_COUNT_MAX: Final = 64
"""Threads that can wait for messages at once without polling."""
# What a place of `waiters` says first, if not an eventfd.
NO_WAITER: Final = -1
SLEEPER: Final = -2
"""A thread that sleeps while its second word is 1."""
WAITER_LIMITS: Final = 2 * WAITER_COUNT_MAX
"""From there on `waiters` has a struct timespec for each place: how long its thread sleeps."""
WAITER_WORDS: Final = 4 * WAITER_COUNT_MAX

PUTTERS_WOKEN_AT: Final = WAITER_WORDS
"""In `putters`: who waits to put is woken once only so many entries of the timer topic's queue are
unread; −1 if nobody waits."""

LATENESS_BUCKETS: Final = 512
"""Lateness histogram: exact below 256 ms, then 8 steps for each doubling."""


@record
class World:
    """All arrays of an open store that service kernels use."""

    settings: Settings
    enqueue_get: EnqueueGet
    enqueue_put: EnqueuePut
    dequeue_get: DequeueGet
    deliver_levels: DeliverLevels
    dequeue_put: DequeuePut
    cancelled: CancelledSet
    done: OffsetMap  # the sources that an earlier life copied, each with its copy
    hopped: OffsetMap  # an earlier life's hops: each message's last unit, by its offset
    wakeups: Wakeups
    flush: Flush
    cleaning: Cleaning
    prefetch: Prefetch
    callers: Callers
    fire_lock: Words  # int64[LOCK_WORDS], like the other locks; see services/world/state.py
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
    enqueue_ring: EnqueueRing
    late_ring: LateRing
    dequeue_ring: DequeueRing
    stage: Stage  # of the thread that holds fire: dequeue-put's and deliver-levels'
    outcome: Words  # of what is taken at once, scratch under fire
    targets: Words  # int64[2 * RING_COUNT]: who the deletes among them cancel, scratch under fire
    staged_due: Words  # int64[STAGE_COUNT_MAX]: scratch under fire
    lateness: Words  # int64[LATENESS_BUCKETS]: fired timers by ms late
    stages: Words  # see stages.py
    # int64[WAITER_WORDS]: an eventfd, SLEEPER or NO_WAITER, then 1 if its consumer is to be woken;
    # places are taken in their order.
    waiters: Words
    putters: Words  # int64[WAITER_WORDS + 1]: as `waiters`, of who waits to put
    clock: Words  # int64[8]: scratch of clock_ms under fire


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
        dequeue_get=own(
            DequeueGet(threads[DEQUEUE_GET], new_pages(), np.zeros(2, np.int64)), DEQUEUE_GET
        ),
        deliver_levels=own(
            DeliverLevels(threads[DELIVER_LEVELS], own(CopyCounts(), DELIVER_LEVELS)),
            DELIVER_LEVELS,
        ),
        dequeue_put=own(
            DequeuePut(threads[DEQUEUE_PUT], own(CopyCounts(), DEQUEUE_PUT), new_pages()),
            DEQUEUE_PUT,
        ),
        cancelled=own(cancelled, DEQUEUE_PUT, DELIVER_LEVELS, CANCEL),
        done=own(OffsetMap(new_lent(1))),
        hopped=own(OffsetMap(new_lent(1))),
        wakeups=Wakeups(),
        flush=own(Flush(), FLUSH),
        cleaning=own(
            Cleaning(new_thread(CLEANING, -1), np.zeros(PASS_COUNT_MAX * PASS_COLUMNS, np.int64)),
            CLEANING,
        ),
        prefetch=own(new_prefetch(), PREFETCH),
        callers=own(Callers(), CALLER),
        fire_lock=new_lock(),
        near_lock=new_lock(),
        wheel_lock=new_lock(),
        append_lock=new_lock(),
        commitlog=commitlog,
        queues=queues,
        timer_queue=timer_queue,
        timerlog=timerlog,
        wheel=wheel,
        near=own(near, DEQUEUE_GET),
        levels=own(levels, DELIVER_LEVELS, CALLER),
        latest_slot=np.full(TABLE_LENGTH, -1, np.int64),
        enqueue_ring=new_enqueue_ring(),
        late_ring=new_late_ring(),
        dequeue_ring=new_dequeue_ring(),
        stage=own(new_stage(), DEQUEUE_PUT, DELIVER_LEVELS, CANCEL, CLEANING),
        outcome=np.zeros(max(RING_COUNT, STAGE_COUNT_MAX), np.int64),
        targets=np.zeros(2 * RING_COUNT, np.int64),
        staged_due=np.zeros(STAGE_COUNT_MAX, np.int64),
        lateness=np.zeros(LATENESS_BUCKETS, np.int64),
        stages=new_stages(),
        waiters=np.full(WAITER_WORDS, NO_WAITER, np.int64),
        putters=np.full(WAITER_WORDS + 1, NO_WAITER, np.int64),
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
