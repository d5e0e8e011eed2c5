"""First puts are found by their ids, beside a look at each message."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.services.alone import DEQUEUE_PUT, START_MS, Alone, delete, timer
from timerstore.services.first_puts import GONE, NO_ROW, UNKNOWN, UNMAPPED, look_up
from timerstore.timelog.message import FOUND_WORDS

TOPICS = ("orders", "mail", "new")


def looked_up(alone: Alone, asked: list[tuple[int, int]], start: int) -> tuple[int, list[int], Any]:
    """What the kernel says of (due time, offset) pairs: where it stopped, rows, indexes."""
    engine, count = alone.engine, len(asked)
    rows, indexes = np.full(count, UNMAPPED, np.int64), np.zeros(count, np.int64)
    due_ms, offsets = np.array(asked, np.int64).reshape(-1, 2).T.copy()
    levels, found = np.full(count, -1, np.int64), np.zeros(FOUND_WORDS, np.int64)
    log, queues = engine.commitlog, engine.queues.table
    at = (log.shared_table, queues, offsets, due_ms, alone.tag, start, log.end, engine.done, 0)
    born_ms, body_bytes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    stopped = look_up(*at, found, rows, indexes, levels, born_ms, body_bytes)
    return stopped, rows.tolist(), indexes.tolist()


@settings(max_examples=60, deadline=None)
@given(
    put=st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 99), st.booleans()), max_size=9),
    asked=st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 1), st.integers(0, 2)), max_size=9),
    first_kept=st.integers(0, 3),
)
def test_rows_and_indexes(put: Any, asked: Any, first_kept: int) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        alone.row("rmq_sys_wheel_timer")
        rows = {topic: alone.row(topic) for topic in TOPICS[:2]}
        placed = []
        for topic, after_ms, is_delete in put:
            due_ms = START_MS + after_ms
            made = delete(alone.tag, topic, due_ms, "0" * 32) if is_delete else None
            message = alone.put(made or timer(alone.tag, topic, due_ms))
            placed.append((due_ms, message, topic, is_delete))
        start = placed[first_kept % len(placed)][1].offset if placed else 0
        pairs, expected = [], []
        for which, moved, later in asked if placed else []:
            due_ms, message, topic, is_delete = placed[which % len(placed)]
            pairs.append((due_ms + later, message.offset + moved))
            if message.offset + moved < start:
                expected.append((GONE, 0))
            elif moved or later or is_delete:
                expected.append((UNKNOWN, 0))
            else:
                row = rows.get(topic, NO_ROW)
                expected.append((row, message.queue_offset))
        stopped, found_rows, indexes = looked_up(alone, pairs, start)
        for i, (row, index) in enumerate(expected):
            if row == NO_ROW:
                assert (stopped, found_rows[i]) == (i, NO_ROW)
                break
            assert found_rows[i] == row and (row < 0 or indexes[i] == index)
        else:
            assert stopped == len(pairs)
