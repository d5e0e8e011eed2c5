"""Matching copies to sources: the kernel gives what `BrokerCopies` gives, message by message."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.reading import scan
from timerstore.timelog.reading.copies import (
    ROLE_COPY,
    ROLE_DELETE,
    ROLE_LEVEL,
    ROLE_SOURCE,
    ROLE_TAKEN,
    BrokerCopies,
    match_copies,
)

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
    rows = np.full((len(log), scan.ROW_COLUMNS), -1, np.int64)
    what = np.array([entry[2] for entry in log], np.int64)
    for i, (who, rolls, kind, is_delete, back) in enumerate(log):
        rows[i, [scan.ROW_DUE_MS, scan.ROW_REAL_TOPIC_BYTES]] = 1
        if kind in (LEVEL, COPY_WITHOUT_DUE):
            rows[i, scan.ROW_DUE_MS] = -1
        rows[i, [scan.ROW_IDENTITY_HIGH, scan.ROW_IDENTITY_LOW]] = who
        rows[i, scan.ROW_OFFSET], rows[i, scan.ROW_ROLL_TIMES] = 100 * i, rolls
        rows[i, scan.ROW_IS_DELETE] = is_delete
        if 0 < back <= i:
            rows[i, scan.ROW_ORIGIN] = 100 * (i - back)
    waits, in_level = what == TIMER, what == LEVEL
    twin = BrokerCopies()
    twin.take(rows, waits, in_level)
    origins, copies = twin.match()

    who, rolls = rows[:, scan.ROW_IDENTITY_LOW], rows[:, scan.ROW_ROLL_TIMES]
    role = np.where(waits, ROLE_SOURCE, 0)
    named = rows[:, scan.ROW_ORIGIN] >= 0
    role |= np.where(~named & ((what >= COPY) | (waits & (rolls > 0))), ROLE_COPY, 0)
    role[rows[named, scan.ROW_ORIGIN] // 100] |= ROLE_TAKEN
    role |= np.where(in_level | (~named & (what == COPY_WITHOUT_DUE)), ROLE_LEVEL, 0)
    role |= np.where(rows[:, scan.ROW_IS_DELETE] == 1, ROLE_DELETE, 0)
    order = np.argsort(who, kind="stable")
    found = np.full(len(log), -2, np.int64)
    match_copies(who[order], rolls[order], role[order], found)
    matched = {
        100 * int(order[i]): 100 * int(order[source])
        for i, source in enumerate(found.tolist())
        if source >= 0
    }
    assert matched == dict(zip(copies.tolist(), origins.tolist(), strict=True))
