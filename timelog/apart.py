"""Work that no exception of its caller's reaches: in a thread of its own.

Numba takes locks in Python while it loads or compiles a kernel. A signal's exception that fell just
there would leave them held, and every thread would wait at its next kernel for ever.
"""

from __future__ import annotations

import _thread
import atexit
import os
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")

_unfinished: set[Any] = set()
"""The locks of what runs; each is let go at its end."""


def apart(work: Callable[[], R], tell: Callable[[], None] | None = None, every_s: float = 1.0) -> R:
    """Return what `work` returns, or raise what it raises, in a thread of its own.

    An exception that falls into the caller ends its wait alone; the work goes on. `tell` is called
    every `every_s` seconds while it takes so long. The program's end waits for what still runs:
    machine code is not left in the midst of being loaded.
    """
    results: list[R] = []
    errors: list[BaseException] = []
    running = _thread.allocate_lock()  # its methods are C: no signal leaves it half taken
    running.acquire()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as e:
            errors.append(e)
        finally:
            _unfinished.discard(running)
            running.release()

    _unfinished.add(running)
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        _unfinished.discard(running)
        raise
    while not running.acquire(timeout=-1 if tell is None else every_s):
        if tell is not None:
            tell()
    if errors:
        raise errors[0]
    return results[0]


def _finish() -> None:
    for running in list(_unfinished):
        running.acquire()


atexit.register(_finish)
os.register_at_fork(after_in_child=_unfinished.clear)  # their threads are the parent's
