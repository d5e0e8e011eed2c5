"""Locks that kernels take, in words that threads share.

A lock is two int64 words, eight apart so that each has its cache line: the next ticket and the
ticket being served (a ticket lock: first come, first served, so that nobody starves behind a
thread that takes it again and again).

Locks that firing needs are words alone (`new_lock`): kernels take them, and there is no way to take
one from Python. So who has it cannot need the GIL, and a thread may wait for it that has the GIL.
A `TurnLock` is Python's, for long work that many threads do in turn: `with lock.guard():`, see
`guards.py`.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

import numpy as np

from timerstore.jit.guards import Guarded
from timerstore.jit.intrinsics import (
    compare_exchange,
    fetch_add,
    load_acquire,
    store_release,
    view_words,
)
from timerstore.jit.kernel import caller_of, inlined, kernel_ahead, kernel_ahead_with_gil
from timerstore.jit.record import Words
from timerstore.jit.system import nap_us, thread_id, yield_processor

LOCK_WORDS: Final = 16
_NAMES: Final = 1 << 10
"""Calls that a gate knows by their thread; it only counts those beyond."""
GATE_WORDS: Final = _NAMES + 8
_HOLDER: Final = 1  # the thread that took it from Python, else 0
_SERVING: Final = 8
_SPINS: Final = 200
_YIELDS: Final = 20
_NAP_US: Final = 20


@inlined
def lock_acquire(lock: Words) -> None:
    """Take a ticket and wait for it; `lock`: int64[LOCK_WORDS]."""
    ticket = fetch_add(lock, 0, 1)
    tries = 0
    while load_acquire(lock, _SERVING) != ticket:
        tries += 1
        if tries > _SPINS + _YIELDS:
            nap_us(_NAP_US)
        elif tries > _SPINS:
            yield_processor()


@inlined
def lock_if_free(lock: Words) -> bool:
    """Take a lock that nobody has, and tell whether this did; it never waits."""
    ticket = load_acquire(lock, _SERVING)
    taken: bool = compare_exchange(lock, 0, ticket, ticket + 1)
    return taken


@inlined
def lock_release(lock: Words) -> None:
    """Serve the next ticket; only the holder may call this."""
    store_release(lock, _SERVING, load_acquire(lock, _SERVING) + 1)


@kernel_ahead
def _acquire(address: int) -> int:
    lock = view_words(address, LOCK_WORDS)
    lock_acquire(lock)
    lock[_HOLDER] = thread_id()
    return 1


@kernel_ahead_with_gil
def _acquire_if_free(address: int) -> int:
    """Take the lock if nobody has it; return whether this did."""
    lock = view_words(address, LOCK_WORDS)
    if lock_if_free(lock):
        lock[_HOLDER] = thread_id()
        return 1
    return 0


@kernel_ahead_with_gil
def _release(address: int) -> int:
    lock = view_words(address, LOCK_WORDS)
    lock[_HOLDER] = 0
    lock_release(lock)
    return 0


@inlined
def gate_enter(gate: Words) -> int:
    """Note that this thread is inside: in a word that is free, else by a count; return which word.

    It never waits, because those who are inside may need the GIL to leave. It is a full fence.
    """
    me = thread_id()
    first = me >> 8
    for i in range(_NAMES):
        if compare_exchange(gate, (first + i) & (_NAMES - 1), 0, me):
            return (first + i) & (_NAMES - 1)
    fetch_add(gate, _NAMES, 1)
    return _NAMES


@inlined
def gate_leave(gate: Words, word: int) -> None:
    """Take back what `gate_enter` noted in this word."""
    if word < _NAMES:
        store_release(gate, word, 0)
    else:
        fetch_add(gate, _NAMES, -1)


@kernel_ahead_with_gil
def _enter(address: int) -> int:
    gate_enter(view_words(address, GATE_WORDS))
    return 1


@kernel_ahead_with_gil
def _leave(address: int) -> int:
    gate = view_words(address, GATE_WORDS)
    me = thread_id()
    first, word = me >> 8, _NAMES
    for i in range(_NAMES):
        if load_acquire(gate, (first + i) & (_NAMES - 1)) == me:
            word = (first + i) & (_NAMES - 1)
            break
    gate_leave(gate, word)
    return 0


@kernel_ahead_with_gil
def _others_inside(address: int) -> int:
    """Return 1 if another thread is inside.

    Who enters later sees what this thread wrote before: adding nought is a full fence.
    """
    gate = view_words(address, GATE_WORDS)
    me = thread_id()
    if fetch_add(gate, _NAMES, 0) != 0:
        return 1
    for i in range(_NAMES):
        inside = load_acquire(gate, i)
        if inside != 0 and inside != me:
            return 1
    return 0


def new_lock() -> Words:
    """Return the words of an open lock that only kernels take: int64[LOCK_WORDS]."""
    return np.zeros(LOCK_WORDS, np.int64)


class TurnLock(Guarded):
    """A ticket lock for Python: who waited longest is next. It is not reentrant."""

    def __init__(self) -> None:
        self.words = new_lock()
        self._holder = self.words.data
        place = self.words.ctypes.data
        release = partial(caller_of(_release), place)
        super().__init__(caller_of(_acquire), place, release)
        self.if_free = Guarded(caller_of(_acquire_if_free), place, release)
        """Takes it if nobody has it, and never waits; the block runs in any case, and asks."""

    def is_mine(self) -> bool:
        """Tell whether this thread has taken it, in Python."""
        return bool(self._holder[_HOLDER]) and self._holder[_HOLDER] == threading.get_ident()


class Gate(Guarded):
    """Knows the threads that are inside; any number may be, each as often as it likes.

    A kernel that is a whole call goes in and out by itself, see `gate_enter`.
    """

    def __init__(self) -> None:
        self.words = np.zeros(GATE_WORDS, np.int64)
        place = self.words.ctypes.data
        leave = partial(caller_of(_leave), place)
        super().__init__(caller_of(_enter), place, leave)
        self._others_inside = caller_of(_others_inside)

    def others_inside(self) -> bool:
        """Tell whether any other thread is inside. O(GATE_WORDS).

        False: who enters from now on sees all that this thread wrote before.
        """
        return self._others_inside(self.words.ctypes.data) != 0

    def is_inside(self) -> bool:
        """Tell whether this thread is inside. O(GATE_WORDS)."""
        return bool((self.words == threading.get_ident()).any())
