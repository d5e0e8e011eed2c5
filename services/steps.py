"""The kernel that runs the services, in turn.

On the wall clock it is resident, which is what keeps timers on the millisecond while Python is
busy: one thread stays inside, so nothing between a due time and the log needs the GIL. It returns
to Python only where something must be made (`NEED`) or to stop. On a manual clock it plays the
same steps, event by event.
"""

from __future__ import annotations

from typing import Any, Final

from timerstore.services.deliver_levels import deliver_levels, level_event_ms
from timerstore.services.dequeue_get import LEAD, dequeue_get
from timerstore.services.dequeue_put import dequeue_put
from timerstore.services.enqueue_get import enqueue_get
from timerstore.services.enqueue_put import enqueue_put
from timerstore.services.levels import LEVEL_COUNT, LEVEL_STOP
from timerstore.services.world import WAITER_COUNT_MAX
from timerstore.timelog.format import SLOT_BYTES
from timerstore.timelog.intrinsics import exchange, load_acquire, store_release
from timerstore.timelog.kernel import inlined, kernel
from timerstore.timelog.system import (
    clock_ms,
    clock_ns,
    lock_acquire,
    lock_release,
    wait_readable,
    wake,
)
from timerstore.wheel.near import NEAR_COUNT, NONE, near_first_due
from timerstore.wheel.slots import NO_UNIT, slot_last
from timerstore.wheel.state import (
    CLAIMED,
    COUNT_FIRED,
    FLUSHED,
    GOT,
    NEED,
    NOTHING,
    NOW,
    PRECISION,
    READ,
    SCAN,
    SLEEPING,
    STOP,
)

NAP_MS_MAX: Final = 50
"""The resident kernel looks up at least this often; a put that is due sooner wakes it."""
WAKE_COUNT: Final = 1_024
"""Puts that may wait for a sleeping kernel: the next one wakes it, whenever it is due."""
ONE_STEP: Final = -1
WALL_CLOCK: Final = 1 << 62

ENQUEUE_GET: Final = 0
ENQUEUE_PUT: Final = 1
DEQUEUE_GET: Final = 2
DELIVER_LEVELS: Final = 3
DEQUEUE_PUT: Final = 4


@inlined
def _step(world: Any, service: int, now_ms: int, resident: bool) -> int:
    lock_acquire(world.step_lock)
    if service == ENQUEUE_GET:
        done = enqueue_get(world)
    elif service == ENQUEUE_PUT:
        done = enqueue_put(world, now_ms)
    elif service == DEQUEUE_GET:
        done = dequeue_get(world, now_ms)
    elif service == DELIVER_LEVELS:
        done = deliver_levels(world, now_ms, resident)
    else:
        done = dequeue_put(world, now_ms)
    lock_release(world.step_lock)
    return done


@kernel
def run(world: Any, first: int, last: int, now_ms: int, stop_ms: int) -> int:
    """Run the services `first` to `last` in turn; return the clock that was reached.

    `stop_ms` says how long. ONE_STEP: one step each; the work done is returned. `now_ms`: until
    nothing is left to do then.
    More: on a manual clock, playing each event in (now_ms, stop_ms] at its own time. WALL_CLOCK:
    resident, until STOP is set. In each case it returns early where NEED is set; meet that, and
    call again. One kernel for all, so that the services are compiled once.
    """
    words = world.words
    resident = stop_ms == WALL_CLOCK
    fired, woken_ms = words[COUNT_FIRED], now_ms
    while True:
        if resident:
            now_ms = clock_ms(world.clock)
        words[NOW] = now_ms
        done = 0
        for service in range(first, last + 1):
            done += _step(world, service, now_ms, resident)
            if words[NEED] != NOTHING:
                break
        if resident and words[COUNT_FIRED] != fired and (done == 0 or now_ms != woken_ms):
            # At most once a millisecond while there is more to do: larger batches, fewer wake-ups.
            fired, woken_ms = words[COUNT_FIRED], now_ms
            _wake_consumers(world)
        if resident and words[NEED] == FLUSHED:  # the flush service will see WANT_FLUSH
            words[NEED] = NOTHING
        if stop_ms == ONE_STEP:
            return done
        if words[NEED] != NOTHING:
            return now_ms
        if resident:
            if load_acquire(words, STOP) != 0:
                return now_ms
            if done == 0:
                _sleep(world, now_ms)
        elif done == 0:
            if now_ms >= stop_ms:
                return now_ms
            now_ms = min(stop_ms, _next_event_ms(world, now_ms, stop_ms))


@inlined
def _next_event_ms(world: Any, now_ms: int, stop_ms: int) -> int:
    """Return when there may be something to do next, after `now_ms`, `stop_ms` at the latest."""
    words, near = world.words, world.near
    precision = words[PRECISION]
    if world.levels.words[LEVEL_STOP] == 0:
        for level in range(world.levels.words[LEVEL_COUNT]):
            stop_ms = min(stop_ms, level_event_ms(world, level, now_ms))
    if now_ms < words[READ] * precision:  # the clock was set back
        stop_ms = near_first_due(near, words[READ] * precision, stop_ms)
    if near.words[NEAR_COUNT] > 0:
        ms = max(words[SCAN], now_ms)
        last = min(stop_ms, words[SCAN] + len(near.head) - 1)
        while ms < last and near.head[ms & (len(near.head) - 1)] == NONE:
            ms += 1
        stop_ms = min(stop_ms, ms)
    slot = words[CLAIMED]
    last_slot = min(stop_ms // precision + 1 + LEAD, slot + len(world.wheel.slots) // SLOT_BYTES)
    while slot < last_slot and slot_last(world.wheel, slot) == NO_UNIT:
        slot += 1
    return max(now_ms + 1, min(stop_ms, (slot - LEAD) * precision))


@inlined
def _wake_consumers(world: Any) -> None:
    for i in range(WAITER_COUNT_MAX):
        eventfd = world.waiters[2 * i]
        if eventfd >= 0 and exchange(world.waiters, 2 * i + 1, 0) == 1:
            wake(eventfd, world.clock)


@inlined
def _sleep(world: Any, now_ms: int) -> None:
    """Sleep until the next event, NAP_MS_MAX at most, or until a put or Python wakes us."""
    words = world.words
    lock_acquire(world.step_lock)
    event_ms = _next_event_ms(world, now_ms, now_ms + NAP_MS_MAX)
    event_ms = min(event_ms, max((words[READ] + 1) * words[PRECISION], now_ms + 1))
    lock_release(world.step_lock)
    # Say that we sleep, and until when; then look once more, so that no put is overlooked.
    exchange(words, SLEEPING, event_ms)
    if load_acquire(world.queues.next_index, 0) == words[GOT] and load_acquire(words, STOP) == 0:
        nap_ns = event_ms * 1_000_000 - clock_ns(world.clock)
        if nap_ns > 0:
            wait_readable(world.poll, nap_ns)
    store_release(words, SLEEPING, 0)


def step(world: Any, service: int, now_ms: int) -> int:
    """Run one step of one service; return the work done. See `words[NEED]` afterwards."""
    return int(run(world, service, service, now_ms, ONE_STEP))
