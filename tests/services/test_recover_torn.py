"""What was torn at the log's end: a batch counts as a whole.

`tests/consuming/test_ackput.py` tears it at many places.
"""

from typing import Any

import numpy as np
import pytest

from tests.services.alone import DEQUEUE_PUT, START_MS, Alone
from timerstore.services.calls.deletes import append_all
from timerstore.services.opening.recover_torn import torn_bytes, whole_count
from timerstore.timelog.reading import scan
from timerstore.timelog.writing.ackrecord import ACKS_TOPIC, AckRecord, compose_record
from timerstore.timelog.writing.append import new_stage
from timerstore.timelog.writing.compose import Staged, compose, stage_messages


def rows_of(places: list[int]) -> Any:
    """What a scan says of messages at some places, as far as it matters here."""
    part = np.zeros((len(places), scan.ROW_COLUMNS), np.int64)
    part[:, scan.ROW_OFFSET] = places
    return part


@pytest.mark.parametrize("put_count", [1, 2, 5])
def test_a_record_counts_with_all_of_its_puts(put_count: int) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        engine = alone.engine
        row, acks = engine.queues.row(b"t"), engine.queues.row(ACKS_TOPIC)
        record = compose_record(AckRecord("g", "t", 0, 7, put_count), START_MS)
        other = Staged(compose(b"t", b"x", b"", born_ms=START_MS), row, 0, -1, 0)
        stage = new_stage()
        count = stage_messages(stage, [other, Staged(record, acks, 0, -1, 0), *[other] * put_count])
        append_all(engine, stage, count, START_MS, together=True)
        places = stage.offset[:count].tolist()
        queue_rows = np.array([row, acks, *[row] * put_count], np.int64)
        for there in range(2, count + 1):
            whole = whole_count(engine, rows_of(places[:there]), queue_rows[:there])
            assert whole == (there if there == count else 1)
        assert whole_count(engine, rows_of(places[:1]), queue_rows[:1]) == 1
        assert whole_count(engine, rows_of([]), queue_rows[:0]) == 0
        # What is no record of ours is a message as any.
        assert whole_count(engine, rows_of(places[:1]), queue_rows[1:2]) == 1
        assert torn_bytes(engine, engine.commitlog.end) == 0
        assert torn_bytes(engine, places[-1]) > 0
