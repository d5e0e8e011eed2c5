"""The system calls of kernels: clocks, waiting for an eventfd."""

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.kernels import kernel
from timerstore.jit.host import drain_event, open_event
from timerstore.jit.system import (
    clock_ms,
    clock_ns,
    poll_words,
    set_timer_slack_us,
    sleep_while,
    steady_ns,
    wait_readable,
    wake,
    wake_sleepers,
)


@kernel
def _clocks(scratch: Any, out: Any) -> None:
    out[0] = clock_ns(scratch)
    out[1] = clock_ms(scratch)
    out[2] = steady_ns(scratch)


@kernel
def _wake(eventfd: int, scratch: Any) -> None:
    wake(eventfd, scratch)


@kernel
def _wait(words: Any, timeout_ns: int) -> None:
    wait_readable(words, timeout_ns)


@kernel
def _sleep_while(words: Any, value: int) -> None:
    sleep_while(words, 0, value, 2)


@kernel
def _wake_sleepers(words: Any) -> None:
    wake_sleepers(words, 0)


def test_who_sleeps_at_a_word_is_woken() -> None:
    words = np.array([5, 0, 30, 0])
    _sleep_while(words, 4)  # it has another value: no sleep
    woken = []

    def sleep() -> None:
        while words[0] == 5:
            _sleep_while(words, 5)
        woken.append(1)

    threads = [threading.Thread(target=sleep) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.01)
    words[0] = 6
    _wake_sleepers(words)
    for thread in threads:
        thread.join(20)
    assert len(woken) == 4
    words[2:] = 0, 1_000_000
    _sleep_while(words, 6)  # it ends by itself


def test_clocks() -> None:
    scratch, out = np.zeros(8, np.int64), np.zeros(3, np.int64)
    before, steady_before = time.time_ns(), time.monotonic_ns()
    _clocks(scratch, out)
    after, steady_after = time.time_ns(), time.monotonic_ns()
    assert steady_before <= out[2] <= steady_after
    assert before <= out[0] <= after
    assert before // 1_000_000 <= out[1] <= after // 1_000_000


def test_waiting_ends_with_a_wake_or_with_the_time() -> None:
    fd = open_event()
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
        drain_event(fd)  # it was drained
    timer = threading.Timer(0.05, _wake, (fd, scratch))
    timer.start()
    _wait(words, 30_000_000_000)
    timer.join()
    assert time.monotonic() - begun < 25
    os.close(fd)


def test_timer_slack_can_be_asked_for() -> None:
    set_timer_slack_us(1)
