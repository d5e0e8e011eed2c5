"""Capturing a checkpoint: the cursors of one instant."""

from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.services.alone import DEQUEUE_PUT, START_MS, START_SLOT, Alone, timer
from timerstore.services.durable.flush import capture


def test_cursors_are_those_of_the_engine() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        alone.put(timer(alone.tag, "orders", START_MS))
        alone.write_unit(naive.Unit(52, -1, 1, START_MS, 0, 0, 300, 9, 1, 0))
        alone.set_cursors(read=START_SLOT + 1, claimed=START_SLOT + 3, linked=1, frontier=START_MS)
        alone.begin_slots(START_SLOT, START_SLOT + 3)
        alone.use_sets([(5, 5), (6, 6)])
        alone.engine.levels.offset[1] = 5
        found = capture(alone.engine.world)
        assert (found.read_slot, found.claimed_slot) == (START_SLOT + 1, START_SLOT + 3)
        assert (found.linked, found.frontier_ms, found.cancelled_count) == (1, START_MS, 2)
        assert found.timerlog_end == 52
        assert found.commitlog_end == found.scan_from == alone.engine.commitlog.end
        assert found.next_index.tolist() == [1] and found.level_offsets[:2].tolist() == [0, 5]


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 500)),
    st.dictionaries(st.integers(0, 9), st.integers(0, 500)),
    st.integers(0, 9),
    st.none() | st.integers(0, 500),
)
def test_the_oldest_copy_and_hop_count_that_are_of_a_slot_which_is_not_passed(
    copies: dict[int, int], hops: dict[int, int], passed: int, held_from: int | None
) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        alone.put(timer(alone.tag, "orders", START_MS))
        alone.begin_slots(START_SLOT, START_SLOT + 10)
        for name, of in (("first_copy", copies), ("first_hop", hops)):
            for slot, offset in of.items():
                alone.set_slot_column(name, START_SLOT + slot, offset)
        alone.set_cursors(read=START_SLOT + passed, claimed=START_SLOT + 10)
        kept = [offset for slot, offset in copies.items() if slot >= passed]
        if held_from is not None:
            alone.use_sets([(-2, 1 << 47 | 9)], held_from=held_from)
            kept.append(held_from)
        alone.engine.timerlog.end = 520
        found = capture(alone.engine.world)
        assert found.scan_from == min([alone.engine.commitlog.end, *kept])
        hopped = [offset for slot, offset in hops.items() if slot >= passed]
        assert found.hops_from == min([520, *hopped])
