"""Answering needs: each is cleared, whatever comes of it."""

import pytest

from tests.services.alone import Alone
from timerstore import StoreFullError
from timerstore.services.running.provide import provide
from timerstore.services.world import needs
from timerstore.services.world.state import DEQUEUE_GET, DEQUEUE_PUT, ENQUEUE_PUT


@pytest.mark.parametrize("need", [needs.COMMITLOG_SEGMENT, needs.TIMERLOG_SEGMENT])
def test_room_is_made(need: int) -> None:
    service = DEQUEUE_PUT if need == needs.COMMITLOG_SEGMENT else ENQUEUE_PUT
    with Alone(service) as alone:
        log = alone.engine.commitlog if service == DEQUEUE_PUT else alone.engine.timerlog
        thread, before = alone.thread(service), set(log.numbers)
        thread.need_offset, thread.need = log.end, need
        assert provide(alone.engine, service) == need
        assert thread.need == needs.NOTHING and set(log.numbers) >= before | {0}


def test_the_cancelled_set_grows() -> None:
    with Alone(ENQUEUE_PUT) as alone:
        thread, before = alone.thread(ENQUEUE_PUT), len(alone.engine.cancelled.table)
        for _ in range(3):
            thread.need = needs.CANCELLED_ROOM
            assert provide(alone.engine, ENQUEUE_PUT) == needs.CANCELLED_ROOM
        assert len(alone.engine.cancelled.table) >= before and thread.need == needs.NOTHING


def test_a_need_that_cannot_be_answered_is_cleared_all_the_same() -> None:
    """Else the thread that raised it would find it again, before anybody could do something."""
    with Alone(DEQUEUE_GET) as alone:
        thread = alone.thread(DEQUEUE_GET)
        thread.need = needs.NEAR_FULL
        with pytest.raises(StoreFullError, match="near_count_max"):
            provide(alone.engine, DEQUEUE_GET)
        assert thread.need == needs.NOTHING
