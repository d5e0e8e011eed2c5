"""Locks that kernels take, in words that threads share.

A lock is two int64 words, eight apart so that each has its cache line: the next ticket and the
ticket being served (a ticket lock: first come, first served, so that nobody starves behind a
thread that takes it again and again). Two rules hold for every lock here, by its type:

- What may be waited for by a thread that holds the GIL is only ever held by code that cannot need
  the GIL; else the two wait for each other for ever. That is a `SpinLock`: kernels take it, and
  there is no way to take it from Python.
- No exception leaves a lock held that Python has taken: `with lock.guard():`, see `guards.py`. Only
  machine code takes a `KernelLock` and gives it back.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

import numpy as np

from timerstore.jit.entrypoint import entry_ahead, entry_point
from timerstore.jit.guards import Guarded
from timerstore.jit.intrinsics import (
    compare_exchange,
    fetch_add,
    load_acquire,
    store_release,
    view_words,
)
from timerstore.jit.kernel import inlined
from timerstore.jit.record import Words
from timerstore.jit.system import nap_us, thread_id, yield_processor

LOCK_WORDS: Final = 16
_NAMES: Final = 1 << 10
"""Calls that a gate knows by their thread; it only counts those beyond."""
GATE_WORDS: Final = _NAMES + 8
_HOLDER: Final = 1  # the thread that took it from Python, else 0
_NEAR_HOLDER: Final = LOCK_WORDS + _HOLDER
_WHEEL_HOLDER: Final = 2 * LOCK_WORDS + _HOLDER
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
def lock_is_mine(lock: Words) -> bool:
    """Tell whether this thread has taken a lock in Python."""
    mine: bool = lock[_HOLDER] == thread_id()
    return mine


@inlined
def lock_release(lock: Words) -> None:
    """Serve the next ticket; only the holder may call this."""
    store_release(lock, _SERVING, load_acquire(lock, _SERVING) + 1)


def _acquire(address: int) -> int:
    lock = view_words(address, LOCK_WORDS)
    lock_acquire(lock)
    lock[_HOLDER] = thread_id()
    return 1


def _acquire_if_free(address: int) -> int:
    """Take the lock if nobody has it; return whether this did."""
    lock = view_words(address, LOCK_WORDS)
    if lock_if_free(lock):
        lock[_HOLDER] = thread_id()
        return 1
    return 0


def _release(address: int) -> int:
    lock = view_words(address, LOCK_WORDS)
    lock[_HOLDER] = 0
    lock_release(lock)
    return 0


def _acquire_all(address: int) -> int:
    for i in range(3):
        lock = view_words(address + 8 * LOCK_WORDS * i, LOCK_WORDS)
        lock_acquire(lock)
        lock[_HOLDER] = thread_id()
    return 1


def _release_all(address: int) -> int:
    for i in range(3):
        lock = view_words(address + 8 * LOCK_WORDS * i, LOCK_WORDS)
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


def _enter(address: int) -> int:
    gate_enter(view_words(address, GATE_WORDS))
    return 1


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


for _waits in (_acquire, _acquire_all):
    entry_ahead(_waits)
for _short in (_acquire_if_free, _release, _release_all, _enter, _leave, _others_inside):
    entry_ahead(_short, keeps_gil=True)


class SpinLock:
    """A ticket lock that only kernels take."""

    def __init__(self) -> None:
        self.words = np.zeros(LOCK_WORDS, np.int64)


class KernelLock(Guarded):
    """A ticket lock that kernels and Python share; it is not reentrant.

    Python waits without the GIL, and may need the GIL while it holds the lock. So no kernel may
    wait for it that keeps the GIL.
    """

    def __init__(self, words: Words | None = None) -> None:
        """Make an open lock; `words`: int64[LOCK_WORDS], where it stands."""
        self.words = np.zeros(LOCK_WORDS, np.int64) if words is None else words
        self._holder = self.words.data
        place = self.words.ctypes.data
        release = partial(entry_point(_release, keeps_gil=True), place)
        super().__init__(entry_point(_acquire), place, release)
        self.if_free = Guarded(entry_point(_acquire_if_free, keeps_gil=True), place, release)
        """Takes it if nobody has it, and never waits; the block runs in any case, and asks."""

    def is_mine(self) -> bool:
        """Tell whether this thread has taken it, in Python."""
        return bool(self._holder[_HOLDER]) and self._holder[_HOLDER] == threading.get_ident()


class ServiceLocks(Guarded):
    """The three locks of the services, which a guard takes all, in their order: fire, near, wheel.

    What each is for stands in `services/world/state.py`.
    """

    def __init__(self) -> None:
        self.words = np.zeros(3 * LOCK_WORDS, np.int64)
        place = self.words.ctypes.data
        release = partial(entry_point(_release_all, keeps_gil=True), place)
        super().__init__(entry_point(_acquire_all), place, release)
        fire, near, wheel = self.words.reshape(3, LOCK_WORDS)
        self.fire, self.near, self.wheel = KernelLock(fire), KernelLock(near), KernelLock(wheel)
        # A third of the cost of looking into the array.
        self._seen = self.words.data

    def is_mine(self) -> bool:
        """Tell whether this thread has taken any of them, in Python."""
        words = self._seen
        fire, near, wheel = words[_HOLDER], words[_NEAR_HOLDER], words[_WHEEL_HOLDER]
        return bool(fire or near or wheel) and threading.get_ident() in (fire, near, wheel)


class Gate(Guarded):
    """Knows the threads that are inside; any number may be, each as often as it likes.

    A kernel that is a whole call goes in and out by itself, see `gate_enter`.
    """

    def __init__(self) -> None:
        self.words = np.zeros(GATE_WORDS, np.int64)
        place = self.words.ctypes.data
        leave = partial(entry_point(_leave, keeps_gil=True), place)
        super().__init__(entry_point(_enter, keeps_gil=True), place, leave)
        self._others_inside = entry_point(_others_inside, keeps_gil=True)

    def others_inside(self) -> bool:
        """Tell whether any other thread is inside. O(GATE_WORDS).

        False: who enters from now on sees all that this thread wrote before.
        """
        return self._others_inside(self.words.ctypes.data) != 0

    def is_inside(self) -> bool:
        """Tell whether this thread is inside. O(GATE_WORDS)."""
        return bool((self.words == threading.get_ident()).any())
