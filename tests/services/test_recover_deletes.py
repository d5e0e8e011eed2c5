"""Recovering the cancelled set: the targets of all deletes that still count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.services.alone import (
    DEQUEUE_GET,
    PRECISION_MS,
    START_MS,
    START_SLOT,
    Alone,
    delete,
    timer,
)
from timerstore.errors import CorruptStoreError
from timerstore.services.looking.read_units import live_units
from timerstore.services.opening.recover_settled import (
    find_cancelled,
    find_timer,
    level_deletes,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.reading.scan import LoggedMessages


def link(alone: Alone, placed: naive.Message, slot: int, magic: int) -> int:
    """Put a message's unit into a slot."""
    code = naive.java_hash("t")
    unit = naive.Unit(52, -1, magic, START_MS - 5_000, slot * PRECISION_MS - START_MS + 5_000,
                      placed.offset, placed.size_bytes, code, 1, 0)  # fmt: skip
    return alone.link(slot, unit)


@given(
    st.lists(
        st.tuples(st.sampled_from(["timer", "delete", "level's delete"]), st.integers(-3, 5)),
        max_size=30,
    ),
    st.sets(st.integers(0, 3)),
    st.integers(0, 6),
)
def test_deletes_of_slots_that_are_not_passed(
    items: list[tuple[str, int]], unmapped: set[int], offset: int
) -> None:
    with Alone(DEQUEUE_GET) as alone:
        engine, expected = alone.engine, set[tuple[int, int]]()
        engine.level_row(1)
        waits = [
            alone.put(naive.new_at_level("t", b"b", 1, 0, START_MS, alone.tag, {})).offset
            for _ in range(6)
        ]
        engine.levels.offset[0] = offset
        live = 0
        for i, (kind, ahead) in enumerate(items):
            slot, due_ms = START_SLOT + ahead, START_MS + ahead * PRECISION_MS
            if kind == "timer":
                link(alone, alone.put(timer(alone.tag, "t", due_ms)), slot, 1)
            else:
                low = 4_711 + i if kind == "delete" else waits[i % 6] | fmt.LEVEL_MARK
                key = naive.encode_unique_key(naive.UniqueKey(due_ms, low, alone.tag))
                link(alone, alone.put(delete(alone.tag, "t", due_ms, key)), slot, 1 | 4)
                if ahead >= 0 and (kind == "delete" or i % 6 >= offset):
                    expected.add((-1, low))
            live += ahead >= 0
        alone.unmap(engine.commitlog, *unmapped)
        assert sum(len(units) for units in live_units(engine)) == live
        find_cancelled(engine, [])
        assert alone.cancelled() == expected


def test_a_levels_delete_whose_unit_was_passed_is_held() -> None:
    with Alone(DEQUEUE_GET) as alone:
        alone.engine.level_row(1)
        waits, passed = (
            alone.put(naive.new_at_level("t", b"b", 1, 0, START_MS, alone.tag, {})).offset
            for _ in range(2)
        )
        alone.engine.levels.offset[0] = 0
        rows = LoggedMessages.room(3)
        rows.is_delete[:] = [1, 1, 0]
        rows.identity_high[:] = -1
        rows.identity_low[:] = [waits | fmt.LEVEL_MARK, 4_711, passed | fmt.LEVEL_MARK]
        rows.offset[:] = [3_000, 3_300, 3_600]
        found = level_deletes(rows)
        assert found.tolist() == [[waits | fmt.LEVEL_MARK, 3_000]]
        find_cancelled(alone.engine, [found])
        assert alone.cancelled() == {(-2, waits | fmt.LEVEL_MARK)} and alone.held_from == 3_000


def test_a_timer_is_found_by_its_identity_in_its_latest_copy() -> None:
    with Alone(DEQUEUE_GET) as alone:
        first = alone.put(timer(alone.tag, "t", START_MS + 900))
        rolled = alone.put(naive.rolled_copy(first))
        other = alone.put(timer(alone.tag, "t", START_MS + 900))
        link(alone, first, START_SLOT, 1 | 2)
        link(alone, rolled, START_SLOT + 9, 1)
        link(alone, other, START_SLOT + 9, 1)
        alone.unmap(alone.engine.commitlog, 0)
        assert find_timer(alone.engine, -1, first.offset) == rolled.offset
        assert find_timer(alone.engine, -1, other.offset) == other.offset
        assert find_timer(alone.engine, -1, 5) == -1


@pytest.mark.parametrize("harm", ["unit", "segment"])
def test_a_timer_log_that_is_damaged_is_told(harm: str) -> None:
    with Alone(DEQUEUE_GET) as alone:
        placed = alone.put(timer(alone.tag, "t", START_MS))
        offsets = [link(alone, placed, START_SLOT, 1) for _ in range(25)]
        timerlog = alone.engine.timerlog
        if harm == "unit":
            timerlog.ensure(1).view[offsets[12] - 520 + 30] ^= 1
        else:
            alone.unmap(timerlog, 1)
            timerlog.path(1).unlink()
            timerlog.numbers.remove(1)
        with pytest.raises(CorruptStoreError, match="timerlog") as caught:
            list(live_units(alone.engine))
        assert caught.value.offset == (offsets[12] if harm == "unit" else 520)
