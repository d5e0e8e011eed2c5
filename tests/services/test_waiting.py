"""Whether a timer waits that may have been taken, beside a twin that looks everywhere."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.naive_services import MARKS_DELETE, PLAIN
from tests.naive_waiting import in_chains, waits
from tests.services.alone import DEQUEUE_GET, PRECISION_MS, START_MS, START_SLOT, Alone
from timerstore.pending.overdue import find_units, settle_theirs
from timerstore.services.calls.first_puts import new_first_puts
from timerstore.services.calls.waiting import COPIED, IN_CHAINS, OVER, WAITS, judge_timers
from timerstore.timelog.bytes.message import IDENTITY_OURS

FIRST = 1 << 30
UNITS = st.lists(
    st.tuples(
        st.integers(0, 9),  # the slot, of which a broker's timer may be due up to one later
        st.integers(-900, 250),  # when it is due, ms from the slot's beginning
        st.sampled_from([PLAIN, PLAIN, PLAIN, PLAIN | MARKS_DELETE]),
    ),
    max_size=60,
)
TURNS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 35, 100, 350, -400, 1_200]),  # the clock's step, ms
        st.integers(0, 5),  # entries that ring C loses: they fire
        st.integers(0, 2),  # late arrivals
    ),
    max_size=8,
)


def link(alone: Alone, i: int, slots: int, ms: int, magic: int) -> tuple[int, int]:
    """Link a unit; return its due time, which it says, and the slot."""
    slot = START_SLOT + slots
    due_ms = slot * PRECISION_MS + ms
    at_ms = slot * PRECISION_MS + min(max(ms, 0), PRECISION_MS - 1)
    due_ms = max(due_ms, at_ms) if ms >= 0 else at_ms
    written_ms = naive.write_ms(slot, START_MS, PRECISION_MS)
    delta = at_ms - written_ms
    unit = naive.Unit(52, -1, magic, written_ms, delta, FIRST + i, 300, 9, 1, due_ms - at_ms)
    alone.link(slot, unit)
    return due_ms, slot


@given(units=UNITS, aside=st.integers(0, 4), turns=TURNS)
def test_it_waits_where_the_twin_finds_it(
    units: list[tuple[int, int, int]], aside: int, turns: list[tuple[int, int, int]]
) -> None:
    with Alone(DEQUEUE_GET) as alone:
        world = alone.engine.world
        asked, theirs = list[tuple[int, int]](), list[tuple[int, int]]()  # due time, message
        for i, (slots, ms, magic) in enumerate(units):
            due_ms, slot = link(alone, i, slots, ms, magic)
            if magic == PLAIN:
                of_ours = due_ms // PRECISION_MS == slot
                (asked if of_ours else theirs).append((due_ms, FIRST + i))
        alone.set_cursors(aside_stop=START_SLOT + aside, front=START_SLOT + aside)
        alone.set_cursors(claimed=START_SLOT + aside, walked=START_SLOT + aside)
        alone.set_cursors(aside_claimed=START_SLOT, aside_walked=START_SLOT)
        alone.set_cursors(frontier=1 << 50, linked=1 << 40)
        now_ms = START_MS
        for step_ms, fired, late in turns:
            now_ms += step_ms
            for _ in range(late):
                slot, message = alone.cursor("claimed") - 1, FIRST + len(units) + len(asked)
                if slot >= alone.cursor("front"):
                    due_ms = slot * PRECISION_MS - 30
                    alone.push("late", [(slot, PLAIN, message, 300, due_ms)])
                    asked.append((due_ms, message))
            alone.step(now_ms)
            alone.pop("dequeue", fired)
        asked.append((now_ms, FIRST + 10_000))  # nowhere
        due_ms, messages = np.array(asked, np.int64).T.copy()
        puts = new_first_puts(due_ms, messages)
        puts.row[:] = 1

        def judge(which: Any) -> list[int]:
            became = np.zeros(len(messages), np.int8)
            judge_timers(world, which, IDENTITY_OURS, messages, True, became)
            return became.tolist()

        unsought = judge(puts)
        for (due, message), found in zip(asked, unsought, strict=True):
            expected = WAITS if waits(alone, message) else OVER
            if found == IN_CHAINS:
                assert in_chains(alone, due)
            else:
                assert found == expected
        core: Any = SimpleNamespace(engine=alone.engine)
        find_units(core, puts, np.arange(len(messages)))
        sought = judge(puts)
        expected = [WAITS if waits(alone, message) else OVER for _, message in asked]
        assert sought == expected
        for due, message in asked + theirs:
            one = new_first_puts(np.array([due]), np.array([message]))
            one.row[:] = 1
            assert settle_theirs(core, one, 7, 7) == (WAITS if waits(alone, message) else OVER)
        # What was claimed since its unit was found is in the near wheel, or was taken.
        for _ in range(4):
            now_ms += 3 * PRECISION_MS
            alone.step(now_ms)
        for (_, message), found in zip(asked, judge(puts), strict=True):
            assert found == IN_CHAINS or (found == WAITS) == waits(alone, message)


def test_a_copy_takes_the_place_of_what_lies_before_the_floor() -> None:
    with Alone(DEQUEUE_GET) as alone:
        due_ms, _ = link(alone, 0, 0, 5, PLAIN)
        alone.set_cursors(frontier=1 << 50, linked=1 << 40, floor=FIRST + 1)
        puts = new_first_puts(np.array([due_ms]), np.array([FIRST]))
        puts.row[:] = 1
        became = np.zeros(1, np.int8)
        judge_timers(alone.engine.world, puts, IDENTITY_OURS, puts.offset, True, became)
        assert became[0] == COPIED
