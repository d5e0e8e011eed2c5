"""Damaged units: written again where that is known, else the chain leads past them."""

import pytest

from tests import naive
from tests.services.alone import DEQUEUE_GET, PRECISION_MS, START_MS, START_SLOT, Alone, timer
from timerstore.services.engine.rebuild import TIMERS, read_mark
from timerstore.services.mending.mend_units import mend_units


def filled(alone: Alone) -> dict[int, naive.Unit]:
    """Twenty timers in two slots, in turns; return their units."""
    for i in range(20):
        slot = START_SLOT + 1 + i % 2
        placed = alone.put(timer(alone.tag, "t", slot * PRECISION_MS + i))
        unit = naive.Unit(
            *(52, -1, 1, START_MS, slot * PRECISION_MS + i - START_MS),
            *(placed.offset, placed.size_bytes, naive.java_hash("t"), 1, 0),
        )
        alone.link(slot, unit)
    alone.set_cursors(linked=20, got=20)
    return alone.units().units


def damage(alone: Alone, offset: int) -> None:
    """Turn a byte of a unit over."""
    number, position = divmod(offset, alone.engine.timerlog.segment_bytes)
    alone.engine.timerlog.ensure(number).view[position + 30] ^= 0xFF


@pytest.mark.parametrize("place", [0, 1, 7, 18, 19])
def test_a_unit_whose_message_is_known_is_written_again(place: int) -> None:
    """First or last of its slot, or of its segment."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone)
        offset = sorted(before)[place]
        damage(alone, offset)
        mend_units(alone.engine, offset)
        assert alone.units().units == before
        assert read_mark(alone.path) == {TIMERS}
        assert [(p.file, p.offset) for p in alone.engine.damage.places] == [("timerlog", offset)]


def test_one_whose_message_cannot_be_told_is_led_past() -> None:
    """Its neighbours in the log are damaged as well; these are known by theirs."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone)
        middle = sorted(before)[8:11]
        for offset in middle:
            damage(alone, offset)
        mend_units(alone.engine, middle[0])
        linked = set[int]()
        for slot in (START_SLOT + 1, START_SLOT + 2):
            at, chain = alone.slots()[slot].last_offset, list[int]()
            while at >= 0:
                chain.append(at)
                data = alone.engine.timerlog.read(at, naive.UNIT_BYTES)
                unit = naive.decode_unit(data)
                naive.check_unit(unit, at)
                assert unit.message_offset == before[at].message_offset
                at = unit.prev_pos
            mine = [o for o, unit in before.items() if unit.time_ms // PRECISION_MS == slot]
            assert set(chain) <= set(mine)
            linked |= set(chain)
        assert linked >= before.keys() - set(middle) and middle[1] not in linked
        assert len(alone.engine.damage.places) == 3


def test_nothing_sound_is_left() -> None:
    """Nothing is led past, and each slot is empty."""
    with Alone(DEQUEUE_GET) as alone:
        for offset in filled(alone):
            damage(alone, offset)
        mend_units(alone.engine, 0)
        assert all(slot.last_offset < 0 for slot in alone.slots().values())


def test_a_claim_goes_on_behind_the_damage() -> None:
    """The newest unit of the slot that is being claimed, of which the message cannot be told."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone)
        middle = sorted(before)[14:19]
        for offset in middle:
            damage(alone, offset)
        now_ms = START_MS + 3 * PRECISION_MS
        for _ in range(8):
            alone.step(now_ms)
            if alone.need[0]:
                alone.meet()
        fired = {row[0] for row in alone.since("dequeue", 0)}
        sound = {unit.message_offset for o, unit in before.items() if o not in middle}
        assert fired >= sound and before[middle[2]].message_offset not in fired
        assert len(fired) == len(alone.since("dequeue", 0)) and alone.need == ("", 0)
        assert alone.cursor("walked") == alone.cursor("claimed") > START_SLOT + 2
