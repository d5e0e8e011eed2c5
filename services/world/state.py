"""The services' state: a record for each, whose words only that service writes.

A slot here is a time divided by the precision, not yet an index into the ring. What another thread
reads without a common lock is published and observed, see `timerstore/jit/record.py`. The locks,
always taken in this order, each held for one bounded step by code that needs no GIL (Python takes
all three to look for a timer that may have been taken):

- *fire*: dequeue-put, deliver-levels, cancel: the cancelled set, the frontier, levels' offsets;
- *near*: dequeue-get: the near wheel;
- *wheel*: enqueue-put, and the code that moves a cursor: units, slots, claim cursor, read cursor.

| who | its record | lock | writes besides |
|---|---|---|---|
| enqueue-get | `EnqueueGet` | none | the enqueue ring's tail |
| enqueue-put | `EnqueuePut` | wheel | units, slots, log's end, `near.late`, late ring's tail |
| dequeue-get | `DequeueGet` | near; wheel to claim | near wheel, `near.chain`, dequeue ring |
| dequeue-put | `DequeuePut` | fire; wheel to pass slots | `near.settled`, `near.first_copy`, … |
| deliver-levels | `DeliverLevels` | fire | the levels' offsets and words |
| whoever cancels | | fire | |
| the three above | `CancelledSet` (wheel/cancelled.py) | fire | the set's table |
| cleaning | `Cleaning` | fire and wheel; near too, see floor.py | |
| prefetch | `Prefetch` | none | |
| who calls the store | `Callers` | none | |

Dequeue-get also moves the read cursor where it jumps. Before any service runs, recovery writes all.
Who scans for what damage hides plays dequeue-get with its token, see scrub.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import numpy as np

from timerstore.jit.kernel import inlined
from timerstore.jit.mapping import PAGE_BYTES, Lent, new_lent
from timerstore.jit.record import LINE, SHARED, Bytes, Words, observe, own, publish, record
from timerstore.jit.system import poll_words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.bytes.unit import NO_UNIT
from timerstore.wheel.near import NearWheel, slot_place

# The services, in the order in which one thread plays them; with the others, who can own words.
ENQUEUE_GET: Final = 0
ENQUEUE_PUT: Final = 1
DEQUEUE_GET: Final = 2
DELIVER_LEVELS: Final = 3
DEQUEUE_PUT: Final = 4
SERVICE_NAMES: Final = (
    "enqueue-get",
    "enqueue-put",
    "dequeue-get",
    "deliver-levels",
    "dequeue-put",
)
CANCEL: Final = 5
CLEANING: Final = 6
PREFETCH: Final = 7

LOST_COUNT_MAX: Final = 4_096
# Columns of a message that could not be read, and was passed by.
LOST_MESSAGE: Final = 0
LOST_INFO: Final = 1  # as in the near wheel's node, or one of these
LOST_COLUMNS: Final = 2
INFO_UNLINKED: Final = -1
INFO_LEVEL: Final = -2

AHEAD_SLOTS: Final = 64
"""Slots whose chains are walked beside each other before they are claimed, at most."""
AHEAD_SLOTS_MIN: Final = 2
AHEAD_BATCH: Final = 4_096

PASS_COUNT_MAX: Final = 64
# Columns of a pass of cleaning.
PASS_START: Final = 0  # of the messages that it looks at
PASS_CURSOR: Final = 1  # those before it were looked at
PASS_FIRST_SLOT: Final = 2  # units of slots before it are left in place
PASS_FIRST_COPY: Final = 3  # the offset of its first copy, NO_COPY if there is none
PASS_COLUMNS: Final = 4


@record
class ServiceThread:
    """What every service has: written by the thread that runs its step, or answers its need."""

    found: MessageParts  # scratch of its step
    lost: Words  # int64[LOST_COUNT_MAX * LOST_COLUMNS]: messages that it could not read
    clock: Words  # int64[8]: scratch of its thread
    poll: Words  # int64[8], see wait_readable; its thread's
    need: int = 0  # why it could not go on, see needs.py; answered by its own thread
    need_offset: int = 0
    unreadable_count: int = 0
    unreadable_offset: int = 0  # of the last one, in the commit log
    step_count: int = 0
    done_count: int = 0  # what its steps did: entries read, linked, claimed with taken, appended
    busy_ns: int = 0  # time spent in steps
    lost_count: int = 0  # entries of `lost`
    # Its thread sleeps, or is about to, until this ms; 0: awake. Set to 0 by who wakes it.
    sleeping_until_ms: Annotated[int, LINE, SHARED] = 0
    # Its thread sleeps until there is room in the queue that it fills.
    blocked: Annotated[int, SHARED] = 0
    token: Annotated[int, LINE, SHARED] = 0  # held by the thread that runs its step
    step: Annotated[int, LINE] = 0  # odd while one runs: what is unmapped now may be in use
    eventfd: Annotated[int, LINE] = -1  # what wakes its thread


@inlined
def tell_need(thread: ServiceThread, need: int, offset: int) -> None:
    """Say what a service cannot go on without, see needs.py.

    The offset first: its own thread may see the need while another one still runs its step.
    """
    thread.need_offset = offset
    publish(thread, "need", need)


@record
class CopyCounts:
    """What became of the timers that a service copies."""

    fired_count: int = 0
    fired_bytes: int = 0  # of what was appended for them
    dropped_count: int = 0  # cancelled timers that were reached
    lateness_sum_ms: int = 0
    lateness_max_ms: int = 0


@record
class EnqueueGet:
    """Enqueue-get's own."""

    thread: ServiceThread
    fetched_index: int = 0  # timer queue entries before it are in the enqueue-put queue
    lost_index: int = -1  # entry of the timer queue that is passed by: its message is lost
    said_index: int = -1  # entry that is damaged; what it should say:
    said_message: int = 0
    said_size: int = 0


@record
class EnqueuePut:
    """Enqueue-put's own, under wheel."""

    thread: ServiceThread
    linked_index: int = 0  # the queue cursor: timer queue entries before it have their unit
    linked_count: int = 0
    linked_bytes: int = 0  # of their messages
    collision_count: int = 0  # slots that were needed twice: must stay 0


@record
class DequeueGet:
    """Dequeue-get's own, under near; see claims.py."""

    thread: ServiceThread
    pages: Bytes  # scratch
    emptied_ms: Words  # int64[2]: the buckets of each ring before it are empty
    claimed_slot: int = 0  # the claim cursor: the first slot not claimed. Under wheel too
    is_walking: int = 0  # 1: the front goes on with the chain of the slot before the claim cursor
    owed_slot: int = 0  # slots before it owe nothing
    walked_slot: int = 0  # slots before it were walked whole: none is cut either
    first_count: int = 0  # work for what is owed that is still done before all else
    first_max: int = 0  # that, once nothing is owed
    touch_ns: int = 500_000  # so long a step waits for pages: at 100 µs each a disk brings some
    hop_count: int = 0  # units that hops linked


@inlined
def note_walked(get: DequeueGet, near: NearWheel) -> None:
    """Say which slots were walked whole: those before any that owes, or is cut."""
    slot = get.walked_slot
    while slot < get.owed_slot and near.cut[slot_place(near, slot)] == 0:
        slot += 1
    publish(get, "walked_slot", slot)


@record
class DequeuePut:
    """Dequeue-put's own, under fire."""

    thread: ServiceThread
    counts: CopyCounts
    pages: Bytes  # scratch
    passed_slot: int = 0  # the read cursor: all slots before it are fired; never falls. Under wheel
    frontier_ms: int = 0  # no timer due later than this was ever fired or dropped
    settled_bytes: int = 0  # of the messages of all units that are done with
    asked_tail: Annotated[int, LINE] = 0  # the dequeue ring's messages before it were asked for
    asked_count: int = 0  # so many were asked for
    missing_count: int = 0  # of the ranges in which they lie so many were not in memory


@record
class DeliverLevels:
    """Deliver-levels' own, under fire; the rest is in its LevelTable."""

    thread: ServiceThread
    counts: CopyCounts


@record
class OffsetMap:
    """A map from messages to offsets, see wheel/cancelled.py; fixed once recovered."""

    lent: Lent  # its table
    length: int = 0
    count: int = 0


@record
class Wakeups:
    """When waiting consumers were last woken, by whichever thread."""

    woken_ms: Annotated[int, SHARED] = 0
    fired_count: Annotated[int, SHARED] = 0  # then


@record
class Prefetch:
    """Prefetch's own, see prefetch.py; a slot's place is `slot % AHEAD_SLOTS`."""

    slot: Words  # int64[AHEAD_SLOTS]: the slot that a place stands for
    unit: Words  # int64[AHEAD_SLOTS]: the unit at which its walk goes on, NO_UNIT behind the last
    bytes: Words  # int64[AHEAD_SLOTS]: pages of the units that were walked, and of their messages
    message: Words  # int64[AHEAD_BATCH]: messages that the last call met
    size: Words  # int64[AHEAD_BATCH]
    pages: Bytes  # scratch
    clock: Words  # int64[8], scratch
    first_slot: int = 0  # the first that was not claimed when it looked last
    slot_count: int = 4  # so many from there on are walked
    bytes_max: int = 64 << 20  # of pages that may be asked for ahead
    batch_count: int = 0
    unmapped: int = NO_UNIT  # a unit that the last call came to, whose segment is not mapped
    walked_count: int = 0
    missing_count: int = 0  # pages that were not in memory, and were asked for
    is_active: int = 0  # 1: pages were missing lately
    units_stop: int = 0  # the timer log before it is still to be read in order
    units_asked_ns: int = 0  # when the last piece of that was asked for; 0: it was not
    # The first pages are being asked for, by a thread of their own: see first_pages.py
    is_asking: Annotated[int, LINE, SHARED] = 0


def reads_units(prefetch: Prefetch) -> bool:
    """Tell whether the timer log is being read, as after opening: what else can be read waits."""
    return prefetch.is_active != 0 and prefetch.units_stop > 0


@record
class Cleaning:
    """Cleaning's own, see floor.py."""

    thread: ServiceThread
    passes: Words  # int64[PASS_COUNT_MAX * PASS_COLUMNS]
    pass_count: int = 0
    floor: int = 0  # units whose message lies before it are superseded
    timerlog_start: int = 0  # units before it were removed: chains end there
    copied_count: int = 0
    copied_bytes: int = 0
    settled_bytes: int = 0  # of pending messages that were copied, or dropped
    opened_at: int = 0  # the log's end when the store was opened


@record
class Callers:
    """What Python tells the services."""

    stop: int = 0  # the resident kernels must return
    fire_from_ms: int = 0  # while the clock is before it nothing is taken or delivered: paused
    # No call may go its short way any more. Never taken back: a signal may fall anywhere.
    short_way_ended: int = 0
    puts_paused: int = 0  # no call that puts may go its short way
    pulls_paused: int = 0  # no call that pulls may go its short way: a group may be paused
    # Of the steps that one thread plays: the service that is next.
    turn: Annotated[int, LINE] = 0


def new_pages() -> Bytes:
    """Return scratch for `is_resident`: a byte for each page of a message."""
    return np.zeros(fmt.MESSAGE_BYTES_MAX // PAGE_BYTES + 2, np.uint8)


def new_prefetch() -> Prefetch:
    """Return one that has walked nothing."""
    return Prefetch(
        np.full(AHEAD_SLOTS, -1, np.int64),
        np.full(AHEAD_SLOTS, NO_UNIT, np.int64),
        np.zeros(AHEAD_SLOTS, np.int64),
        np.zeros(AHEAD_BATCH, np.int64),
        np.zeros(AHEAD_BATCH, np.int64),
        new_pages(),
        np.zeros(8, np.int64),
    )


def new_thread(service: int, eventfd: int) -> ServiceThread:
    """Return what a service has, whose thread an eventfd wakes."""
    thread = ServiceThread(
        own(MessageParts(), service),
        np.zeros(LOST_COUNT_MAX * LOST_COLUMNS, np.int64),
        np.zeros(8, np.int64),
        poll_words(eventfd),
        eventfd=eventfd,
    )
    return own(thread, service)


# --- Delay levels: the arrays that their loops share with Python.
#
# Each level is a queue of `SCHEDULE_TOPIC_XXXX`, in the order of arrival, with one offset: the
# index of its first message that was not delivered. Ground rules: everything here is read and
# written under fire. Only the kernel `deliver_levels` writes `offset`, the cached head and the
# turn; Python writes rows, delays and mapped segments.

NO_HEAD: Final = -1
CLAMP_SLACK_MS: Final = 1_000
"""A due time may lie this much further ahead than a level before it counts as the clock's fault: a
clock that is corrected by milliseconds delivers nothing early."""

NOT_READ: Final = -1
"""A message's own level was not asked for; LEADS_NOWHERE: the message cannot be read."""
LEADS_NOWHERE: Final = -(1 << 50)


@record
class LevelTable:
    """The loops of all delay levels, by level − 1."""

    row: Words  # int64[LEVEL_COUNT_MAX]: of its queue, −1 for none
    level_ms: Words  # int64[LEVEL_COUNT_MAX]: its delay now; not configured: the longest
    offset: Words  # int64[LEVEL_COUNT_MAX]: index of the first message that was not delivered
    head_index: Words  # int64[LEVEL_COUNT_MAX]: the index whose due time is cached, or NO_HEAD
    head_ms: Words  # int64[LEVEL_COUNT_MAX]: that due time
    head_message: Words  # int64[LEVEL_COUNT_MAX]: commit log offset of that message
    head_level_ms: Words  # int64[LEVEL_COUNT_MAX]: how long its level was then, or NOT_READ
    wanted: Words  # int64[LEVEL_COUNT_MAX]: segment of its queue that must be mapped
    said_index: Words  # int64[LEVEL_COUNT_MAX]: the entry that leads to no message, or NO_HEAD
    said_message: Words  # int64[LEVEL_COUNT_MAX]: what that entry should say, as it was found
    said_size: Words  # int64[LEVEL_COUNT_MAX]
    said_ms: Words  # int64[LEVEL_COUNT_MAX]
    number: Words  # int64[LEVEL_COUNT_MAX]: the segment of its queue that is mapped, −1 for none
    lent: Lent  # LEVEL_COUNT_MAX of them: these segments
    count: int = 0
    """Queues that exist: at least one for each configured level."""
    turn: int = 0
    """Which one is looked at first."""
    batch_max: int = 0
    """Messages that one append takes."""
    delivered_count: int = 0
    clamped_count: int = 0
    skipped_count: int = 0
    """Sources that had their copy from an earlier life."""


def new_level_table(level_ms: Words, batch_max: int) -> LevelTable:
    """Return a table without queues; `level_ms`: int64[n], the configured delays."""

    def column(value: int) -> Any:
        return np.full(fmt.LEVEL_COUNT_MAX, value, np.int64)

    delays = column(int(level_ms.max()))
    delays[: len(level_ms)] = level_ms
    return LevelTable(
        row=column(-1),
        level_ms=delays,
        offset=column(0),
        head_index=column(NO_HEAD),
        head_ms=column(0),
        head_message=column(0),
        head_level_ms=column(NOT_READ),
        wanted=column(0),
        said_index=column(NO_HEAD),
        said_message=column(0),
        said_size=column(0),
        said_ms=column(0),
        number=column(-1),
        lent=new_lent(fmt.LEVEL_COUNT_MAX),
        batch_max=batch_max,
    )


# --- The queues between the services, each a ring with one producer, one consumer.
#
# The producer publishes the tail, the consumer the head, each on a cache line of its own. A column
# of a ring holds one thing of each entry; entry `n` stands at `place_of(n)`.

RING_COUNT: Final = 4_096
"""Entries of each ring: about a millisecond's work at full speed."""

KIND_TIMER: Final = 0
KIND_DELETE: Final = 1
KIND_UNREADABLE: Final = 2


@record
class Ends:
    """Where a ring begins and ends: how many entries have left it, how many have come."""

    head: Annotated[int, LINE] = 0
    tail: Annotated[int, LINE] = 0


@record
class EnqueueRing:
    """The enqueue ring, from enqueue-get to enqueue-put: int64[RING_COUNT] each."""

    ends: Ends
    out_ms: Words  # TIMER_OUT_MS: the unit's time
    due_ms: Words  # exact
    message: Words
    size: Words
    topic_hash: Words
    kind: Words
    high: Words  # of a delete that was read: its target's identity, which only recovery asks for
    low: Words


@record
class LateRing:
    """The late ring, from enqueue-put to dequeue-get: units linked into a claimed slot."""

    ends: Ends
    slot: Words
    magic: Words
    message: Words
    size: Words
    due_ms: Words


@record
class DequeueRing:
    """The dequeue ring, from dequeue-get to dequeue-put."""

    ends: Ends
    message: Words
    info: Words  # as in the near wheel's entry
    bucket_ms: Words  # that it was taken from; of a plain delete: its slot


@inlined
def place_of(number: int) -> int:
    """Return the index at which the columns of a ring hold an entry."""
    return number & (RING_COUNT - 1)


@inlined
def waiting_count(ends: Ends) -> int:
    """Return how many entries wait in a ring."""
    return observe(ends, "tail") - observe(ends, "head")


def waiting_places(ends: Ends) -> Words:
    """Return the indexes of what waits in a ring's columns, oldest first; for Python."""
    return np.arange(ends.head, ends.tail) & (RING_COUNT - 1)


def ring_columns(count: int) -> list[Words]:
    """Return so many empty columns of a ring."""
    return [np.zeros(RING_COUNT, np.int64) for _ in range(count)]
