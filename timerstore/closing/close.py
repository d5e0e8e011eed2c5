"""Closing a store: nobody gets in any more, who is inside leaves, then its files are let go.

Each step may be ended by an exception, a signal's say; the next call goes on where it stopped.
"""

from __future__ import annotations

import time

from timerstore.consuming.consuming import Consuming
from timerstore.core import Core
from timerstore.errors import TimerStoreError
from timerstore.services.clock import ManualClock
from timerstore.services.flush import remove_abort


def give_up_opening(core: Core) -> None:
    """Let go of what `open` had begun."""
    core.closed = core.ended = True
    if hasattr(core, "runner"):
        core.runner.stop()
        core.flusher.stop()
    if hasattr(core, "engine"):
        core.engine.close_files()
    if hasattr(core, "lock_file"):
        core.lock_file.release()


def close(core: Core, consuming: Consuming, *, flush: bool) -> None:
    """Close a store; see `TimerStore.close`. Without `flush` as a crash of the process would."""
    if core.forked or (core.closed and core.ended):
        return
    if core.gate.is_inside() or consuming.is_held:
        raise TimerStoreError(
            "close() was called inside another call of the same thread, as a signal's handler "
            "may do. Raise an exception there instead, and close when it has come out."
        )
    with core.closing:
        if core.ended:
            return
        core.closed = True
        core.end_short_way()
        for each in core.at_close:
            each()
        while core.gate.others_inside():
            time.sleep(0.0005)
        if isinstance(core.clock, ManualClock):
            core.clock._unlisten(core.clock_moved)
        core.runner.stop()
        core.flusher.stop()
        try:
            if flush and core.failure.error is None and not core.flushed:
                core.flusher.flush(clean=True)
                remove_abort(core.path)
        except (TimerStoreError, OSError):  # the disk's; a signal's is flushed by the next call
            core.flushed = True
            core.let_go()
            raise
        core.flushed = True
        core.let_go()
    if flush:
        core.failure.check()
