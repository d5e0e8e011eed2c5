"""Locks that no exception leaves held, wherever Python looks for signals.

Python runs a signal's handler between two bytecodes. Where exactly differs between its versions:
3.14 looks between the `__enter__` of a `with` statement and its block, 3.12 and 3.13 at jumps back
that the block does not cover. So an exception can end a block whose `__exit__` is never called.

`with lock.guard():` does not hang on that. A guard gives back what it took when Python drops it,
like a lock_guard of C++. Nobody but the `with` statement has it: it lies within the bound
`__exit__` on the stack of the frame. However the block ends, Python drops what lies there, before
the `except`, the `finally` or the caller that comes next. Three steps must not be parted: to take
the lock and note that it is taken, to give it back, to drop the guard. Each is one call of a
built-in function, in which Python looks for no signal. So a guard is only ever made by the `with`
statement itself, and what takes a lock and gives it back is built-in, or machine code.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import compress
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final, TypeVar

from timerstore.errors import StoreFullError

_KEY: Final = ("give_back",)
_nothing: Final[Callable[..., str]] = "".format
"""A built-in function that takes anything, does nothing, and returns what is false."""


class _Taken(dict[str, Any]):
    """What gives a lock back, once it is taken; Python calls that when this is dropped."""

    __slots__ = ()
    __del__ = property(methodcaller("pop", *_KEY, _nothing))


class Guard:
    """A context manager for one `with` statement; its block is told whether the lock was taken."""

    __slots__ = ("_enter", "_exit")

    def __init__(self, enter: Callable[[], bool], taken: _Taken) -> None:
        """`enter` takes the lock and notes it in `taken`."""
        self._enter, self._exit = enter, partial(_nothing, taken)

    if TYPE_CHECKING:

        def __enter__(self) -> bool:
            """Take the lock."""

        def __exit__(self, *error: object) -> None:
            """Give it back."""

    else:
        # Python asks for both before it calls the first, and then drops the guard itself.
        __enter__ = property(attrgetter("_enter"))
        __exit__ = property(attrgetter("_exit"))


class Guarded:
    """What one built-in function takes, or machine code, and another one gives back."""

    def __init__(
        self, acquire: Callable[..., object], given: object, release: Callable[[], object]
    ) -> None:
        """`acquire` is called with `given`, and returns something true if it took it."""
        self._acquire, self._given, self._releases = acquire, (given,), (release,)

    def guard(self) -> Guard:
        """Return what takes it for one `with` statement."""
        taken = _Taken()
        releases = compress(self._releases, map(self._acquire, self._given))  # it, once taken
        return Guard(partial(any, map(taken.setdefault, _KEY, releases)), taken)


class _ThreadLock(Guarded):
    """A lock of Python's, for the threads of a process; who waits for it can be interrupted."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock.acquire, True, lock.release)
        self.if_free: Final = Guarded(lock.acquire, False, lock.release)
        """Takes it if nobody has it, and never waits; the block runs in any case, and asks."""


class Lock(_ThreadLock):
    """A lock that its holder cannot take again."""

    def __init__(self) -> None:
        lock = threading.Lock()
        super().__init__(lock)
        self.locked: Final[Callable[[], bool]] = lock.locked
        """Whether somebody has it."""


class RLock(_ThreadLock):
    """A lock that its holder may take again: a signal's handler, say, in the midst of its block."""

    def __init__(self) -> None:
        lock: Any = threading.RLock()
        super().__init__(lock)
        self.is_mine: Final[Callable[[], bool]] = lock._is_owned
        """Whether the calling thread has it."""


# --- Work that no exception of its caller's reaches: in a thread of its own.
#
# Numba takes locks in Python while it loads or compiles a kernel. A signal's exception that fell
# just there would leave them held, and every thread would wait at its next kernel for ever.

R = TypeVar("R")

_LOOK_S: Final = 0.1
_unfinished: set[int] = set()
"""The threads in which something runs."""
_ending = False


class AtEnd:
    """Makes a call when the thread that it is passed to has ended, even one without memory."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


def no_thread_error(name: str) -> StoreFullError:
    """Return the error of a thread that could not begin."""
    return StoreFullError(
        f"The system has no thread, or no memory, left for {name}. End other threads and "
        "processes, or raise their limit (`ulimit -u`)."
    )


def apart(work: Callable[[], R], tell: Callable[[], None] | None = None) -> R:
    """Return what `work` returns, or raise what it raises, in a thread of its own.

    An exception that falls into the caller ends only its wait; the work goes on. `tell` is called
    every 0.1 s while it does. The program's end waits for what still runs:
    machine code is not left in the midst of being loaded. Work of many steps asks `is_ending`
    between them. Within such work, more of it runs in the same place.
    """
    if _thread.get_ident() in _unfinished:
        return work()
    results: list[R] = []
    errors: list[BaseException] = []
    running = _thread.allocate_lock()  # its methods are C: no signal leaves it half taken
    running.acquire()

    def run(at_end: AtEnd) -> None:
        del at_end  # the trace of an error would keep it
        me = _thread.get_ident()
        try:
            _unfinished.add(me)  # here, not by the caller: an exception may come before the thread
            results.append(work())
        except BaseException as e:
            errors.append(e)
        finally:
            _unfinished.discard(me)

    try:
        _thread.start_new_thread(run, (AtEnd(running.release),))
    except RuntimeError as e:
        raise no_thread_error("a kernel") from e
    while not running.acquire(timeout=_LOOK_S):  # a signal may come just before it sleeps
        if tell is not None:
            tell()
    if errors:
        raise errors[0]
    if not results:
        raise no_thread_error("a kernel")
    return results[0]


def is_ending() -> bool:
    """Tell whether the program's end waits for what still runs."""
    return _ending


def _finish() -> None:
    global _ending
    _ending = True
    while _unfinished:
        time.sleep(0.01)
    _ending = False  # who comes later at the program's end still gets what he asks for


atexit.register(_finish)


def _wait_to_fork() -> None:
    """Let no child be forked while somebody holds Numba's locks: in the child nobody would."""
    while _unfinished and _thread.get_ident() not in _unfinished:
        time.sleep(0.01)


os.register_at_fork(before=_wait_to_fork, after_in_child=_unfinished.clear)
