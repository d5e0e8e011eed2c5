"""Delete messages: what a cancel leaves in the log, over segments."""

import numpy as np
import pytest

from tests import naive
from tests.services.alone import ENQUEUE_GET, START_MS, Alone
from timerstore.services.deletes import append_all, append_deletes
from timerstore.timelog.append import new_stage
from timerstore.timelog.compose import Staged, compose, stage_messages


@pytest.mark.parametrize("count", [0, 1, 90])
def test_each_target_has_a_delete_of_its_own_time(count: int) -> None:
    with Alone(ENQUEUE_GET) as alone:
        row = alone.row("orders")
        keys = [
            naive.encode_unique_key(naive.UniqueKey(START_MS + i, 1_000 + i, alone.tag))
            for i in range(count)
        ]
        digits = np.array([list(key.encode()) for key in keys], np.uint8).reshape(count, 32)
        due_ms = np.arange(START_MS, START_MS + count)
        append_deletes(alone.engine, new_stage(), b"orders", digits, due_ms, START_MS, row, 1, 1)
        found = alone.messages()
        assert [m.properties["TIMER_DEL_UNIQKEY"] for m in found] == [f"orders+{k}" for k in keys]
        assert [int(m.properties["TIMER_OUT_MS"]) for m in found] == due_ms.tolist()
        assert {(m.topic, m.body, m.stored_ms) for m in found} <= {
            (naive.TIMER_TOPIC, b"\x01", START_MS)
        }
        assert [e.message_offset for e in alone.entries(0)] == [m.offset for m in found]
        assert alone.pending(row) == -count
        assert count < 90 or alone.engine.commitlog.end > 4 * 4_096


def test_what_goes_together_is_appended_at_once_or_not_at_all() -> None:
    """Two messages that need two segments which are not there."""
    with Alone(ENQUEUE_GET) as alone:
        stage, large = new_stage(), compose(b"t", bytes(2_500), b"", born_ms=1)
        row = alone.row("t")
        count = stage_messages(stage, [Staged(large, row, 0, -1, 0)] * 2)
        append_all(alone.engine, stage, count, START_MS, together=True)
        assert [message.offset for message in alone.messages()] == [0, 4_096]
        assert [int(offset) for offset in stage.offset[:2]] == [0, 4_096]


def test_what_does_not_go_together_goes_on_where_it_stopped() -> None:
    with Alone(ENQUEUE_GET, consumequeue_segment_bytes=40) as alone:
        row, stage = alone.row("t"), new_stage()
        messages = [compose(b"t", bytes([i]) * (100 + 90 * i), b"", born_ms=1) for i in range(20)]
        count = stage_messages(stage, [Staged(m, row, i, row, 1) for i, m in enumerate(messages)])
        append_all(alone.engine, stage, count, START_MS, together=False)
        assert [message.body[0] for message in alone.messages()] == list(range(20))
        assert [entry.tags_code for entry in alone.entries(row)] == list(range(20))
        assert alone.pending(row) == 20
