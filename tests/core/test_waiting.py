"""Threads that sleep until somebody wakes them, and whom the resident kernels wake."""

import threading
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import kernel
from timerstore.core.waiting import Waiter, Waiters
from timerstore.jit.host import drain_event
from timerstore.jit.record import Words
from timerstore.services.running.steps import wake_all as wake_armed
from timerstore.services.world.world import NO_WAITER, WAITER_COUNT_MAX, WAITER_WORDS

LONG_MS = 3_600_000.0


def new_waiters() -> Waiters:
    return Waiters(np.full(WAITER_WORDS, NO_WAITER, np.int64))


@kernel
def wake_all(waiters: Words, clock: Words) -> None:
    wake_armed(waiters, clock)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_who_is_woken_sleeps_no_more(by_event: bool, early: bool) -> None:
    """Before it sleeps, or in the midst of it; by another thread, or by the kernel."""
    words = np.full(WAITER_WORDS, NO_WAITER, np.int64)
    with Waiters(words).waiter() as waiter:
        if by_event:
            waiter.open_event()
        for wake in (waiter.wake, lambda: wake_all(words, np.zeros(8, np.int64))):
            waiter.arm()
            timer = threading.Timer(0 if early else 0.05, wake)
            timer.start()
            if early:
                timer.join()
            waiter.wait(LONG_MS)
            timer.join()
        waiter.arm()
        waiter.wait(1.0)  # the time is over


@pytest.mark.timeout(60)
def test_those_beyond_the_places_look_up_by_themselves() -> None:
    waiters = new_waiters()
    with ExitStack() as lent:
        for _ in range(WAITER_COUNT_MAX):
            lent.enter_context(waiters.waiter())
        waiter = lent.enter_context(waiters.waiter())
        waiter.open_event()
        assert waiter.fd < 0
        waiter.arm()
        waiter.wait(LONG_MS)
    assert len(waiters.free) == WAITER_COUNT_MAX
    waiters.close()
    assert not waiters.free


@given(asked=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=6))
def test_the_kernel_wakes_those_who_asked(asked: list[tuple[bool, bool]]) -> None:
    words = np.full(WAITER_WORDS, NO_WAITER, np.int64)
    waiters = Waiters(words)
    found: list[Waiter] = []
    for by_event, arms in asked:
        found.append(waiters.another())
        if by_event:
            found[-1].open_event()
        if arms:
            found[-1].arm()
    kinds = words[: 2 * WAITER_COUNT_MAX : 2].tolist()
    wake_all(words, np.zeros(8, np.int64))
    assert words[: 2 * WAITER_COUNT_MAX : 2].tolist() == kinds
    assert not words[1 : 2 * len(asked) : 2].any()
    for waiter, (_, arms) in zip(found, asked, strict=True):
        if waiter.fd >= 0:
            assert _is_readable(waiter.fd) == arms
        waiters.take_back(waiter)
    waiters.close()


def _is_readable(fd: int) -> bool:
    try:
        drain_event(fd)
    except BlockingIOError:
        return False
    return True
