"""Which units are superseded: the kernel beside the arrays, both beside the definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.services.alone import DEQUEUE_GET, Alone
from timerstore.services.floor import Floor, is_superseded, read_floor
from timerstore.services.state import PASS_COLUMNS
from timerstore.timelog.jit.acting import ALONE, acting_as
from timerstore.timelog.jit.kernel import kernel

SMALL = st.integers(0, 12)
PASSES = st.lists(st.tuples(SMALL, SMALL, SMALL, SMALL), max_size=4)


@kernel
def _ask(cleaning: object, message: int, slot: int) -> bool:
    return is_superseded(cleaning, message, slot)  # type: ignore[arg-type]


def defined(floor: int, passes: list[tuple[int, int, int, int]], message: int, slot: int) -> bool:
    """F is past its message; or a pass has looked at it, and S is not past its slot."""
    return message < floor or any(
        start <= message < cursor and slot >= first_slot for start, cursor, first_slot, _ in passes
    )


@given(floor=SMALL, passes=PASSES, units=st.lists(st.tuples(SMALL, SMALL), max_size=20))
def test_it_is_what_is_defined(
    floor: int, passes: list[tuple[int, int, int, int]], units: list[tuple[int, int]]
) -> None:
    expected = [defined(floor, passes, *unit) for unit in units]
    messages, slots = np.array(units, np.int64).reshape(-1, 2).T
    table = np.array(passes, np.int64).reshape(-1, PASS_COLUMNS)
    assert Floor(floor, table).superseded(messages, slots).tolist() == expected
    with Alone(DEQUEUE_GET) as alone:
        cleaning = alone.engine.world.cleaning
        with acting_as(ALONE):
            cleaning.floor, cleaning.pass_count = floor, len(passes)
        cleaning.passes[: table.size] = table.ravel()
        assert [_ask(cleaning, *unit) for unit in units] == expected
        assert read_floor(cleaning).superseded(messages, slots).tolist() == expected
