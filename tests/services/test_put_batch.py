"""Many puts in one kernel, beside their messages decoded one by one."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import naive
from tests.services.alone import DEQUEUE_PUT, START_MS, Alone
from timerstore.arguments import Binaries
from timerstore.services.put_batch import put_batch
from timerstore.timelog.append import STAGE_COUNT_MAX, new_stage
from timerstore.timelog.frame import new_template

PUTS = st.lists(
    st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 99), st.text("abc", min_size=1)),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(puts=PUTS, with_keys=st.booleans())
def test_each_is_in_the_log_where_it_says(puts: Any, with_keys: bool) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        engine, stage = alone.engine, new_stage(STAGE_COUNT_MAX)
        alone.row("rmq_sys_wheel_timer")
        row, none = alone.row("t"), np.zeros(0, np.int64)
        template = new_template(b"t", pending_row=row, change=1, tags_code=0)
        bodies = Binaries([body for body, _, _ in puts], "bodies")
        keys = Binaries([key.encode() for _, _, key in puts], "keys")
        due_ms = np.array([START_MS + ms for _, ms, _ in puts], np.int64)
        offsets, done = np.zeros(len(puts), np.int64), 0
        while done < len(puts):
            done = put_batch(
                engine.commitlog.shared_table,
                engine.queues.table,
                engine.append_lock.words,
                stage,
                template,
                bodies.address,
                bodies.length,
                keys.address if with_keys else none,
                keys.length if with_keys else none,
                due_ms,
                done,
                START_MS,
                alone.tag,
                offsets,
            )
            if done < len(puts):
                engine.provide_append(stage)
        entries = engine.queues.read(0, 0, len(puts)) if puts else []
        assert engine.queues.next_index(0) == len(puts)
        for i, entry in enumerate(entries):
            offset = int(entry["offset"])
            data = engine.commitlog.read(offset, int(entry["size"]))
            message = naive.decode_message(data, offset)
            body, after_ms, key = puts[i]
            assert (message.body, message.queue_offset, offset) == (body, i, int(offsets[i]))
            assert message.properties["TIMER_OUT_MS"] == str(START_MS + after_ms)
            assert message.properties.get("KEYS") == (key if with_keys else None)
            assert message.properties["REAL_TOPIC"] == "t"
