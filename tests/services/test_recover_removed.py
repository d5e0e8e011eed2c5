"""What a broker's own clean-up removed is no damage: it is passed by."""

from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.services.alone import ENQUEUE_GET, START_MS, Alone, timer
from timerstore.services.opening.recover_pending import count_removed, first_kept_index
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import Units


@given(st.integers(0, 3), st.integers(0, 45))
def test_the_first_entry_whose_message_is_there(removed: int, queue_index: int) -> None:
    with Alone(ENQUEUE_GET) as alone:
        placed = [alone.put(timer(alone.tag, "t", START_MS)) for _ in range(40)]
        log = alone.engine.commitlog
        log.detach_before(removed * log.segment_bytes)
        log.remove_detached()
        kept = next(i for i, message in enumerate(placed) if message.offset >= log.start)
        found = first_kept_index(alone.engine, queue_index)
        assert found == (max(queue_index, kept), max(0, kept - queue_index))


def test_blanks_at_a_queues_front_lead_to_nothing() -> None:
    with Alone(ENQUEUE_GET) as alone:
        for index in range(5):
            alone.write_entry(0, index, naive.QUEUE_BLANK)
        alone.put(timer(alone.tag, "t", START_MS))
        assert first_kept_index(alone.engine, 0) == (5, 5)


def test_timers_count_whose_message_is_gone_and_deletes_do_not() -> None:
    with Alone(ENQUEUE_GET) as alone:
        for _ in range(20):
            alone.put(timer(alone.tag, "t", START_MS))
        log = alone.engine.commitlog
        log.detach_before(log.segment_bytes)
        log.remove_detached()
        units = Units.room(4)
        units.message[:] = [0, 300, log.segment_bytes, 0]
        units.magic[:] = [fmt.UNIT_PLAIN] * 3 + [fmt.UNIT_PLAIN | fmt.UNIT_DELETE]
        assert count_removed(alone.engine, units) == 2
