"""Matching copies to sources: as the slow twin does it, message by message."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive_copies
from timerstore.timelog.reading.pastdamage import BrokerCopies
from timerstore.timelog.reading.scan import LoggedMessages

TIMER, LEVEL, COPY, COPY_WITHOUT_DUE, TIMER_WITHOUT_DUE = range(5)
# (timer, rolls, what it is, whether it is a delete, how far before it the one stands that it names)
LOGS = st.lists(
    st.tuples(
        *(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4), st.booleans()),
        st.sampled_from([0, 0, 0, 1, 2, 5]),
    ),
    max_size=30,
)


def read(broker: BrokerCopies, rows: LoggedMessages, what: np.ndarray, cuts: list[int]) -> None:
    """Let it take a log in parts."""
    ends = [*sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    for start, stop in zip([0, *ends], ends, strict=False):
        part = what[start:stop]
        waits = (part == TIMER) | (part == TIMER_WITHOUT_DUE)
        broker.take(rows[start:stop], waits, part == LEVEL)


@given(LOGS, st.lists(st.integers(0, 30), max_size=3), st.booleans())
def test_as_the_twin(
    log: list[tuple[int, int, int, bool, int]], cuts: list[int], is_real: bool
) -> None:
    rows = LoggedMessages.room(len(log))
    rows.origin[:] = -1
    what = np.array([entry[2] for entry in log], np.int64)
    for i, (who, rolls, kind, is_delete, back) in enumerate(log):
        rows.due_ms[i] = 1 if kind in (TIMER, COPY) else -1
        rows.real_topic_bytes[i] = 1 if is_real or who else -1
        rows.identity_high[i], rows.identity_low[i] = who & 1, -who
        rows.offset[i], rows.roll_times[i] = 100 * i, rolls
        rows.is_delete[i] = is_delete
        if 0 < back <= i:
            rows.origin[i] = 100 * (i - back)
    broker = BrokerCopies()
    read(broker, rows, what, cuts)
    origins, copies = broker.match()
    waits = (what == TIMER) | (what == TIMER_WITHOUT_DUE)
    assert copies.tolist() == sorted(copies.tolist())
    twin = naive_copies.match(rows, waits, what == LEVEL)
    assert dict(zip(copies.tolist(), origins.tolist(), strict=True)) == twin


def test_many_messages_of_one_timer_are_matched_in_their_order() -> None:
    """A broker's messages may have no key, so all of them look like one timer's."""
    count = 200_000
    rows = LoggedMessages.room(2 * count)
    rows.origin[:] = -1
    rows.offset[:] = np.arange(2 * count)
    rows.due_ms[:] = rows.real_topic_bytes[:] = 1
    what = np.repeat([TIMER, COPY], count)
    broker = BrokerCopies()
    read(broker, rows, what, [])
    origins, copies = broker.match()
    assert np.array_equal(origins, np.arange(count))
    assert np.array_equal(copies, count + np.arange(count))
