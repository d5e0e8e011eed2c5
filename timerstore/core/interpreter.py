"""What the running Python must be, asked before a store or a client of one begins."""

from __future__ import annotations

import select
import sys
import threading
from types import BuiltinMethodType

from timerstore.errors import TimerStoreError
from timerstore.services.world.background import BackgroundThread, Flag


def check_interpreter() -> None:
    """Raise TimerStoreError in a Python in which a store would hang or go wrong. 0.1 ms.

    The engine's threads must run beside each other, and kernels read Python's objects under the
    GIL. One thread is started, to see whether the operating system runs it: so it does not matter
    which library has replaced what.
    """
    if "t" in sys.abiflags:
        raise TimerStoreError(
            "This Python is a free-threaded build, in which timerstore does not run. Use a build "
            "with the GIL, for example python3.14 instead of python3.14t."
        )
    if not (_threads_run_beside() and isinstance(getattr(select, "poll", None), BuiltinMethodType)):
        raise TimerStoreError(
            "Threads, or select.poll, are not those of the operating system here: gevent, eventlet "
            "or another library has replaced them, and timerstore's own threads would hang. Do not "
            "patch this process (gunicorn: -k gthread instead of -k gevent; Celery: -P threads or "
            "-P prefork), or put and consume in another process."
        )


def _threads_run_beside() -> bool:
    found, seen = list[int](), Flag()

    def look() -> None:
        found.append(threading.get_native_id())
        seen.set()

    BackgroundThread("timerstore-look", look, lambda error: seen.set()).start()
    while not seen.wait(0.1):
        pass
    return found != [threading.get_native_id()]
