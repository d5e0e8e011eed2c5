"""Locks that kernels take, in words that threads share.

A lock is two int64 words, eight apart so that each has its cache line: the next ticket and the
ticket being served (a ticket lock: first come, first served, so that nobody starves behind a
thread that takes it again and again). Two rules hold for every lock here, by its type:

- What may be waited for by a thread that holds the GIL is only ever held by code that cannot need
  the GIL; else the two wait for each other for ever. That is a `SpinLock`: kernels take it, and
  there is no way to take it from Python.
- No exception falls between taking a lock and the block that gives it back. Python runs a signal's
  handler between two bytecodes, so a lock that is taken by a method in Python can be left held for
  ever. Only machine code takes a `KernelLock` and gives it back, and Python looks for signals
  neither between its `__enter__` and the `with` block nor between that block and its `__exit__`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from timerstore.timelog.jit.entrypoint import entry_ahead, entry_point
from timerstore.timelog.jit.intrinsics import (
    compare_exchange,
    fetch_add,
    load_acquire,
    store_release,
    view_words,
)
from timerstore.timelog.jit.kernel import INTERPRETED, c_function, inlined, load_ahead
from timerstore.timelog.jit.record import Words
from timerstore.timelog.jit.system import nap_us, thread_id, yield_processor

LOCK_WORDS: Final = 16
_NAMES: Final = 1 << 10
"""Calls that a gate knows by their thread; it only counts those beyond."""
GATE_WORDS: Final = _NAMES + 8
_HOLDER: Final = 1  # the thread that took it from Python, else 0
_PASSED: Final = 2  # blocks of `if_free` inside the holder's own, which went on without
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


# Blocks of a `with` statement call `__exit__` with three arguments; here they come as addresses.


@inlined
def _take(address: int) -> None:
    lock = view_words(address, LOCK_WORDS)
    lock_acquire(lock)
    lock[_HOLDER] = thread_id()


@inlined
def _give_back(address: int) -> None:
    lock = view_words(address, LOCK_WORDS)
    lock[_HOLDER] = 0
    lock_release(lock)


def _acquire_if_free(address: int) -> int:
    """Take the lock if nobody has it; return whether this did."""
    lock = view_words(address, LOCK_WORDS)
    me = thread_id()
    if lock_if_free(lock):
        lock[_HOLDER] = me
        return 1
    if lock[_HOLDER] == me:  # a signal's handler, in the midst of this thread's block
        lock[_PASSED] += 1
    return 0


def _release_if_taken(address: int, kind: int, error: int, trace: int) -> None:
    lock = view_words(address, LOCK_WORDS)
    if lock[_HOLDER] != thread_id():
        return
    if lock[_PASSED] > 0:
        lock[_PASSED] -= 1
    else:
        _give_back(address)


def _acquire(address: int) -> None:
    _take(address)


def _release(address: int, kind: int, error: int, trace: int) -> None:
    _give_back(address)


def _acquire_all(address: int) -> None:
    for i in range(3):
        _take(address + 8 * LOCK_WORDS * i)


def _release_all(address: int, kind: int, error: int, trace: int) -> None:
    for i in range(3):
        _give_back(address + 8 * LOCK_WORDS * i)


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
    return gate_enter(view_words(address, GATE_WORDS))


def _leave(address: int, kind: int, error: int, trace: int) -> None:
    gate = view_words(address, GATE_WORDS)
    me = thread_id()
    first, word = me >> 8, _NAMES
    for i in range(_NAMES):
        if load_acquire(gate, (first + i) & (_NAMES - 1)) == me:
            word = (first + i) & (_NAMES - 1)
            break
    gate_leave(gate, word)


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


@cache
def section_entry(function: Callable[..., None], *, waits: bool) -> Any:
    """Return a function in C, for Python to call; one that `waits` lets the GIL go meanwhile."""
    count = function.__code__.co_argcount
    if INTERPRETED:
        return function
    address = c_function(function)
    prototype = ctypes.CFUNCTYPE if waits else ctypes.PYFUNCTYPE
    return prototype(None, ctypes.c_int64, *(ctypes.py_object,) * (count - 1))(address)


def section_ahead(function: Callable[..., None], *, waits: bool) -> None:
    """Have `section_entry` find it compiled."""
    load_ahead(function, load=partial(section_entry, function, waits=waits))


for _each in (_acquire, _acquire_all):
    section_ahead(_each, waits=True)
for _short in (_enter, _others_inside, _acquire_if_free):
    entry_ahead(_short, keeps_gil=True)
for _other in (_release, _release_if_taken, _release_all, _leave):
    section_ahead(_other, waits=False)


class Section:
    """What is entered and left by C functions that take `words`, or a record."""

    def __init__(self, words: Any, enter: Any, leave: Any) -> None:
        self.words = words
        if isinstance(words, np.ndarray):
            place: Any = words.ctypes.data
        else:
            place = words if INTERPRETED else words.block_address
        self._enter, self._leave = partial(enter, place), partial(leave, place)

    if TYPE_CHECKING:

        def __enter__(self) -> int:
            """Enter."""

        def __exit__(self, *error: object) -> None:
            """Leave."""

    else:
        # Looked up when a `with` statement begins, before anything is taken.
        __enter__ = property(attrgetter("_enter"))
        __exit__ = property(attrgetter("_leave"))


class SpinLock:
    """A ticket lock that only kernels take."""

    def __init__(self) -> None:
        """Make an open lock."""
        self.words = np.zeros(LOCK_WORDS, np.int64)


class KernelLock(Section):
    """A ticket lock that kernels and Python share; it is not reentrant.

    Python waits without the GIL, and may need the GIL while it holds the lock. So no kernel may
    wait for it that keeps the GIL.
    """

    def __init__(self, words: Words | None = None) -> None:
        """Make an open lock; `words`: int64[LOCK_WORDS], where it stands."""
        enter, leave = section_entry(_acquire, waits=True), section_entry(_release, waits=False)
        super().__init__(np.zeros(LOCK_WORDS, np.int64) if words is None else words, enter, leave)
        self._holder = memoryview(self.words)
        self.if_free = Section(
            self.words,
            entry_point(_acquire_if_free, keeps_gil=True),
            section_entry(_release_if_taken, waits=False),
        )
        """`with lock.if_free as taken:` takes it if nobody has it, and never waits; the block
        runs in any case, and asks."""

    def is_mine(self) -> bool:
        """Tell whether this thread has taken it, in Python."""
        return bool(self._holder[_HOLDER]) and self._holder[_HOLDER] == threading.get_ident()


class ServiceLocks(Section):
    """The three locks of the services, which `with` takes all, in their order: fire, near, wheel.

    What each is for stands in `services/world/state.py`.
    """

    def __init__(self) -> None:
        """Make three open locks."""
        enter, leave = (
            section_entry(_acquire_all, waits=True),
            section_entry(_release_all, waits=False),
        )
        super().__init__(np.zeros(3 * LOCK_WORDS, np.int64), enter, leave)
        fire, near, wheel = self.words.reshape(3, LOCK_WORDS)
        self.fire, self.near, self.wheel = KernelLock(fire), KernelLock(near), KernelLock(wheel)
        # A third of the cost of looking into the array.
        self._seen = memoryview(self.words)

    def is_mine(self) -> bool:
        """Tell whether this thread has taken any of them, in Python."""
        words = self._seen
        fire, near, wheel = words[_HOLDER], words[_NEAR_HOLDER], words[_WHEEL_HOLDER]
        return bool(fire or near or wheel) and threading.get_ident() in (fire, near, wheel)


class Gate(Section):
    """Knows the threads that are inside; any number may be, each as often as it likes.

    A kernel that is a whole call goes in and out by itself, see `gate_enter`.
    """

    def __init__(self) -> None:
        """Make a gate with nobody inside."""
        enter = entry_point(_enter, keeps_gil=True)  # a fifth of the cost of a call to C
        leave = section_entry(_leave, waits=False)
        super().__init__(np.zeros(GATE_WORDS, np.int64), enter, leave)
        self._others_inside = entry_point(_others_inside, keeps_gil=True)

    def others_inside(self) -> bool:
        """Tell whether any other thread is inside. O(GATE_WORDS).

        False: who enters from now on sees all that this thread wrote before.
        """
        return self._others_inside(self.words.ctypes.data) != 0

    def is_inside(self) -> bool:
        """Tell whether this thread is inside. O(GATE_WORDS)."""
        return bool((self.words == threading.get_ident()).any())
