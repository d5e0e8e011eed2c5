"""Delete units for a broker, beside the timers that they are for."""

from tests import naive
from tests.services.alone import DEQUEUE_PUT, START_MS, START_SLOT, Alone
from timerstore.services.broker.broker_deletes import link_delete
from timerstore.timelog.bytes import format as fmt


def test_it_is_the_last_of_its_timers_slot() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        engine, log = alone.engine, alone.engine.timerlog
        first = alone.link(
            START_SLOT, naive.Unit(52, -1, fmt.UNIT_PLAIN, START_MS, 50, 0, 300, 9, 1, 0)
        )
        # Ten units fill a segment: the last ones stand in the next.
        for i in range(12):
            before = int(engine.wheel.slots[START_SLOT % 128]["last"])
            while not link_delete(engine.world, START_MS + 50, 4_000 + i, 300, 9, START_MS):
                log.make_room(log.end + 2 * naive.UNIT_BYTES)
            cell = engine.wheel.slots[START_SLOT % 128]
            at = int(cell["last"])
            unit = naive.decode_unit(log.read(at, naive.UNIT_BYTES))
            assert (unit.prev_pos, unit.message_offset) == (before, 4_000 + i)
            assert (
                unit.magic == fmt.UNIT_PLAIN | fmt.UNIT_DELETE and log.end == at + naive.UNIT_BYTES
            )
            assert int(cell["count"]) == -i and int(cell["first"]) == first
