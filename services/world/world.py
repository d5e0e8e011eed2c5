"""What the service kernels work on: all shared arrays of a store.

Four of the services form a pipeline, the fifth stands beside it. Each has a thread of its own:

    timer topic's queue → enqueue-get → [enqueue ring] → enqueue-put → timer log + wheel
                                                             └ late arrivals [late ring] ┐
    wheel → dequeue-get → near wheel ←───────────────────────────────────────────────────┘
            dequeue-get → [dequeue ring] → dequeue-put → commit log
    queues of the delay levels → deliver-levels → commit log

The queues between them are rings, see `state.py`. A full one makes its producer stop; that is the
flow control.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.kernel import inlined
from timerstore.jit.locks import lock_acquire, lock_release, new_lock
from timerstore.jit.mapping import new_lent
from timerstore.jit.record import CALLER, Words, add_to_word, exchange_word, own, record
from timerstore.jit.system import wake
from timerstore.services.world.state import (
    CANCEL,
    CLEANING,
    DELIVER_LEVELS,
    DEQUEUE_GET,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    ENQUEUE_PUT,
    LOST_COLUMNS,
    LOST_INFO,
    LOST_MESSAGE,
    PASS_COLUMNS,
    PASS_COUNT_MAX,
    PREFETCH,
    RING_COUNT,
    SERVICE_NAMES,
    Callers,
    Cleaning,
    CopyCounts,
    DeliverLevels,
    DequeueGet,
    DequeuePut,
    DequeueRing,
    Ends,
    EnqueueGet,
    EnqueuePut,
    EnqueueRing,
    LateRing,
    LevelTable,
    OffsetMap,
    Prefetch,
    ServiceThread,
    Wakeups,
    new_pages,
    new_prefetch,
    new_thread,
    ring_columns,
)
from timerstore.timelog.files.segmenttable import TABLE_LENGTH, SegmentTable
from timerstore.timelog.writing.append import STAGE_COUNT_MAX, QueueTable, Stage, new_stage
from timerstore.wheel.cancelled import CancelledSet
from timerstore.wheel.near import NearWheel
from timerstore.wheel.timerwheel import Settings, SlotArray

# --- Stages: what each part of the services' work takes, counted by the thread that does it.
#
# RocketMQ's `perfCounterTicks`. A step is counted once, and only if it did something:
# a stage costs two readings of the clock for hundreds of entries. Each row is written by
# who holds its service's token, and read by anybody, who may see one word before the other.

READ_UNITS: Final = len(SERVICE_NAMES)
READ_MESSAGES: Final = READ_UNITS + 1
STAGE_NAMES: Final = (*SERVICE_NAMES, "read-units", "read-messages")
"""The steps of each service; then what of dequeue-get's was for walking chains of units, and what
of dequeue-put's for reading messages, and making their copies ready."""

# Words of a stage, a cache line.
STAGE_STEPS: Final = 0  # steps that did something
STAGE_ENTRIES: Final = 1  # what they did: entries read, linked, claimed with taken, appended
STAGE_NS: Final = 2
STAGE_LONGEST_NS: Final = 3
STAGE_WORDS: Final = 8


def new_stages() -> Words:
    """Return the words of all stages: int64[len(STAGE_NAMES) * STAGE_WORDS]."""
    return np.zeros(len(STAGE_NAMES) * STAGE_WORDS, np.int64)


@inlined
def count_stage(stages: Words, stage: int, entry_count: int, elapsed_ns: int) -> None:
    """Count a step of a stage that did something."""
    at = stage * STAGE_WORDS
    stages[at + STAGE_STEPS] += 1
    stages[at + STAGE_ENTRIES] += entry_count
    stages[at + STAGE_NS] += elapsed_ns
    stages[at + STAGE_LONGEST_NS] = max(stages[at + STAGE_LONGEST_NS], elapsed_ns)


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
    stages: Words  # see above
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
    fire_lock: Words,
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
        cleaning=own(
            Cleaning(new_thread(CLEANING, -1), np.zeros(PASS_COUNT_MAX * PASS_COLUMNS, np.int64)),
            CLEANING,
        ),
        prefetch=own(new_prefetch(), PREFETCH),
        callers=own(Callers(), CALLER),
        fire_lock=fire_lock,
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
        enqueue_ring=EnqueueRing(own(Ends(), ENQUEUE_GET, ENQUEUE_PUT), *ring_columns(8)),
        late_ring=LateRing(own(Ends(), ENQUEUE_PUT, DEQUEUE_GET), *ring_columns(5)),
        dequeue_ring=DequeueRing(own(Ends(), DEQUEUE_GET, DEQUEUE_PUT), *ring_columns(3)),
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
def lock_all(world: World) -> None:
    """Take fire, near and wheel, in their order."""
    lock_acquire(world.fire_lock)
    lock_acquire(world.near_lock)
    lock_acquire(world.wheel_lock)


@inlined
def release_all(world: World) -> None:
    """Give fire, near and wheel back."""
    lock_release(world.wheel_lock)
    lock_release(world.near_lock)
    lock_release(world.fire_lock)


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


# --- Waking enqueue-get from a kernel that has appended something.

WAKE_COUNT: Final = 1_024
"""Puts that may wait for a sleeping thread: the next one wakes it, whenever it is due."""
NO_HURRY_MS: Final = 1_000_000
"""A delete need not be linked soon: the cancelled set has its target."""


@inlined
def wake_for(
    queues: QueueTable, enqueue_get: EnqueueGet, due_ms: int, eventfd: int, scratch: Words
) -> None:
    """Wake enqueue-get if it sleeps too long for what was appended, due at `due_ms`.

    `eventfd`: its thread's. `scratch`: int64[8].
    """
    # A load behind the append, never before it.
    until_ms = add_to_word(enqueue_get.thread, "sleeping_until_ms", 0)
    behind = queues.next_index[0] - enqueue_get.fetched_index
    if until_ms != 0 and (due_ms < until_ms or behind >= WAKE_COUNT):
        # Else somebody else wakes it.
        if exchange_word(enqueue_get.thread, "sleeping_until_ms", 0) != 0:
            wake(eventfd, scratch)
