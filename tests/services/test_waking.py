"""Whoever appends wakes enqueue-get only where it must."""

import select
from typing import Any

import numpy as np
import pytest

from tests.services.alone import DEQUEUE_PUT, ENQUEUE_GET, Alone
from timerstore.services.waking import WAKE_COUNT, wake_for
from timerstore.timelog.jit.kernel import kernel


@kernel
def _wake_for(queues: Any, enqueue_get: Any, due_ms: int, eventfd: int, scratch: Any) -> None:
    wake_for(queues, enqueue_get, due_ms, eventfd, scratch)


@pytest.mark.parametrize("until_ms", [0, 1_000])
@pytest.mark.parametrize("due_ms", [999, 1_000])
@pytest.mark.parametrize("behind", [WAKE_COUNT - 1, WAKE_COUNT])
def test_it_is_woken_for_what_is_due_before_it_looks(
    until_ms: int, due_ms: int, behind: int
) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        world, eventfd = alone.engine.world, alone.engine.eventfds[ENQUEUE_GET]
        alone.engine.queues.table.next_index[0] = behind
        world.enqueue_get.thread.sleeping_until_ms = until_ms
        queues, scratch = alone.engine.queues.table, np.zeros(8, np.int64)
        _wake_for(queues, world.enqueue_get, due_ms, eventfd, scratch)
        woken = until_ms > 0 and (due_ms < until_ms or behind >= WAKE_COUNT)
        assert bool(select.select([eventfd], [], [], 0)[0]) == woken
        assert world.enqueue_get.thread.sleeping_until_ms == (0 if woken else until_ms)
        alone.engine.queues.table.next_index[0] = 0
