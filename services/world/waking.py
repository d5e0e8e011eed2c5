"""Waking enqueue-get from a kernel that has appended something."""

from __future__ import annotations

from typing import Final

from timerstore.jit.kernel import inlined
from timerstore.jit.record import Words, add_to_word, exchange_word
from timerstore.jit.system import wake
from timerstore.services.world.state import EnqueueGet
from timerstore.timelog.writing.append import QueueTable

WAKE_COUNT: Final = 1_024
"""Puts that may wait for a sleeping thread: the next one wakes it, whenever it is due."""
NO_HURRY_MS: Final = 1_000_000
"""A delete need not be linked soon: the cancelled set has its target."""


@inlined
def wake_for(
    queues: QueueTable, enqueue_get: EnqueueGet, due_ms: int, eventfd: int, scratch: Words
) -> None:
    """Wake enqueue-get if it sleeps too long for what was appended, due at `due_ms`.

    `eventfd`: its thread's. `scratch`: int64[8].
    """
    # A load behind the append, never before it.
    until_ms = add_to_word(enqueue_get.thread, "sleeping_until_ms", 0)
    behind = queues.next_index[0] - enqueue_get.fetched_index
    if until_ms != 0 and (due_ms < until_ms or behind >= WAKE_COUNT):
        # Else somebody else wakes it.
        if exchange_word(enqueue_get.thread, "sleeping_until_ms", 0) != 0:
            wake(eventfd, scratch)
