"""The system calls of kernels: clocks, the lock among threads, waiting for an eventfd."""

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from timerstore.timelog.kernel import kernel
from timerstore.timelog.system import (
    LOCK_WORDS,
    KernelLock,
    clock_ms,
    clock_ns,
    lock_acquire,
    lock_release,
    poll_words,
    set_timer_slack_us,
    wait_readable,
    wake,
)


@kernel
def _clocks(scratch: Any, out: Any) -> None:
    out[0] = clock_ns(scratch)
    out[1] = clock_ms(scratch)


@kernel
def _wake(eventfd: int, scratch: Any) -> None:
    wake(eventfd, scratch)


@kernel
def _wait(words: Any, timeout_ns: int) -> None:
    wait_readable(words, timeout_ns)


@kernel
def _count_up(lock: Any, words: Any, count: int) -> None:
    for _ in range(count):
        lock_acquire(lock)
        words[0] += 1
        lock_release(lock)


def test_clocks() -> None:
    scratch, out = np.zeros(8, np.int64), np.zeros(2, np.int64)
    before = time.time_ns()
    _clocks(scratch, out)
    after = time.time_ns()
    assert before <= out[0] <= after
    assert before // 1_000_000 <= out[1] <= after // 1_000_000


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


def test_waiting_ends_with_a_wake_or_with_the_time() -> None:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    words, scratch = poll_words(fd), np.zeros(8, np.int64)
    _wait(words, 0)
    begun = time.monotonic()
    _wait(words, 20_000_000)
    assert time.monotonic() - begun >= 0.02
    _wake(fd, scratch)
    _wake(fd, scratch)
    begun = time.monotonic()
    _wait(words, 30_000_000_000)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)  # it was drained
    timer = threading.Timer(0.05, _wake, (fd, scratch))
    timer.start()
    _wait(words, 30_000_000_000)
    timer.join()
    assert time.monotonic() - begun < 25
    os.close(fd)


def test_timer_slack_can_be_asked_for() -> None:
    set_timer_slack_us(1)
