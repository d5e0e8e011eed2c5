"""Chains against the slow twin: cutting, replaying, damage."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import as_array, table_of, table_over
from tests.rigs.tablerows import rows_in, table_from
from timerstore.timelog.bytes.unit import NO_UNIT, NOT_SAID, Units
from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.timerlog import (
    WALK_DAMAGED,
    WALK_DONE,
    WALK_FULL,
    WALK_UNMAPPED,
    scan_units,
    walk_chains,
)
from timerstore.wheel.timerwheel import SlotArray, new_slot_array, revise_slots

SLOT_COUNT = 64
SEGMENT_BYTES = 220  # three units, a blank of 64
FIRST_SLOT = 1000
Walked = tuple[list[tuple[int, ...]], int, int]


def scan(
    table: SegmentTable,
    start: int,
    stop: int,
    *,
    from_slot: int = 0,
    precision_ms: int = 1000,
    hop_ms: int = 0,
    at_a_time: int = 64,
) -> Walked:
    """All units, where the scan ended, and why."""
    units, state = Units.room(at_a_time), np.array([start, -9], np.int64)
    rows: list[tuple[int, ...]] = []
    while True:
        before = int(state[0])
        count = scan_units(table, stop, from_slot, precision_ms, hop_ms, units, state)
        rows += rows_in(units[:count])
        if state[1] != WALK_FULL:
            return rows, int(state[0]), int(state[1])
        assert count == at_a_time
        assert state[0] > before


def walk(
    table: SegmentTable,
    wheel: SlotArray,
    *slots: int,
    precision_ms: int = 1000,
    hop_ms: int = 0,
    at_a_time: int = 64,
    lane_count: int = 1,
) -> Walked:
    """All of some chains, where the walk ended, and why."""
    chains = np.array([[slot, last_of(wheel, slot)] for slot in slots], np.int64)
    units = Units.room(at_a_time)
    lanes, state = np.full((lane_count, 2), NO_UNIT, np.int64), np.array([0, -9, 0], np.int64)
    rows: list[tuple[int, ...]] = []
    while True:
        count = walk_chains(table, chains, precision_ms, hop_ms, units, lanes, state)
        rows += rows_in(units[:count])
        if state[1] != WALK_FULL:
            return rows, int(lanes[state[2], 1]), int(state[1])
        assert count == at_a_time


def last_of(wheel: SlotArray, number: int) -> int:
    at = naive.slot_index(number, len(wheel.slots) // naive.SLOT_BYTES // 2) * naive.SLOT_BYTES
    slot = naive.decode_slot(wheel.slots[at : at + naive.SLOT_BYTES].tobytes())
    return slot.last_offset if slot.number == number else NO_UNIT


def row_of(offset: int, unit: naive.Unit, hop_ms: int = 0) -> tuple[int, ...]:
    leads_to = naive.leads_to(unit, 1000, hop_ms)
    said = NOT_SAID if leads_to is None else leads_to
    due = naive.due_of_unit(unit)
    due_ms = due[0] if due is not None and due[0] == due[1] else NOT_SAID
    message = unit.message_offset, unit.message_bytes
    return offset, unit.time_ms, unit.magic, *message, said, due_ms


def wheel_of(slots: list[naive.Slot], slot_count: int = SLOT_COUNT) -> SlotArray:
    data = bytearray(2 * slot_count * naive.SLOT_BYTES)
    for slot in slots:
        at = naive.slot_index(slot.number, slot_count) * naive.SLOT_BYTES
        data[at : at + naive.SLOT_BYTES] = naive.encode_slot(slot)
    return new_slot_array(as_array(bytes(data)), [(0, len(data))])


def slots_of(
    units: dict[int, naive.Unit], before: int, precision_ms: int = 1000
) -> list[naive.Slot]:
    """The slots that point to all units before an offset."""
    chains = naive.link(units, precision_ms, before)
    return [
        naive.Slot(slot, chain[0], chain[-1], naive.slot_net_count(units[at] for at in chain))
        for slot, chain in chains.items()
    ]


# --- timer logs that are made here


@st.composite
def timer_logs(draw: st.DrawFn) -> dict[int, naive.Unit]:
    """Units of a few slots, by ours and by a broker, one behind the other."""
    units: dict[int, naive.Unit] = {}
    last: dict[int, int] = {}
    end = 0
    specs = st.tuples(
        *(st.integers(0, 5), st.sampled_from([1, 1, 3, 5, 7, 9, 11]), st.integers(0, 999)),
        st.booleans(),
        st.integers(FIRST_SLOT, FIRST_SLOT + 20) | st.sampled_from([7, 2**32 - 1]),
    )
    for i, (slot, magic, within_ms, ours, extra) in enumerate(draw(st.lists(specs, max_size=25))):
        offset = naive.next_unit_offset(SEGMENT_BYTES, end)
        write_ms = (FIRST_SLOT - 7) * 1000
        time_ms = (FIRST_SLOT + slot) * 1000 + within_ms
        unit = naive.Unit(
            *(52, last.get(slot, NO_UNIT), magic, write_ms, time_ms - write_ms, 300 * i, 299, -i)
        )
        units[offset] = naive.seal_unit(unit._replace(extra=extra), offset) if ours else unit
        last[slot] = offset
        end = offset + 52
    return units


def laid_out(units: dict[int, naive.Unit]) -> dict[int, bytes]:
    """The segments that hold these units."""
    count = max(units, default=0) // SEGMENT_BYTES + 1
    data = bytearray(count * SEGMENT_BYTES)
    for offset, unit in units.items():
        data[offset : offset + 52] = naive.encode_unit(unit)
    for begin in range(0, len(data) - SEGMENT_BYTES, SEGMENT_BYTES):
        data[begin + 156 : begin + SEGMENT_BYTES] = naive.blank_unit(64)
    return {at: bytes(data[at : at + SEGMENT_BYTES]) for at in range(0, len(data), SEGMENT_BYTES)}


def end_of(units: dict[int, naive.Unit]) -> int:
    return max(units, default=-52) + 52


@given(
    units=timer_logs(),
    at_a_time=st.integers(1, 8),
    from_slot=st.integers(0, 6),
    lane_count=st.integers(1, 5),
    hop_ms=st.sampled_from([0, 1_999, 2_000, 5_000]),
)
def test_any_log(
    units: dict[int, naive.Unit], at_a_time: int, from_slot: int, lane_count: int, hop_ms: int
) -> None:
    table, stop = table_of(laid_out(units), SEGMENT_BYTES), end_of(units)
    rows, end, why = scan(
        *(table, 0, stop), from_slot=FIRST_SLOT + from_slot, hop_ms=hop_ms, at_a_time=at_a_time
    )
    assert rows == [
        row_of(offset, unit, hop_ms)
        for offset, unit in units.items()
        if unit.time_ms >= (FIRST_SLOT + from_slot) * 1000
    ]
    assert (end, why) == (stop, WALK_DONE)
    wheel = wheel_of(slots_of(units, stop))
    chains = naive.link(units, 1000, stop)
    for slot in range(FIRST_SLOT - 1, FIRST_SLOT + 7):
        rows, at, why = walk(table, wheel, slot, at_a_time=at_a_time)
        assert [row[0] for row in rows] == chains.get(slot, [])[::-1]
        assert (at, why) == (NO_UNIT, WALK_DONE)
    every = range(FIRST_SLOT - 1, FIRST_SLOT + 7)
    rows, _, why = walk(table, wheel, *every, at_a_time=at_a_time, lane_count=lane_count)
    assert why == WALK_DONE
    by_slot = {slot: [row[0] for row in rows if row[1] // 1000 == slot] for slot in every}
    assert by_slot == {slot: chains.get(slot, [])[::-1] for slot in every}


@given(units=timer_logs(), cut=st.integers(0, 30))
def test_slots_are_made_of_units(units: dict[int, naive.Unit], cut: int) -> None:
    offsets = sorted(units)
    begin = offsets[cut] if cut < len(offsets) else end_of(units)
    wheel = wheel_of(slots_of(units, begin))
    rows = table_from(Units, [row_of(offset, units[offset]) for offset in offsets])
    revise_slots(wheel, rows.offset, rows.ms, rows.magic, 1000)
    expected = wheel_of(slots_of(units, end_of(units)))
    assert wheel.slots.tobytes() == expected.slots.tobytes()
    revise_slots(wheel, rows.offset, rows.ms, rows.magic, 1000)
    assert wheel.slots.tobytes() == expected.slots.tobytes()


def test_replaying_takes_a_slot_from_an_older_time() -> None:
    wheel = wheel_of([naive.Slot(FIRST_SLOT, 0, 520, 3)])
    later = FIRST_SLOT + 2 * SLOT_COUNT
    unit = table_from(Units, [(1040, later * 1000, 5, 0, 100, later, NOT_SAID)])
    revise_slots(wheel, unit.offset, unit.ms, unit.magic, 1000)
    assert list(naive.used_slots(wheel.slots.tobytes()).values()) == [
        naive.Slot(later, 1040, 1040, -1)
    ]


# --- damage


@given(
    units=timer_logs(),
    changes=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 255)), min_size=1, max_size=5),
    heads=st.lists(st.integers(-60, 2000), max_size=6),
)
def test_changed_bytes_give_a_status(
    units: dict[int, naive.Unit], changes: list[tuple[int, int]], heads: list[int]
) -> None:
    segments = {at: bytearray(data) for at, data in laid_out(units).items()}
    size = len(segments) * SEGMENT_BYTES
    for place, change in changes:
        place %= size
        segments[place // SEGMENT_BYTES * SEGMENT_BYTES][place % SEGMENT_BYTES] ^= change
    table = table_of({at: bytes(data) for at, data in segments.items()}, SEGMENT_BYTES)
    rows, end, why = scan(table, 0, end_of(units), at_a_time=4)
    assert why in (WALK_DONE, WALK_DAMAGED)
    assert end <= end_of(units)
    slots = slots_of(units, end_of(units))
    slots += [naive.Slot(FIRST_SLOT + 6 + i, 0, head, 1) for i, head in enumerate(heads)]
    wheel = wheel_of(slots)
    for slot in range(FIRST_SLOT, FIRST_SLOT + 13):
        rows, _, why = walk(table, wheel, slot, at_a_time=4)
        assert why in (WALK_DONE, WALK_DAMAGED, WALK_UNMAPPED)
        offsets = [row[0] for row in rows]
        assert offsets == sorted(set(offsets), reverse=True)
        assert all(row[1] // 1000 == slot for row in rows)


@given(
    data=st.binary(max_size=3 * SEGMENT_BYTES), head=st.integers(-5, 700), end=st.integers(0, 700)
)
def test_random_bytes(data: bytes, head: int, end: int) -> None:
    data = data.ljust(3 * SEGMENT_BYTES, b"\x01")
    arrays = {
        number: as_array(data[number * SEGMENT_BYTES :][:SEGMENT_BYTES]) for number in range(3)
    }
    table = table_over(arrays, SEGMENT_BYTES)
    assert scan(table, end, 3 * SEGMENT_BYTES)[2] in (WALK_DONE, WALK_DAMAGED)
    wheel = wheel_of([naive.Slot(FIRST_SLOT, 0, head, 1)])
    assert walk(table, wheel, FIRST_SLOT)[2] in (WALK_DONE, WALK_DAMAGED, WALK_UNMAPPED)


def test_what_stops_a_walk() -> None:
    unit = naive.Unit(52, 500, 1, FIRST_SLOT * 1000, 0, 0, 100, 0)
    second = unit._replace(prev_pos=660)  # in the segment behind, which is not mapped
    other = unit._replace(prev_pos=NO_UNIT, delta_ms=1000)  # of another slot
    segment = naive.encode_unit(unit) + naive.encode_unit(second) + naive.encode_unit(other)
    table = table_of({660: segment.ljust(SEGMENT_BYTES, b"\0")}, SEGMENT_BYTES)

    def from_head(head: int) -> tuple[int, int, int]:
        rows, at, why = walk(table, wheel_of([naive.Slot(FIRST_SLOT, 0, head, 1)]), FIRST_SLOT)
        return len(rows), at, why

    assert from_head(660) == (1, 500, WALK_UNMAPPED)
    assert from_head(712) == (2, 500, WALK_UNMAPPED)
    assert from_head(764) == (0, 764, WALK_DAMAGED)
    assert from_head(661) == (0, 661, WALK_DAMAGED)
    assert from_head(860) == (0, 860, WALK_DAMAGED)
    assert from_head(880) == (0, 880, WALK_UNMAPPED)
    assert from_head(-2) == (0, -2, WALK_UNMAPPED)
    assert table.segment_bytes == SEGMENT_BYTES
