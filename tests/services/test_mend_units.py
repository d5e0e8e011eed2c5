"""Damaged units: written again where that is known, else the chain leads past them."""

import pytest

from tests import naive
from tests.services.alone import DEQUEUE_GET, PRECISION_MS, START_MS, START_SLOT, Alone, timer
from timerstore.services.engine.rebuild import TIMERS, read_mark
from timerstore.services.mending.mend_units import mend_units
from timerstore.services.running.provide import provide
from timerstore.services.world import needs
from timerstore.services.world.state import CLEANING
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.jit.acting import acting_as


def filled(alone: Alone, hops: int = 0) -> dict[int, naive.Unit]:
    """Twenty timers in two slots, in turns; return their units.

    Behind each third of them so many units of hops, as if it had hopped into a third slot.
    """
    for i in range(20):
        slot = START_SLOT + 1 + i % 2
        placed = alone.put(timer(alone.tag, "t", slot * PRECISION_MS + i))
        unit = naive.Unit(
            *(52, -1, 1, START_MS, slot * PRECISION_MS + i - START_MS),
            *(placed.offset, placed.size_bytes, naive.java_hash("t"), 1, 0),
        )
        alone.link(slot, unit)
        for _ in range(hops if i % 3 == 0 else 0):
            later = 2 * PRECISION_MS + unit.delta_ms
            alone.link(slot + 2, unit._replace(magic=1 | fmt.UNIT_HOP, delta_ms=later))
    alone.set_cursors(linked=20, got=20)
    return alone.units().units


def damage(alone: Alone, offset: int) -> None:
    """Turn a byte of a unit over."""
    number, position = divmod(offset, alone.engine.timerlog.segment_bytes)
    alone.engine.timerlog.ensure(number).view[position + 30] ^= 0xFF


def chain(alone: Alone, slot: int, before: dict[int, naive.Unit]) -> list[int]:
    """The units of a slot, the last one first; they lead to the same messages as before."""
    at, found = alone.slots()[slot].last_offset, list[int]()
    while at >= 0:
        found.append(at)
        unit = naive.decode_unit(alone.engine.timerlog.read(at, naive.UNIT_BYTES))
        naive.check_unit(unit, at)
        assert unit.message_offset == before[at].message_offset
        at = unit.prev_pos
    return found


@pytest.mark.parametrize("place", [0, 1, 7, 18, 19])
def test_a_unit_whose_message_is_known_is_written_again(place: int) -> None:
    """First or last of its slot, or of its segment."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone)
        offset = sorted(before)[place]
        damage(alone, offset)
        mend_units(alone.engine, offset)
        assert alone.units().units == before
        assert read_mark(Disk().read, alone.path) == {TIMERS}
        assert [(p.file, p.offset) for p in alone.engine.damage.places] == [("timerlog", offset)]


@pytest.mark.parametrize("place", range(6))
def test_units_of_hops_stand_in_no_order_of_the_queue(place: int) -> None:
    """So who looks for the neighbours of a damaged unit passes them by."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone, hops=2)
        offset = sorted(before)[place + 5]
        damage(alone, offset)
        mend_units(alone.engine, offset)
        if before[offset].magic & fmt.UNIT_HOP:  # of which message it was nobody knows
            del before[offset]
            slots = range(START_SLOT + 1, START_SLOT + 5)
            assert sorted(o for slot in slots for o in chain(alone, slot, before)) == sorted(before)
        else:
            assert alone.units().units == before
        assert read_mark(Disk().read, alone.path) == {TIMERS}


@pytest.mark.parametrize("run", [(5, 7), (4, 6), (4, 8), (8, 10)])
def test_what_lies_beside_a_damaged_hop_is_led_past(run: tuple[int, int]) -> None:
    """Which of them has the entry that is missing nobody knows: it may have fired."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone, hops=1)
        middle = sorted(before)[slice(*run)]
        assert len({before[offset].magic for offset in middle}) == 2
        for offset in middle:
            damage(alone, offset)
        mend_units(alone.engine, middle[0])
        for offset in middle:
            del before[offset]
        slots = range(START_SLOT + 1, START_SLOT + 5)
        assert sorted(o for slot in slots for o in chain(alone, slot, before)) == sorted(before)
        assert len(alone.engine.damage.places) == len(middle)


def test_plain_units_side_by_side_are_written_again() -> None:
    """As many entries are missing between their neighbours as units are damaged."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone)
        middle = sorted(before)[8:10]
        for offset in middle:
            damage(alone, offset)
        mend_units(alone.engine, middle[0])
        assert alone.units().units == before


def test_chains_lead_on_to_what_retention_removed() -> None:
    """Else a slot's first unit and count are not those of its chain."""
    with Alone(DEQUEUE_GET) as alone:
        filled(alone)
        log = alone.engine.timerlog
        alone.engine.world.cleaning.timerlog_start = log.segment_bytes
        log.detach_before(log.segment_bytes)
        log.remove_detached()
        before = alone.units().units, alone.slots()
        mend_units(alone.engine, log.start)
        assert (alone.units().units, alone.slots()) == before


def test_a_segment_that_retention_removes_meanwhile_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was mapped no more when a chain led there, and is gone when it is to be mapped."""
    with Alone(DEQUEUE_GET) as alone:
        filled(alone)
        log, thread = alone.engine.timerlog, alone.thread(DEQUEUE_GET)
        existing = log.existing

        def remove_first(number: int) -> MappedFile:
            with acting_as(CLEANING):
                alone.engine.world.cleaning.timerlog_start = log.segment_bytes
            log.detach_before(log.segment_bytes)
            return existing(number)

        monkeypatch.setattr(log, "existing", remove_first)
        thread.need, thread.need_offset = needs.TIMERLOG_SEGMENT, 52
        provide(alone.engine, DEQUEUE_GET)
        assert not alone.engine.damage.places and not alone.engine.rebuild_wanted


def test_nothing_sound_is_left() -> None:
    """Nothing is led past, and each slot is empty."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone, hops=1)
        for offset in before:
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
