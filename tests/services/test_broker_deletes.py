"""Delete units for a broker, beside the timers that they are for."""

from tests import naive
from tests.services.alone import DEQUEUE_PUT, START_MS, START_SLOT, Alone
from timerstore.services.broker.broker_deletes import link_delete
from timerstore.services.broker.full_files import NamedDelete
from timerstore.timelog.bytes import format as fmt


def test_it_is_the_last_of_its_timers_slot() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        engine, log = alone.engine, alone.engine.timerlog
        first = alone.link(
            START_SLOT, naive.Unit(52, -1, fmt.UNIT_PLAIN, START_MS, 50, 0, 300, 9, 1, 0)
        )
        # Ten units fill a segment: the last ones stand in the next.
        for i in range(12):
            before = engine.wheel.get(START_SLOT)
            assert before is not None
            link_delete(engine, START_MS + 50, NamedDelete(4_000 + i, 300, 9), START_MS)
            slot = engine.wheel.get(START_SLOT)
            assert slot is not None
            at = slot.last
            unit = naive.decode_unit(log.read(at, naive.UNIT_BYTES))
            assert (unit.prev_pos, unit.message_offset) == (before.last, 4_000 + i)
            assert (
                unit.magic == fmt.UNIT_PLAIN | fmt.UNIT_DELETE and log.end == at + naive.UNIT_BYTES
            )
            assert slot.timer_count == -i and slot.first == first
