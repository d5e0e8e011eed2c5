"""Matching copies to sources: the kernel gives what `BrokerCopies` gives, message by message."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.reading.copies import (
    ROLE_COPY,
    ROLE_DELETE,
    ROLE_LEVEL,
    ROLE_SOURCE,
    ROLE_TAKEN,
    BrokerCopies,
    match_copies,
)
from timerstore.timelog.reading.scan import LoggedMessages

TIMER, LEVEL, COPY, COPY_WITHOUT_DUE = range(4)
# (timer, rolls, what it is, whether it is a delete, how far before it the one stands that it names)
LOGS = st.lists(
    st.tuples(
        *(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.booleans()),
        st.sampled_from([0, 0, 0, 1, 2, 5]),
    ),
    max_size=30,
)


@given(LOGS)
def test_as_the_twin(log: list[tuple[int, int, int, bool, int]]) -> None:
    rows = LoggedMessages.room(len(log))
    rows.origin[:] = -1
    what = np.array([entry[2] for entry in log], np.int64)
    for i, (who, rolls, kind, is_delete, back) in enumerate(log):
        rows.due_ms[i] = rows.real_topic_bytes[i] = 1
        if kind in (LEVEL, COPY_WITHOUT_DUE):
            rows.due_ms[i] = -1
        rows.identity_high[i] = rows.identity_low[i] = who
        rows.offset[i], rows.roll_times[i] = 100 * i, rolls
        rows.is_delete[i] = is_delete
        if 0 < back <= i:
            rows.origin[i] = 100 * (i - back)
    waits, in_level = what == TIMER, what == LEVEL
    twin = BrokerCopies()
    twin.take(rows, waits, in_level)
    origins, copies = twin.match()

    who, rolls = rows.identity_low, rows.roll_times
    role = np.where(waits, ROLE_SOURCE, 0)
    named = rows.origin >= 0
    role |= np.where(~named & ((what >= COPY) | (waits & (rolls > 0))), ROLE_COPY, 0)
    role[rows.origin[named] // 100] |= ROLE_TAKEN
    role |= np.where(in_level | (~named & (what == COPY_WITHOUT_DUE)), ROLE_LEVEL, 0)
    role |= np.where(rows.is_delete == 1, ROLE_DELETE, 0)
    order = np.argsort(who, kind="stable")
    found = np.full(len(log), -2, np.int64)
    match_copies(who[order], rolls[order], role[order], found)
    matched = {
        100 * int(order[i]): 100 * int(order[source])
        for i, source in enumerate(found.tolist())
        if source >= 0
    }
    assert matched == dict(zip(copies.tolist(), origins.tolist(), strict=True))
