"""Closing a store: nobody gets in any more, who is inside leaves, then its files are let go.

An exception may end each step, such as one that a signal handler raises. The next call goes on
where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from timerstore.calls.consuming.consuming import Consuming
from timerstore.core.core import Core
from timerstore.errors import TimerStoreError
from timerstore.services.durable.flush import remove_abort
from timerstore.services.world.clock import ManualClock, unlisten

LINK_PATIENCE_S: Final = 2.0
"""Closing waits until each timer has its unit, so that the next opening is short; so long for each
step."""


def close(
    core: Core, consuming: Consuming, *, flush: bool, last: Callable[[], None] | None = None
) -> None:
    """Close a store; see `TimerStore.close`. Without `flush` as a crash of the process would.

    `last`: called once all is durable, while the store's lock is still held.
    """
    if core.forked or (core.closed and core.ended):
        return
    if core.gate.is_inside() or consuming.is_held:
        raise TimerStoreError(
            "close() was called inside another call of the same thread, for example in a signal "
            "handler. Raise an exception in the signal handler instead, and call close() where "
            "you catch it."
        )
    with core.closing.guard():
        if core.ended:
            return
        core.closed = True
        core.end_short_way()
        for each in core.at_close:
            each()
        while core.gate.others_inside():
            time.sleep(0.0005)
        for group in consuming.known_groups():
            group.let_go()
        if isinstance(core.clock, ManualClock):
            unlisten(core.clock, core.clock_moved)
        core.flusher.stop()  # first: cleaning appends copies, which are linked as all else
        if flush and core.failure.error is None:
            core.runner.link_all(LINK_PATIENCE_S)
        core.runner.stop()
        try:
            if flush and core.failure.error is None and not core.flushed:
                core.flusher.flush(clean=True)
                if last is not None:
                    last()
                remove_abort(core.disk, core.path)
        except (TimerStoreError, OSError):  # the disk's; a signal's is flushed by the next call
            core.flushed = True
            core.let_go()
            raise
        core.flushed = True
        core.let_go()
    if flush:
        core.failure.check()
