"""Delete units for a broker, beside the timers that they are for."""

import numpy as np

from tests import naive
from tests.services.alone import DEQUEUE_PUT, START_MS, START_SLOT, Alone, delete, timer
from timerstore.services.broker_deletes import identify_all, link_delete
from timerstore.timelog.format import UNIT_DELETE, UNIT_PLAIN
from timerstore.timelog.message import FOUND_WORDS, IDENTITY_OURS
from timerstore.wheel import chain


def test_a_timer_has_one_identity_with_its_delete() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        put = alone.put(timer(alone.tag, "t", START_MS + 50))
        id = put.properties["UNIQ_KEY"]
        gone = alone.put(delete(alone.tag, "t", START_MS + 50, id))
        units = np.zeros((3, chain.WALK_COLUMNS), np.int64)
        units[:, chain.WALK_MESSAGE] = put.offset, gone.offset, 1 << 40
        units[:, chain.WALK_MAGIC] = UNIT_PLAIN, UNIT_PLAIN | UNIT_DELETE, UNIT_PLAIN
        columns, found = np.zeros((3, 3), np.int64), np.zeros(FOUND_WORDS, np.int64)
        with alone.engine.commitlog.reading() as log:  # the third is not mapped
            assert identify_all(log, units, alone.tag, found, columns, 0) == 2
        one, other = columns.T.tolist()[:2]
        assert one == other == [IDENTITY_OURS, put.offset, naive.java_hash("t")]


def test_it_is_the_last_of_its_timers_slot() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        engine, log = alone.engine, alone.engine.timerlog
        first = alone.link(
            START_SLOT, naive.Unit(52, -1, UNIT_PLAIN, START_MS, 50, 0, 300, 9, 1, 0)
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
            assert unit.magic == UNIT_PLAIN | UNIT_DELETE and log.end == at + naive.UNIT_BYTES
            assert int(cell["count"]) == -i and int(cell["first"]) == first
