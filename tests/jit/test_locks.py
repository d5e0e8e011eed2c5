"""Locks of kernels: one at a time, let go whatever happens."""

import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from tests.kernels import kernel
from timerstore.jit.locks import (
    LOCK_WORDS,
    Gate,
    TurnLock,
    lock_acquire,
    lock_release,
)


@kernel
def _count_up(lock: Any, words: Any, count: int) -> None:
    for _ in range(count):
        lock_acquire(lock)
        words[0] += 1
        lock_release(lock)


def test_a_lock_lets_one_in_at_a_time() -> None:
    lock, words = TurnLock(), np.zeros(1, np.int64)
    assert len(lock.words) == LOCK_WORDS
    _count_up(lock.words, words, 1)

    def in_python() -> None:
        for _ in range(300):
            with lock.guard():
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
    lock = TurnLock()
    with pytest.raises(ZeroDivisionError), lock.guard():
        raise ZeroDivisionError
    with lock.guard():
        pass


def test_first_come_first_served() -> None:
    lock, order = TurnLock(), list[int]()

    def take(i: int) -> None:
        with lock.guard():
            order.append(i)

    threads = [threading.Thread(target=take, args=(i,)) for i in range(4)]
    with lock.guard():
        for i, thread in enumerate(threads):
            thread.start()
            while lock.words[0] < i + 2:  # it has its ticket
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_a_lock_that_is_taken_if_it_is_free() -> None:
    lock, inside, leave = TurnLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.if_free.guard() as taken:
            assert taken and lock.is_mine()
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    with lock.if_free.guard() as taken:
        assert not taken and not lock.is_mine()
    assert lock.words[0] != lock.words[8], "another one's is not given back"
    leave.set()
    thread.join()
    for outer in (lock, lock.if_free):
        with outer.guard():
            with suppress(ZeroDivisionError), lock.if_free.guard() as taken:  # a signal's handler
                assert not taken
                raise ZeroDivisionError
            with lock.if_free.guard() as first, lock.if_free.guard() as second:
                assert not first and not second
            assert lock.is_mine()
        assert not lock.is_mine() and lock.words[0] == lock.words[8]


def test_a_gate_knows_who_is_inside() -> None:
    gate, inside, leave = Gate(), threading.Event(), threading.Event()

    def visit() -> None:
        with gate.guard(), gate.guard():
            inside.set()
            leave.wait()

    assert not gate.is_inside()
    assert not gate.others_inside()
    with gate.guard():
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
    with gate.guard():
        with gate.guard():
            assert gate.words.sum() == before.sum() + 2
        gate.words[0] = 0  # one of them leaves, and there is room for a name
        with gate.guard():
            assert gate.is_inside()
            assert gate.others_inside()
        gate.words[0] = 7
    assert (gate.words == before).all()
