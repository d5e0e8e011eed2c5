"""The kernel that runs the services.

On the wall clock each service has a thread that stays inside, which is what keeps timers on the
millisecond while Python is busy: nothing between a due time and the log needs the GIL. A thread
returns to Python only if something must be made (a need) or to stop. On a manual clock one
thread plays the same steps in turn, event by event.

Threads *help*: a thread that would go to sleep, while the next service has work and its thread
sleeps, runs that service's step itself, and so on down the chain. So a lonely timer goes from its
put to the log in one thread, without a wake-up; under load each does its own work. A step is run by
the holder of its service's token; the token is tried, never waited for, and all that a service
knows between two steps is in shared words.

Nobody's sleep may be overlooked: who goes to sleep says so, and then looks once more; who hands
something over stores it, and then looks who sleeps; with a full fence between on both sides.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.intrinsics import exchange, load_acquire
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Words, add_to_word, exchange_word, observe, publish, step_as
from timerstore.jit.system import (
    clock_ms,
    clock_ns,
    steady_ns,
    wait_readable,
    wake,
    wake_sleepers,
    yield_processor,
)
from timerstore.services.pipeline.deliver_levels import deliver_levels, level_event_ms
from timerstore.services.pipeline.dequeue_get import dequeue_get
from timerstore.services.pipeline.dequeue_put import dequeue_put, is_passable
from timerstore.services.pipeline.enqueue_get import enqueue_get
from timerstore.services.pipeline.enqueue_put import enqueue_put
from timerstore.services.world.claims import LEAD, can_claim, reach_slots
from timerstore.services.world.needs import NOTHING
from timerstore.services.world.state import (
    DELIVER_LEVELS,
    DEQUEUE_GET,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    ENQUEUE_PUT,
    RING_COUNT,
    waiting_count,
)
from timerstore.services.world.world import (
    NO_WAITER,
    PUTTERS_WOKEN_AT,
    SLEEPER,
    WAITER_COUNT_MAX,
    World,
    count_stage,
    service_of,
)
from timerstore.wheel.near import (
    NONE,
    bucket_at,
    near_first_due,
    near_room,
    overdue_bucket,
    ring_buckets,
    ring_count,
)
from timerstore.wheel.timerwheel import next_used_slot

NAP_MS_MAX: Final = 250
"""Enqueue-get looks up at least this often; a put that is due sooner wakes it."""
IDLE_MS_MAX: Final = 500
"""So do the others, which are woken for all that they have to do: in case one is not."""
RETRY_MS: Final = 50
"""What waits for somebody else's progress is looked at again after so long."""
HAND_OVER_COUNT: Final = 512
"""Entries for which the next service's thread is woken, instead of helped."""
ONE_STEP: Final = -1
WALL_CLOCK: Final = 1 << 62
_FAR_MS: Final = 1 << 61
_BACK_TO_PYTHON: Final = -1
_NOBODY: Final = -1


@kernel_ahead
def run(world: World, first: int, last: int, now_ms: int, stop_ms: int) -> int:
    """Run the services `first` to `last` in turn; return the clock that was reached.

    `stop_ms` says how long. ONE_STEP: one step each; the work done is returned. `now_ms`: until
    nothing is left to do then.
    More: on a manual clock, playing each event in (now_ms, stop_ms] at its own time. WALL_CLOCK: as
    the thread of the service `first`, until it is told to stop. In each case it returns early if a
    service has a need; answer that, and call again. One kernel for all, so that the services are
    compiled once. When it plays, it goes on after a need with the service behind the one that had
    it, so that no service keeps those behind it from running.
    """
    count = last - first + 1
    resident = stop_ms == WALL_CLOCK
    clock = service_of(world, first).clock
    service = first + world.callers.turn % count
    if resident:
        service = first
    each, done_in_turn = 0, 0
    while True:
        if resident:
            now_ms = clock_ms(clock)
        done = _step(world, service, now_ms, resident, clock)
        if resident:
            service = next_step_of(world, first, service, done, now_ms, clock)
            if service == _BACK_TO_PYTHON:
                return now_ms
            continue
        done_in_turn += done
        if service_of(world, service).need != NOTHING:
            world.callers.turn = service - first + 1
            return done_in_turn if stop_ms == ONE_STEP else now_ms
        each += 1
        service = first + (service - first + 1) % count
        if each < count:
            continue
        if stop_ms == ONE_STEP:
            return done_in_turn
        if done_in_turn == 0:
            if now_ms >= stop_ms:
                return now_ms
            now_ms = min(stop_ms, _next_event_ms(world, now_ms, stop_ms))
        each, done_in_turn = 0, 0


@inlined
def _step(world: World, service: int, now_ms: int, resident: bool, clock: Words) -> int:
    """Run one step of a service, unless another thread does; return the work done."""
    mine = service_of(world, service)
    if exchange_word(mine, "token", 1) != 0:
        yield_processor()  # it is done within some 50 µs
        return 0
    done, before = 0, step_as(service)
    if mine.need == NOTHING:
        exchange_word(mine, "step", mine.step + 1)
        began_ns = 0
        if resident:
            began_ns = steady_ns(clock)
        if service == ENQUEUE_GET:
            done = enqueue_get(world)
        elif service == ENQUEUE_PUT:
            done = enqueue_put(world, now_ms)
        elif service == DEQUEUE_GET:
            done = dequeue_get(world, now_ms, resident, clock)
        elif service == DELIVER_LEVELS:
            done = deliver_levels(world, now_ms, resident)
        else:
            done = dequeue_put(world, now_ms, resident, clock)
        if resident:
            elapsed_ns = steady_ns(clock) - began_ns
            mine.busy_ns += elapsed_ns
            if done > 0:
                count_stage(world.stages, service, done, elapsed_ns)
        mine.step_count += 1
        mine.done_count += done
        publish(mine, "step", mine.step + 1)
    step_as(before)
    publish(mine, "token", 0)
    return done


# --- the threads


@inlined
def next_step_of(world: World, own: int, service: int, done: int, now_ms: int, clock: Words) -> int:
    """Say whose step this thread runs next, after one of `service`; it may sleep before."""
    mine, stepped = service_of(world, own), service_of(world, service)
    if observe(world.callers, "stop") != 0 or observe(mine, "need") != NOTHING:
        return _BACK_TO_PYTHON
    add_to_word(stepped, "step_count", 0)  # the fence between what was handed over and who sleeps
    if service != own and observe(stepped, "need") != NOTHING:
        _wake(world, service, clock)  # its own thread answers its needs
        return own
    if done == 0:
        if service == own:
            behind = _following(own)  # which somebody who helped us may have left to us
            if behind != _NOBODY and _input_count(world, behind) > 0:
                _wake(world, behind, clock)
            _sleep(world, own, now_ms, clock)
        elif _input_count(world, service) > 0:
            # Somebody tried the token while we held it, or there is no room for what it does.
            _wake(world, service, clock)
        return own
    if service == DEQUEUE_PUT or service == DELIVER_LEVELS:
        _wake_consumers(world, now_ms, clock)
    if service == ENQUEUE_GET and _input_count(world, service) <= world.putters[PUTTERS_WOKEN_AT]:
        wake_all(world.putters, clock)  # half of what may wait was read
    _wake_who_waits_for_room(world, service, clock)
    if service == DEQUEUE_PUT and can_claim(world, now_ms):
        _wake(world, DEQUEUE_GET, clock)  # the read cursor has moved, so that it can go on
    if service == DEQUEUE_GET and service != own:  # its thread sleeps for what it knew before
        if observe(stepped, "sleeping_until_ms") > now_ms:
            event_ms = _event_ms(world, DEQUEUE_GET, now_ms)
            if event_ms == now_ms + 1 or event_ms < observe(stepped, "sleeping_until_ms"):
                _wake(world, DEQUEUE_GET, clock)
    idle = _input_count(world, own) == 0
    if service != own and _input_count(world, service) > 0:  # not all of it was done
        few = _input_count(world, service) < HAND_OVER_COUNT
        if idle and few and observe(stepped, "sleeping_until_ms") != 0:
            return service
        _wake(world, service, clock)
    following = _following(service)
    if following == _NOBODY:
        return own
    waiting = _input_count(world, following)
    if following == DEQUEUE_PUT and is_passable(world, now_ms):
        waiting += 1  # the read cursor is behind the clock, and its slot was walked now
    if waiting > 0:
        few = waiting < HAND_OVER_COUNT
        if idle and few and observe(service_of(world, following), "sleeping_until_ms") != 0:
            return following  # this thread would go to sleep: it is the next one's instead
        if idle or not few or service != own:  # after its own work it will not look there again
            _wake(world, following, clock)
    return own


@inlined
def _following(service: int) -> int:
    """Return who takes what a service hands on."""
    if service == ENQUEUE_GET:
        return ENQUEUE_PUT
    if service == ENQUEUE_PUT:
        return DEQUEUE_GET
    if service == DEQUEUE_GET:
        return DEQUEUE_PUT
    return _NOBODY


@inlined
def _input_count(world: World, service: int) -> int:
    """Return how many entries wait for a service; not those that only time brings."""
    if service == ENQUEUE_GET:
        return load_acquire(world.queues.next_index, 0) - observe(
            world.enqueue_get, "fetched_index"
        )
    if service == ENQUEUE_PUT:
        return waiting_count(world.enqueue_ring.ends)
    if service == DEQUEUE_GET:
        return waiting_count(world.late_ring.ends)
    if service == DEQUEUE_PUT:
        return waiting_count(world.dequeue_ring.ends)
    return 0


@inlined
def _is_blocked(world: World, service: int) -> bool:
    """Tell whether the queue that a service fills is full."""
    following = _following(service)
    return following != _NOBODY and _input_count(world, following) >= RING_COUNT


@inlined
def _wake(world: World, service: int, clock: Words) -> None:
    """Wake a service's thread if it sleeps."""
    sleeper = service_of(world, service)
    if (
        observe(sleeper, "sleeping_until_ms") != 0
        and exchange_word(sleeper, "sleeping_until_ms", 0) != 0
    ):
        wake(sleeper.eventfd, clock)


@inlined
def _wake_who_waits_for_room(world: World, service: int, clock: Words) -> None:
    """Wake the thread before a service once its queue is half empty."""
    before = service - 1
    if service == DEQUEUE_PUT:
        before = DEQUEUE_GET
    if before < 0 or service == DELIVER_LEVELS:
        return
    producer = service_of(world, before)
    if observe(producer, "blocked") != 0 and _input_count(world, service) <= RING_COUNT // 2:
        if exchange_word(producer, "blocked", 0) != 0:
            _wake(world, before, clock)


@inlined
def _wake_consumers(world: World, now_ms: int, clock: Words) -> None:
    """Wake who waits for messages; once a millisecond while there is more to do."""
    fired_count = world.dequeue_put.counts.fired_count + world.deliver_levels.counts.fired_count
    if fired_count == observe(world.wakeups, "fired_count"):
        return
    if observe(world.wakeups, "woken_ms") == now_ms and waiting_count(world.dequeue_ring.ends) > 0:
        return
    publish(world.wakeups, "fired_count", fired_count)
    publish(world.wakeups, "woken_ms", now_ms)
    wake_all(world.waiters, clock)


@inlined
def wake_all(waiters: Words, clock: Words) -> None:
    """Wake the Python threads that asked for it."""
    for i in range(WAITER_COUNT_MAX):
        eventfd = waiters[2 * i]
        if eventfd == NO_WAITER:
            break
        if exchange(waiters, 2 * i + 1, 0) == 1:
            if eventfd == SLEEPER:
                wake_sleepers(waiters, 2 * i + 1)
            else:
                wake(eventfd, clock)


@inlined
def _sleep(world: World, own: int, now_ms: int, clock: Words) -> None:
    """Sleep until there is something to do for this thread's own service, or it is woken."""
    me = service_of(world, own)
    exchange_word(me, "sleeping_until_ms", _FAR_MS)
    blocked = _is_blocked(world, own)
    if blocked:
        exchange_word(me, "blocked", 1)
        blocked = _is_blocked(world, own)
    event_ms = now_ms + RETRY_MS
    if not blocked:
        event_ms = _event_ms(world, own, now_ms)
    waits = blocked or _input_count(world, own) == 0
    if own == DEQUEUE_PUT and is_passable(world, now_ms):
        waits = False
    if own == DEQUEUE_GET and not blocked and can_claim(world, now_ms):
        waits = False  # the read cursor has moved while it stepped
    if own == DEQUEUE_GET and near_room(world.near) <= 0:
        waits = True  # what it holds makes room once it is due, and nobody else
    stopped = observe(world.callers, "stop") != 0 or observe(me, "need") != NOTHING
    if waits and not stopped:
        if observe(me, "sleeping_until_ms") != 0:
            publish(me, "sleeping_until_ms", event_ms)
        nap_ns = event_ms * 1_000_000 - clock_ns(clock)
        if nap_ns > 0:
            wait_readable(me.poll, nap_ns)
    publish(me, "sleeping_until_ms", 0)
    publish(me, "blocked", 0)


# --- what comes next


@inlined
def _event_ms(world: World, service: int, now_ms: int) -> int:
    """Return when a service has something to do that nobody hands it, after `now_ms`."""
    precision = world.settings.precision_ms
    event_ms = now_ms + IDLE_MS_MAX
    if service == ENQUEUE_GET:
        event_ms = now_ms + NAP_MS_MAX
    elif service == DEQUEUE_GET:
        lock_acquire(world.near_lock)
        event_ms = _near_event_ms(world, now_ms, event_ms)
        lock_release(world.near_lock)
        begins_ms = (world.dequeue_get.claimed_slot - LEAD) * precision
        if begins_ms > now_ms:  # else it waits for the read cursor
            event_ms = min(event_ms, begins_ms)
    elif service == DELIVER_LEVELS:
        event_ms = _levels_event_ms(world, now_ms, event_ms)
    elif service == DEQUEUE_PUT:
        ends_ms = (observe(world.dequeue_put, "passed_slot") + 1) * precision
        event_ms = min(event_ms, ends_ms if ends_ms > now_ms else now_ms + RETRY_MS)
    return max(now_ms + 1, event_ms)


@inlined
def _levels_event_ms(world: World, now_ms: int, stop_ms: int) -> int:
    for level in range(world.levels.count):
        event_ms = level_event_ms(world, level, now_ms)
        stop_ms = min(stop_ms, max(event_ms, world.callers.fire_from_ms))
    return stop_ms


@inlined
def _near_event_ms(world: World, now_ms: int, stop_ms: int) -> int:
    """Return when the near wheel's next timer is due, `stop_ms` at the latest. Under near."""
    near, fire_from_ms = world.near, world.callers.fire_from_ms
    for ring in range(2):
        if ring_count(near, ring) == 0:
            continue
        first_ms = near_first_due(near, overdue_bucket(near, ring), now_ms, stop_ms)
        emptied_ms = world.dequeue_get.emptied_ms[ring]
        ms = emptied_ms  # not now: what is due may have found no room when it was tried
        last = min(first_ms, emptied_ms + ring_buckets(near) - 1)
        while ms < last and near.head[bucket_at(near, ms, ring)] == NONE:
            ms += 1
        stop_ms = min(stop_ms, max(min(first_ms, ms), fire_from_ms))
    return stop_ms


@inlined
def _next_event_ms(world: World, now_ms: int, stop_ms: int) -> int:
    """Return when any service may have something to do, after `now_ms`, `stop_ms` at the latest."""
    precision = world.settings.precision_ms
    stop_ms = _near_event_ms(world, now_ms, _levels_event_ms(world, now_ms, stop_ms))
    last_slot = stop_ms // precision + 1 + LEAD
    claimed = world.dequeue_get.claimed_slot
    limit = observe(world.dequeue_put, "passed_slot") + reach_slots(world)
    if claimed < limit or now_ms >= world.callers.fire_from_ms:  # else nothing is passed
        slot = next_used_slot(world.wheel, claimed, last_slot)
        stop_ms = min(stop_ms, (slot - LEAD) * precision)
    return max(now_ms + 1, stop_ms)
