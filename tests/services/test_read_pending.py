"""Pending messages in columns, beside a look at each of them."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.services.alone import DEQUEUE_PUT, START_MS, Alone, delete, timer
from timerstore.services.pending_rows import reading_of
from timerstore.services.read_pending import read_pending
from timerstore.timelog.message import FOUND_WORDS, IDENTITY_OURS

KINDS = st.sampled_from(["timer", "delete", "spoilt", "copied", "new topic"])


@settings(max_examples=40, deadline=None)
@given(kinds=st.lists(st.tuples(KINDS, st.integers(0, 99)), max_size=9))
def test_timers_alone_are_read(kinds: Any) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        engine, row = alone.engine, alone.row("t")
        placed, expected, done = [], [], {}
        for kind, after_ms in kinds:
            due_ms = START_MS + after_ms
            topic = "new" if kind == "new topic" else "t"
            made = delete(alone.tag, "t", due_ms, "0" * 32) if kind == "delete" else None
            message = alone.put(made or timer(alone.tag, topic, due_ms))
            placed.append(message.offset)
            if kind == "spoilt":
                alone.spoil(message.offset)
            elif kind == "copied":
                done[message.offset] = 5
            elif kind != "delete":
                its_row = row if topic == "t" else -1
                one = (message.offset, due_ms, IDENTITY_OURS, message.offset, 0, its_row)
                expected.append(one)
        alone.use_sets(done=done)
        columns = np.zeros((6, len(placed)), np.int64)
        verdicts = np.zeros(len(placed), np.int64)
        count = read_pending(
            engine.commitlog.shared_table,
            engine.queues.table,
            np.array(placed, np.int64),
            reading_of(engine, np.zeros(0, np.int64)),
            np.zeros(FOUND_WORDS, np.int64),
            columns,
            verdicts,
        )
        spoilt = np.array([kind == "spoilt" for kind, _ in kinds], np.bool_)
        assert ((verdicts < 0) == spoilt).all()
        assert [tuple(each) for each in columns[:, :count].T.tolist()] == expected
