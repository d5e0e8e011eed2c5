"""The arrays of the delay levels."""

import numpy as np

from tests import naive
from timerstore.services.levels import (
    LEVEL_BATCH_MAX,
    LEVEL_FAILED,
    NO_HEAD,
    new_level_table,
)


def test_a_new_table_has_no_queue_and_waits_for_nothing() -> None:
    delays = np.array(naive.parse_levels("5s 1m 2s"), np.int64)
    table = new_level_table(delays, 77)
    assert set(table.row.tolist()) == {-1} and set(table.number.tolist()) == {-1}
    assert set(table.head_index.tolist()) == {NO_HEAD} and not table.offset.any()
    assert table.words[LEVEL_BATCH_MAX] == 77
    assert table.words[LEVEL_FAILED] == -1


def test_a_level_that_is_not_configured_is_as_long_as_the_longest() -> None:
    """A broker's queue of such a level may hold messages: none may count as the clock's fault."""
    table = new_level_table(np.array([5_000, 60_000, 2_000], np.int64), 1)
    assert table.level_ms[:4].tolist() == [5_000, 60_000, 2_000, 60_000]
    assert set(table.level_ms[3:].tolist()) == {60_000}
