"""Work that no exception of its caller's reaches: in a thread of its own.

Numba takes locks in Python while it loads or compiles a kernel. A signal's exception that fell just
there would leave them held, and every thread would wait at its next kernel for ever.
"""

from __future__ import annotations

import _thread
import atexit
import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

R = TypeVar("R")

_LOOK_S: Final = 0.1
_unfinished: set[int] = set()
"""The threads in which something runs."""
_ending = False


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

    def run() -> None:
        me = _thread.get_ident()
        try:
            _unfinished.add(me)  # here, not by the caller: an exception may come before the thread
            results.append(work())
        except BaseException as e:
            errors.append(e)
        finally:
            _unfinished.discard(me)
            running.release()

    _thread.start_new_thread(run, ())
    while not running.acquire(timeout=_LOOK_S):  # a signal may come just before it sleeps
        if tell is not None:
            tell()
    if errors:
        raise errors[0]
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
