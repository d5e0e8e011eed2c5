"""Event loops that a call blocks: a line in the log names the call, with what to await instead."""

from __future__ import annotations

import logging
import sys
from types import FrameType
from typing import Final

log = logging.getLogger("timerstore")

ASYNCIO: Final = "asyncio.events"
"""The module without which there is no loop."""

_told: set[str] = set()  # the calls that were named


def note_blocking() -> None:
    """Log a warning if the calling thread runs an event loop, once for each public call.

    Called where a thread is about to wait. A cell of a notebook runs in a loop too, but stops
    nothing. O(1) where no loop runs.
    """
    events = sys.modules.get(ASYNCIO)
    if events is not None and events._get_running_loop() is not None:
        _tell(sys._getframe(1))


def _tell(frame: FrameType | None) -> None:
    name = ""
    while frame is not None and _package(frame) == "timerstore":
        name, frame = frame.f_code.co_qualname, frame.f_back
    name = name.removesuffix(".__init__").rpartition(".")[2]
    name = {"__exit__": "close", "__next__": "consume", "TimerStore": "open"}.get(name, name)
    user = frame
    while frame is not None:
        if _package(frame) == "IPython":
            return
        frame = frame.f_back
    if name in _told or user is None:
        return
    _told.add(name)
    log.warning(
        "%s() was called in a running event loop, which stands still while the call waits: %s, "
        "line %d. Await it: `await %s.%s(…)` of timerstore.aio, or `await asyncio.to_thread(…)`. "
        "This is said once for each call.",
        *(name, user.f_code.co_filename, user.f_lineno),
        *("timerstore.aio" if name == "open" else "store", name),
    )


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
