"""Locks of kernels: one at a time, let go whatever happens."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from timerstore.timelog.jit.kernel import INTERPRETED, kernel
from timerstore.timelog.jit.locks import (
    LOCK_WORDS,
    Gate,
    KernelLock,
    Section,
    SpinLock,
    lock_acquire,
    lock_release,
)

# A signal's exception may fall into a destructor, where Python reports and drops it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@kernel
def _count_up(lock: Any, words: Any, count: int) -> None:
    for _ in range(count):
        lock_acquire(lock)
        words[0] += 1
        lock_release(lock)


def test_a_lock_lets_one_in_at_a_time() -> None:
    lock, words = KernelLock(), np.zeros(1, np.int64)
    assert len(lock.words) == LOCK_WORDS
    _count_up(lock.words, words, 1)

    def in_python() -> None:
        for _ in range(300):
            with lock:
                seen = int(words[0])
                words[0] = seen + 1

    threads = [threading.Thread(target=in_python) for _ in range(2)]
    threads += [threading.Thread(target=_count_up, args=(lock.words, words, 300)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert words[0] == 1201
    assert lock.words[0] == lock.words[8]


def test_a_lock_is_let_go_when_its_block_fails() -> None:
    lock = KernelLock()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    with lock:
        pass


def test_first_come_first_served() -> None:
    lock, order = KernelLock(), list[int]()

    def take(i: int) -> None:
        with lock:
            order.append(i)

    threads = [threading.Thread(target=take, args=(i,)) for i in range(4)]
    with lock:
        for i, thread in enumerate(threads):
            thread.start()
            while lock.words[0] < i + 2:  # it has its ticket
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_a_lock_that_is_taken_if_it_is_free() -> None:
    lock, inside, leave = KernelLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.if_free as taken:
            assert taken and lock.is_mine()
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    with lock.if_free as taken:
        assert not taken and not lock.is_mine()
    assert lock.words[0] != lock.words[8], "another one's is not given back"
    leave.set()
    thread.join()
    for outer in (lock, lock.if_free):
        with outer:
            with suppress(ZeroDivisionError), lock.if_free as taken:  # a signal's handler
                assert not taken
                raise ZeroDivisionError
            with lock.if_free as first, lock.if_free as second:
                assert not first and not second
            assert lock.is_mine()
        assert not lock.is_mine() and lock.words[0] == lock.words[8]


def test_what_is_waited_for_with_the_gil_cannot_be_taken_without() -> None:
    lock = SpinLock()
    assert not hasattr(lock, "__enter__")
    assert len(lock.words) == LOCK_WORDS


def test_a_gate_knows_who_is_inside() -> None:
    gate, inside, leave = Gate(), threading.Event(), threading.Event()

    def visit() -> None:
        with gate, gate:
            inside.set()
            leave.wait()

    assert not gate.is_inside()
    assert not gate.others_inside()
    with gate:
        assert gate.is_inside()
        assert not gate.others_inside()
    thread = threading.Thread(target=visit)
    thread.start()
    inside.wait()
    assert gate.others_inside()
    assert not gate.is_inside()
    leave.set()
    thread.join()
    assert not gate.words.any()


@pytest.mark.timeout(60)
def test_a_full_gate_lets_everybody_in() -> None:
    gate = Gate()
    gate.words[:] = 7  # those of others
    before = gate.words.copy()
    with gate:
        with gate:
            assert gate.words.sum() == before.sum() + 2
        gate.words[0] = 0  # one of them leaves, and there is room for a name
        with gate:
            assert gate.is_inside()
            assert gate.others_inside()
        gate.words[0] = 7
    assert (gate.words == before).all()


class Alarm(BaseException):
    """What the signal's handler raises."""


class Interrupter:
    """A signal's handler that raises once each time it is armed.

    A signal may still be on its way once its timer was stopped; it must not fall into what is
    looked at afterwards.
    """

    armed = False

    def __call__(self, *_: Any) -> None:
        """Raise, where it is armed."""
        if self.armed:
            self.armed = False
            raise Alarm


@contextmanager
def interrupted_often() -> Iterator[Interrupter]:
    """Have a signal come to the main thread every 50 µs."""
    interrupter = Interrupter()
    before = signal.signal(signal.SIGALRM, interrupter)
    signal.setitimer(signal.ITIMER_REAL, 0.00005, 0.00005)
    try:
        yield interrupter
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if not INTERPRETED and os.name == "posix":

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("make", [KernelLock, lambda: KernelLock().if_free, Gate])
    def test_no_signal_leaves_it_held(make: Callable[[], Section]) -> None:
        section, hits, done = make(), 0, 0
        with interrupted_often() as interrupter:
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                try:
                    interrupter.armed = True
                    while True:
                        with section:
                            done += 1
                except Alarm:
                    hits += 1
                held = (
                    section.words.any()
                    if isinstance(section, Gate)
                    else section.words[0] != section.words[8]
                )
                assert not held, (hits, done)
        assert hits > 50
