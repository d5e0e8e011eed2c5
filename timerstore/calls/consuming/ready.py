"""The ready way of a pull, and of the acknowledgement of a whole run: one kernel each.

A thread that pulls each millisecond finds Python's own code out of the processor's caches, and each
call of a Python function costs it a microsecond or two. So a kernel asks to be woken, finds the
queue that has something, reads the messages and notes that they are handed out. It keeps the GIL:
meanwhile nobody else hands out or acknowledges, nothing that it looks at is unmapped, and no signal
comes. So it waits for nothing, and reads only what was appended lately, which is in memory. All
that is out of the ordinary goes the long way (`group.py`, `run.py`): what was given back or sent
back, damage, what a block does not hold, what lies in two segments of a queue, a pause, a store
that is being closed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from timerstore.calls.consuming.grouptally import Counts, count_response
from timerstore.calls.consuming.pull import (
    READY_BLOCK,
    READY_BYTES,
    READY_COUNT,
    READY_PULLED_US,
    READY_QUEUE,
    READY_SEGMENT,
    READY_START,
    RUN_COLUMNS,
    PullPlace,
    QueueRun,
    Room,
    durable_count,
    pull_run,
)
from timerstore.calls.consuming.window import DONE, Window, window_hand_out, window_mark
from timerstore.jit.intrinsics import exchange, get_i64, load_acquire, store_release
from timerstore.jit.kernel import INTERPRETED, caller_on, inlined, kernel_ahead_with_gil
from timerstore.jit.mapping import Lent, lent_bytes, new_lent
from timerstore.jit.record import Bytes, Words, observe, record, record_at
from timerstore.jit.system import clock_ms, steady_ns
from timerstore.services.durable.group_commit import DURABLE
from timerstore.services.engine.engine import Engine
from timerstore.services.world.state import Callers
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.writing.append import QueueTable

# --- waiting for more, if much is coming
#
# Each batch costs the same 20 to 50 µs of Python, whether it holds fifty messages or five thousand.
# A reader that takes what is there whenever it can is never idle, and takes a few hundred at a
# time. If messages come so fast that a moment brings many more, waiting for them costs nothing but
# that moment; if they come slowly nobody waits.


FAST_PER_S: Final = 250_000
"""Slower streams are never waited for: 50,000 a second are handed out within the millisecond."""
WAIT_S_MAX: Final = 0.002
_WORTH_S: Final = 0.0002
"""A shorter sleep is not worth its wake-up."""


# What is known of it: when messages were handed out last, how many come a second; 0: not known.
LAST_NS: Final = 0
PER_S: Final = 1


def _note(words: Words, count: int, count_max: int, now_ns: int) -> int:
    """Note that `count` messages were handed out, of `count_max` that were asked for."""
    elapsed_ns = now_ns - words[LAST_NS]
    words[PER_S] = 0  # who got all that was asked for has more to read already
    if count < count_max and elapsed_ns > 0:
        words[PER_S] = count * 1_000_000_000 // elapsed_ns
    words[LAST_NS] = now_ns
    return 0


note_pace = inlined(_note)


class Pace:
    """How fast messages come for one group; only hints, so any thread may call without a lock."""

    def __init__(self) -> None:
        self.words = np.zeros(2, np.int64)
        self.known = self.words.data
        """The same; Python reads it faster."""

    def took(self, count: int, count_max: int, now_s: float) -> None:
        """Note that `count` messages were handed out, of `count_max` that were asked for."""
        _note(self.words, count, count_max, round(now_s * 1e9))

    def wait_s(self, count_max: int, now_s: float) -> float:
        """Return how long to wait before `count_max` are asked for again; mostly 0."""
        last_ns, per_s = self.known
        if per_s < FAST_PER_S:
            return 0.0
        enough_s = last_ns / 1e9 + min(WAIT_S_MAX, count_max / per_s)
        return enough_s - now_s if enough_s - now_s >= _WORTH_S else 0.0


# --- what is there, handed out by one kernel; a whole run acknowledged by another


READY_ID_BYTES: Final = 64
"""Room for an id in a block of the ready way."""
READY_QUEUES_MAX: Final = 16
"""If a topic has more queues, its groups go the long way."""
READY_PULLERS_MAX: Final = 64
"""So many pulls of a group at once go the ready way."""
NEEDS_LONG_WAY: Final = -1
NEEDS_ENTRIES: Final = -2
"""A segment of a queue is to be mapped; it is told which."""
NOT_DURABLE: Final = -3
"""Nothing is there but what is not durable yet, and is not handed out before."""
NO_RESPONSE: Final = -1
ANY_SPAN: Final = 1 << 62
NOBODY: Final = -1
"""Nobody waits, or who waits looks up by itself."""
_LATELY_BYTES: Final = 64 << 20
"""So far back from the log's end messages count as appended lately."""


@record
class Ready:
    """What the ready way of one group works on."""

    commitlog: SegmentTable
    queues: QueueTable
    callers: Callers
    waiters: Words  # see `World`
    durable: Words  # those of the group commit
    counts: Counts
    pace: Words  # int64[2]: see `Pace`
    windows: Lent  # READY_QUEUES_MAX + 1 of them: that of each queue, and of the retry queue
    pullers: Lent  # READY_PULLERS_MAX of them
    rows: Words  # int64[READY_QUEUES_MAX]
    segments: Words  # int64[READY_QUEUES_MAX]: which segment of it is lent; −1: none
    lent: Lent  # READY_QUEUES_MAX of them: entries of a segment
    topic: Bytes
    clock: Words  # int64[8]: scratch
    queue_count: int = 0
    known_count: int = 0  # of all queues in the store, when it was looked which are the topic's
    turn: int = 0
    retry_row: int = -1  # of the group's retry queue; −1: there is none
    ended: int = 0  # 1: all go the long way, from now on
    owned: int = 0  # 1: the same while an ordered consumer is the only reader
    hides: int = 0  # 1: what is not durable yet is not handed out


_ready_at, _window_at = record_at(Ready), record_at(Window)
_pull_place_at = record_at(PullPlace)


def new_ready(
    engine: Engine, durable: Words, counts: Counts, pace: Words, topic: bytes, *, hides: bool
) -> Ready:
    """Return what a group without queues begins with."""
    world = engine.world
    rows, segments = (np.full(READY_QUEUES_MAX, -1, np.int64) for _ in range(2))
    windows, pullers = new_lent(READY_QUEUES_MAX + 1), new_lent(READY_PULLERS_MAX)
    return Ready(
        *(world.commitlog, engine.queues.table, world.callers, world.waiters, durable, counts),
        *(pace, windows, pullers, rows, segments, new_lent(READY_QUEUES_MAX)),
        *(np.frombuffer(topic, np.uint8).copy(), np.zeros(8, np.int64)),
        hides=hides,
    )


@inlined
def _retries_wait(ready: Ready) -> bool:
    """Tell whether anything is to be handed out of the retry queue, or routed."""
    if ready.retry_row < 0:
        return False
    window = _window_at(ready.windows[READY_QUEUES_MAX])
    end: int = load_acquire(ready.queues.next_index, ready.retry_row)
    waits: bool = window.waiting_count > 0 or end > window.next
    return waits


@inlined
def _read(ready: Ready, place: PullPlace, i: int, count: int) -> int:
    """Read up to `count` entries of queue `i` from its window's end on; return how many are read.

    0 if there are some, but none is durable, and that is needed.
    """
    window = _window_at(ready.windows[i])
    row, start, segment_entries = ready.rows[i], window.next, ready.queues.segment_entries
    segment = start // segment_entries
    if ready.segments[i] != segment:
        place.told[READY_QUEUE] = i
        place.told[READY_SEGMENT] = segment
        return NEEDS_ENTRIES
    at = (start - segment * segment_entries) * fmt.ENTRY_BYTES
    if start + count > (segment + 1) * segment_entries:
        return NEEDS_LONG_WAY  # which reads on in the next segment
    entries = lent_bytes(ready.lent, i, segment_entries * fmt.ENTRY_BYTES)
    if ready.hides != 0:
        count = durable_count(entries, at, count, load_acquire(ready.durable, DURABLE))
        if count == 0:
            return 0
    ends_at = 8 * RUN_COLUMNS * count
    ids_at = ends_at + 8 * (count + 1) + count
    bodies_at = ids_at + READY_ID_BYTES * count
    lately = observe(ready.commitlog, "end") - _LATELY_BYTES
    if bodies_at >= READY_BYTES or get_i64(entries, at + fmt.ENTRY_OFFSET_AT) < lately:
        return NEEDS_LONG_WAY
    block = lent_bytes(place.lent, READY_BLOCK, READY_BYTES)
    run = QueueRun(entries, at, start, count, ready.topic, ready.queues.queue_id[row])
    if pull_run(place, run, Room(block, ends_at, ids_at, bodies_at)) != count:
        return NEEDS_LONG_WAY
    if window_hand_out(window, start + count, count) != count:
        return NEEDS_LONG_WAY
    return count


@inlined
def _hand_out(ready: Ready, place: PullPlace, count_max: int, span_max: int, now_ms: int) -> int:
    callers = ready.callers
    if callers.short_way_ended != 0 or callers.pulls_paused != 0:
        return NEEDS_LONG_WAY
    if ready.ended != 0 or ready.owned != 0:
        return NEEDS_LONG_WAY
    if ready.queues.count != ready.known_count or _retries_wait(ready):
        return NEEDS_LONG_WAY
    found, steady, pulled_us = 0, 0, now_ms * 1000  # a clock that is moved by hand has no pace
    if now_ms == 0:
        now_ms, steady = clock_ms(ready.clock), steady_ns(ready.clock)
        pulled_us = steady // 1000
    ready.counts.read_ms = place.now_ms = now_ms
    for k in range(ready.queue_count):
        i = (ready.turn + k) % ready.queue_count
        window = _window_at(ready.windows[i])
        if window.waiting_count > 0:
            return NEEDS_LONG_WAY
        count = min(count_max, load_acquire(ready.queues.next_index, ready.rows[i]) - window.next)
        if count <= 0:
            continue
        if window.held_count == 0:  # what is held stays the first until the next opening
            count = min(count, span_max - (window.next - window.first))
        if count <= 0:
            return NEEDS_LONG_WAY
        count = _read(ready, place, i, count)
        if count < 0:
            return count
        if count == 0:
            found = NOT_DURABLE
            continue
        ready.turn = (i + 1) % ready.queue_count
        note_pace(ready.pace, count, count_max, steady)
        told = place.told
        told[READY_QUEUE] = i
        told[READY_START] = window.start
        told[READY_PULLED_US] = pulled_us
        told[READY_COUNT] = count
        return count
    return found


@kernel_ahead_with_gil
def _pull_ready(
    address: int, puller: int, count_max: int, span_max: int, waiter: int, now_ms: int
) -> int:
    """Hand out what is there of the next queue that has any; return how much, 0 for nothing.

    Or NEEDS_LONG_WAY, NEEDS_ENTRIES, NOT_DURABLE. `puller`: which one. `span_max`: so many entries
    of a queue may lie between the first that is not done and the last that is handed out. `waiter`:
    the place of who is to be woken by what comes from now on, unless something is handed out; or
    NOBODY. `now_ms`: 0 if the kernel is to ask the clock.
    """
    ready = _ready_at(address)
    if waiter != NOBODY:  # before it looks: nothing comes in between
        exchange(ready.waiters, 2 * waiter + 1, 1)
    place = _pull_place_at(ready.pullers[puller])
    count = _hand_out(ready, place, count_max, span_max, now_ms)
    if waiter != NOBODY and count > 0:
        store_release(ready.waiters, 2 * waiter + 1, 0)
    return count


@kernel_ahead_with_gil
def _ack(address: int, i: int, start: int, stop: int, pulled_us: int, now_us: int) -> int:
    """Acknowledge entries that were handed out together; return how many were not done.

    Or NEEDS_LONG_WAY. `i`: the queue. `pulled_us`: when they were; NO_RESPONSE if that is not to be
    counted. `now_us`: 0 if the kernel is to ask the clock.
    """
    ready = _ready_at(address)
    if ready.callers.short_way_ended != 0:
        return NEEDS_LONG_WAY
    done = window_mark(_window_at(ready.windows[i]), start, stop, DONE)
    if done > 0:
        ready.counts.handled += done
    if done > 0 and pulled_us != NO_RESPONSE:
        if now_us == 0:
            now_us = steady_ns(ready.clock) // 1000
        count_response(ready.counts, now_us, now_us - pulled_us, done, 0)
    return done


@kernel_ahead_with_gil
def _add_handled(address: int, count: int) -> int:
    _ready_at(address).counts.handled += count
    return 0


class ReadyCalls:
    """The kernels on one group's `Ready`."""

    def __init__(self, engine: Engine, ready: Ready) -> None:
        self.pull: Callable[..., int] = caller_on(_pull_ready, ready)
        """pull(puller, count_max, span_max, waiter, now_ms), see `_pull_ready`."""
        if INTERPRETED:
            self.pull = partial(_reading, engine.commitlog, self.pull)
        self.ack = caller_on(_ack, ready)
        """ack(i, start, stop, pulled_us, now_us), see `_ack`."""
        self.add_handled = caller_on(_add_handled, ready)
        """add_handled(count): count what was acknowledged another way."""


def _reading(log: Any, call: Callable[..., int], *args: int) -> int:
    """Call inside a block that borrows the log's table, which who keeps the GIL does without."""
    with log.reading():
        return call(*args)
