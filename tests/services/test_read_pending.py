"""Pending messages in columns, beside a look at each of them."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.services.alone import DEQUEUE_PUT, START_MS, Alone, delete, timer
from timerstore.services.looking.read_units import read_timers, reading_all, reading_of
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.wheel import judge as pending

KINDS = st.sampled_from(["timer", "delete", "spoilt", "copied", "new topic"])


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
        reading = reading_of(engine, np.zeros(0, np.int64))
        columns = read_timers(engine, np.array(placed, np.int64), reading)
        verdicts = columns.verdict
        spoilt = np.array([kind == "spoilt" for kind, _ in kinds], np.bool_)
        assert ((verdicts < 0) == spoilt).all()
        kept = np.flatnonzero(verdicts == pending.PENDING)
        who = columns.due_ms, columns.high, columns.low, columns.rolls, columns.row
        found = np.vstack((np.array(placed, np.int64), *who))[:, kept]
        assert [tuple(each) for each in found.T.tolist()] == expected


def test_a_timer_has_one_identity_with_its_delete() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        put = alone.put(timer(alone.tag, "t", START_MS + 50))
        gone = alone.put(delete(alone.tag, "t", START_MS + 50, put.properties["UNIQ_KEY"]))
        messages = np.array([put.offset, gone.offset, 1 << 40])  # the third is not there
        reading = reading_all(alone.engine)
        columns = read_timers(alone.engine, messages, reading)
        kinds = columns.verdict.tolist()
        assert kinds[:2] == [pending.PENDING, pending.DELETE] and kinds[2] < 0
        one, other, none = np.stack((columns.high, columns.low), axis=1).tolist()
        assert one == other == [IDENTITY_OURS, put.offset]
        assert none == [0, 0]
