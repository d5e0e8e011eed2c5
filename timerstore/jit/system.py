"""The few calls to the operating system that a kernel makes itself: the clock, threads, waiting."""

from __future__ import annotations

import ctypes
import errno
import mmap
import select
import threading
import time
from functools import partial
from typing import Any, Final

import numpy as np

from timerstore.jit import host, mapping
from timerstore.jit.intrinsics import get_u8, view_bytes
from timerstore.jit.kernel import instruction, twinned
from timerstore.jit.later import Instruction
from timerstore.jit.record import Bytes, Words

CLOCK_REALTIME: Final = 0
CLOCK_MONOTONIC: Final = time.CLOCK_MONOTONIC
_FUTEX: Final = host.FUTEX
_WAIT_PRIVATE: Final = 128
_WAKE_PRIVATE: Final = 129
_EVERYBODY: Final = (1 << 31) - 1
_NAP_US: Final = 200
_PAGE: Final = mmap.PAGESIZE
_POPULATE: Final = host.MADV_POPULATE_WRITE
_WILLNEED: Final = mapping.MADV_WILLNEED
_DONTNEED: Final = mapping.MADV_DONTNEED
_EFAULT: Final = errno.EFAULT

_C: Final = "linking.external"
"""What makes a function in C, of its name and the types of its result and of its arguments."""
_external: Any = partial(Instruction, _C)


@instruction(_C, "sched_yield", "int32")
def yield_processor() -> int:
    """Let another thread run."""
    time.sleep(0)
    return 0


@instruction(_C, "pthread_self", "int64")
def thread_id() -> int:
    """Return `threading.get_ident()`."""
    return threading.get_ident()


@instruction(_C, "usleep", "int32", "uint32")
def nap_us(microseconds: int) -> int:
    """Sleep for a moment."""
    time.sleep(microseconds / 1e6)
    return 0


def _sleep_twin(words: Words, at: int, value: int, limit_at: int) -> None:
    if words[at] == value:
        time.sleep(_NAP_US / 1e6)


def _wait_twin(poll_words: Words, timeout_ns: int) -> None:
    fd = int(poll_words[0]) & 0x7FFFFFFF
    if select.select([fd], [], [], timeout_ns / 1e9)[0]:
        host.drain_event(fd)


_clock_gettime = _external("clock_gettime", "int32", "int32", "uintp")
_ppoll = _external("ppoll", "int32", "uintp", "uint64", "uintp", "uintp")
_poll = _external("poll", "int32", "uintp", "uint64", "int32")
_write = _external("write", "int64", "int32", "uintp", "uint64")
_read = _external("read", "int64", "int32", "uintp", "uint64")
_madvise = _external("madvise", "int32", "uintp", "uint64", "int32")
_mincore = _external("mincore", "int32", "uintp", "uint64", "uintp")
_errno_place = _external(host.ERRNO_PLACE, "int64")
_syscall = _external("syscall", "int64", *("int64",) * 7)


@twinned(_sleep_twin)
def sleep_while(words: Words, at: int, value: int, limit_at: int) -> None:
    """Sleep while the low half of word `at` is that of `value`, until `wake_sleepers`.

    At most as long as the struct timespec at `limit_at` says; it may also end for no reason.
    """
    base = words.ctypes.data
    if _FUTEX < 0:
        nap_us(_NAP_US)
    else:
        half = value & 0xFFFFFFFF
        _syscall(_FUTEX, base + 8 * at, _WAIT_PRIVATE, half, base + 8 * limit_at, 0, 0)


@twinned(lambda words, at: None)
def wake_sleepers(words: Words, at: int) -> None:
    """Wake all who sleep at a word; change it before."""
    if _FUTEX >= 0:
        _syscall(_FUTEX, words.ctypes.data + 8 * at, _WAKE_PRIVATE, _EVERYBODY, 0, 0, 0)


@twinned(lambda view, at, count: mapping.open_pages(view, int(at), int(count)))
def open_pages(view: Bytes, at: int, count: int) -> bool:
    """Do what `mapping.open_pages` does."""
    address = view.ctypes.data + at
    start = address // _PAGE * _PAGE
    if _madvise(start, address + count - start, _POPULATE) == 0:
        return True
    return get_u8(view_bytes(_errno_place(), 1), 0) != _EFAULT


@twinned(lambda view, at, count: mapping.read_ahead(view, int(at), int(count)))
def read_ahead(view: Bytes, at: int, count: int) -> None:
    """Do what `mapping.read_ahead` does."""
    address = view.ctypes.data + at
    start = address // _PAGE * _PAGE
    _madvise(start, address + count - start, _WILLNEED)


@twinned(lambda words, at, count: mapping.release_pages(words[at : at + count].view(np.uint8)))
def release_words(words: Words, at: int, count: int) -> None:
    """Do what `mapping.release_pages` does with whole pages of words."""
    _madvise(words.ctypes.data + 8 * at, 8 * count, _DONTNEED)


@twinned(lambda view, at, count, pages: mapping.is_resident(view, int(at), int(count)))
def is_resident(view: Bytes, at: int, count: int, pages: Bytes) -> bool:
    """Do what `mapping.is_resident` does; `pages`: scratch, a byte for each page."""
    address = view.ctypes.data + at
    start = address // _PAGE * _PAGE
    page_count = (address + count - start + _PAGE - 1) // _PAGE
    if page_count > len(pages):
        return False
    if _mincore(start, address + count - start, pages.ctypes.data) != 0:
        return True  # nobody can say
    for i in range(page_count):
        if get_u8(pages, i) & 1 == 0:
            return False
    return True


@twinned(lambda eventfd, scratch: host.wake_event(int(eventfd)))
def wake(eventfd: int, scratch: Words) -> None:
    """Make an eventfd readable; `scratch`: int64[8]."""
    scratch[4] = 1
    _write(eventfd, scratch.ctypes.data + 32, 8)


@twinned(lambda scratch: time.time_ns())
def clock_ns(scratch: Words) -> int:
    """Return the wall clock in epoch nanoseconds; `scratch`: int64[2]."""
    _clock_gettime(CLOCK_REALTIME, scratch.ctypes.data)
    return scratch[0] * 1_000_000_000 + scratch[1]


@twinned(lambda scratch: time.monotonic_ns())
def steady_ns(scratch: Words) -> int:
    """Return a clock that nobody sets, in nanoseconds; `scratch`: int64[2]."""
    _clock_gettime(CLOCK_MONOTONIC, scratch.ctypes.data)
    return scratch[0] * 1_000_000_000 + scratch[1]


@twinned(lambda scratch: time.time_ns() // 1_000_000)
def clock_ms(scratch: Words) -> int:
    """Return the wall clock in epoch milliseconds, rounded down; `scratch`: int64[2]."""
    _clock_gettime(CLOCK_REALTIME, scratch.ctypes.data)
    return scratch[0] * 1000 + scratch[1] // 1_000_000


if host.PORTABLE:

    @twinned(_wait_twin)
    def wait_readable(poll_words: Words, timeout_ns: int) -> None:
        """Do the same; `poll` counts in milliseconds, so the last one is slept."""
        base, timeout_ms = poll_words.ctypes.data, timeout_ns // 1_000_000
        if timeout_ms == 0:
            nap_us(timeout_ns // 1_000 + 1)
        if _poll(base, 1, min(timeout_ms, _EVERYBODY)) > 0:
            _read(poll_words[0] & 0x7FFFFFFF, base + 24, 40)

else:

    @twinned(_wait_twin)
    def wait_readable(poll_words: Words, timeout_ns: int) -> None:
        """Sleep until the eventfd is readable or the time is over, then drain it.

        `poll_words`: int64[8]: 0 a struct pollfd of it, 1–2 a struct timespec, 3 its counter.
        """
        poll_words[1] = timeout_ns // 1_000_000_000
        poll_words[2] = timeout_ns % 1_000_000_000
        base = poll_words.ctypes.data
        if _ppoll(base, 1, base + 8, 0) > 0:
            _read(poll_words[0] & 0x7FFFFFFF, base + 24, 8)


def poll_words(eventfd: int) -> Words:
    """Return the words that `wait_readable` takes: a struct pollfd for reading, and room."""
    words = np.zeros(8, np.int64)
    words[0] = eventfd | (1 << 32)  # fd, then events = POLLIN
    return words


def set_thread_name(name: str) -> None:
    """Name this thread for the operating system (prctl PR_SET_NAME), in up to 15 characters."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(15, name.encode()[:15], 0, 0, 0)


def set_timer_slack_us(microseconds: int) -> None:
    """Ask for precise sleeps of this thread (prctl PR_SET_TIMERSLACK); the default is 50 µs."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(29, microseconds * 1000, 0, 0, 0)
