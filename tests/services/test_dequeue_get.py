"""Dequeue-get alone: from chains or the late ring to the dequeue ring, beside its twin."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import naive
from tests.naive_services import (
    COLD,
    MARKS_DELETE,
    NO_NEED,
    PLACES,
    PLAIN,
    ROLL,
    DequeueGet,
    Late,
    Log,
    Taken,
)
from tests.services.alone import (
    DEQUEUE_GET,
    PRECISION_MS,
    RING_COUNT,
    START_MS,
    START_SLOT,
    Alone,
    brokers_timer,
    timer,
)

DEQUEUE_BEGIN = 2 * RING_COUNT - 2
HOP_MS = 11 * PRECISION_MS
NO_HOP = 1 << 62
MAGICS = st.sampled_from([PLAIN] * 5 + [PLAIN | ROLL, PLAIN | MARKS_DELETE, 7])
WHEN = st.tuples(st.integers(0, 12), st.sampled_from([0, 1, 40, 99]))  # slots ahead, ms within
EXTRA = st.sampled_from([0, 0, 0, 30, PRECISION_MS, "read", "broker's", "lost"])
UNITS = st.lists(st.tuples(MAGICS, WHEN, EXTRA), max_size=40)
LATE_MAGICS = st.sampled_from([PLAIN, PLAIN, PLAIN | MARKS_DELETE])  # no roll comes late
LATE = st.tuples(LATE_MAGICS, st.integers(0, 7), st.sampled_from([-500, 0, 1, 60, 150]))
TURNS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 35, 99, 100, 350, -250, 1_200]),  # the clock's step, ms
        st.lists(LATE, max_size=3),
        st.integers(0, 6),  # the room in the dequeue ring
        st.integers(0, 3),  # slots that the read cursor may pass
    ),
    min_size=1,
    max_size=12,
)


def link(alone: Alone, log: Log, i: int, magic: int, when: tuple[int, int], extra: object) -> None:
    """Put a unit into its slot's chain; what it does not say itself stands in its message."""
    slots, within_ms = when
    slot = START_SLOT + slots
    time_ms = slot * PRECISION_MS + within_ms
    message, size = (1 << 30) + i, 300  # never read, but for these
    more, due_ms = extra if isinstance(extra, int) else 0, time_ms
    if magic & ROLL:
        due_ms += (1 + i % 4) * HOP_MS
        more = (due_ms + more) // 1_000
    if extra in ("read", "broker's"):
        placed = alone.put(brokers_timer("t", due_ms, f"key {i}"), indexed=False)
        if extra == "read":
            placed = alone.put(timer(alone.tag, "t", due_ms - 7), indexed=False)
        log.take(placed)
        message, size = placed.offset, placed.size_bytes
    if extra in ("read", "lost"):
        more = naive.UINT32_MAX
    elif extra == "broker's":
        more = 0
    written_ms = naive.write_ms(slot, START_MS, PRECISION_MS)
    crc = 0 if extra == "broker's" else 1
    unit = naive.Unit(52, -1, magic, written_ms, time_ms - written_ms, message, size, 9, crc, more)
    alone.link(slot, unit)


def make_unit_room(alone: Alone, count: int) -> None:
    """Make room for so many more units, so that none is missing."""
    log = alone.engine.timerlog
    end = log.end + (count + 20) * 60
    for number in range(log.end // log.segment_bytes, end // log.segment_bytes + 1):
        log.reserve(number * log.segment_bytes, (number + 1) * log.segment_bytes)


def taken(row: list[int]) -> Taken:
    """An entry of the dequeue ring, taken apart."""
    message, info, at = row
    return Taken(message, info >> 32, info >> 8 & 0xFFFFFF, info & 0xFF, at)


def by_place(counts: Counter[int]) -> list[int]:
    """Counts of slots, by their places."""
    found = [0] * PLACES
    for slot, count in counts.items():
        found[slot % PLACES] += count
    return found


def compare(alone: Alone, twin: DequeueGet) -> None:
    """Whatever dequeue-get knows or hands on is what the twin does."""
    assert [taken(row) for row in alone.since("dequeue", DEQUEUE_BEGIN)] == twin.out
    names = ("read", "claimed", "owed_slot", "walked", "walks")
    known = twin.read, twin.claimed, twin.owed_slot, twin.walked, twin.walks
    assert tuple(map(alone.cursor, names)) == known
    assert alone.emptied() == twin.emptied and alone.cursor("first_count") == twin.first
    held = [each for ring in twin.buckets for bucket in ring.values() for each in bucket]
    assert alone.near_messages() == sorted((each.due_ms, each.message) for each in held)
    assert alone.slot_column("waiting") == by_place(twin.waiting)
    assert alone.slot_column("chain") == [twin.chained[place] for place in range(PLACES)]
    columns = [alone.slot_column(name) for name in ("owed", "first_hop")]
    for slot in range(twin.read, twin.claimed):
        expected = [twin.owed[slot], twin.first_hop.get(slot, NO_HOP)]
        assert [column[slot % PLACES] for column in columns] == expected
    assert alone.units().units == twin.units
    assert {slot: cell.last_offset for slot, cell in alone.slots().items()} == twin.last


def answer(alone: Alone, twin: DequeueGet) -> None:
    """Give both what they need."""
    kind, offset = twin.need
    if kind == "timerlog segment":
        twin.unmapped.discard(offset // twin.segment_bytes)
    elif kind == "commitlog read":
        twin.log.unmapped.discard(offset // twin.log.segment_bytes)
    if kind:
        alone.meet()
    twin.need = NO_NEED


@example(
    [(1, (0, 0), 0)],
    [(0, [], 0, 0), (0, [], 1, 3), (0, [(1, 6, 0), (1, 0, -500)], 0, 0), (-250, [], 1, 0)],
    *(set(), set(), 0, 11, 0, False),
)
@given(
    UNITS,
    TURNS,
    st.sets(st.integers(0, 4), max_size=2),
    st.sets(st.integers(0, 40), max_size=2),
    st.integers(0, 3),
    st.sampled_from([0, 0, 1, 2, 5, 11]),
    st.sampled_from([0, 4, 1_000]),
    st.booleans(),
)
def test_alone(
    units: list[tuple[int, tuple[int, int], object]],
    turns: list[tuple[int, list[tuple[int, int, int]], int, int]],
    unmapped: set[int],
    done: set[int],
    begin: int,
    stopped: int,
    first: int,
    is_cold: bool,
) -> None:
    """After a stop of some slots.

    If it is cold, the front leaves what names a message in a segment that is not mapped.
    """
    with Alone(DEQUEUE_GET) as alone:
        engine = alone.engine
        log = Log(alone.tag, PRECISION_MS, engine.commitlog.segment_bytes)
        for i, unit in enumerate(units):
            link(alone, log, i, *unit)
        log.unmapped = alone.unmap(engine.commitlog, *unmapped)
        make_unit_room(alone, 4 * len(units))
        end = engine.timerlog.end
        full = end // engine.timerlog.segment_bytes
        gone = alone.unmap(engine.timerlog, *(each for each in unmapped if each < full))
        sizes = engine.config.wheel_slot_count, engine.config.roll_window_slots
        wheel = naive.Wheel(PRECISION_MS, *sizes, 0)
        twin = DequeueGet(log, engine.timerlog.segment_bytes, wheel, START_SLOT, first)
        twin.is_cold = is_cold
        alone.set_cursors(first_count=first, first_max=first, is_cold=int(is_cold))
        alone.set_cursors(touch_ns=1 << 60)
        twin.units, twin.unmapped = alone.units().units, gone
        twin.last = {slot: cell.last_offset for slot, cell in alone.slots().items()}
        twin.end = end
        twin.done = {(1 << 30) + i for i in done}
        alone.use_sets(done=dict.fromkeys(twin.done, 5))
        alone.begin_ring("dequeue", DEQUEUE_BEGIN)
        alone.begin_ring("late", begin + RING_COUNT - 2)
        now_ms, number = (START_SLOT + stopped) * PRECISION_MS, 1 << 31
        to_the_end = [(300, [], 60, 3)] * 40
        for step_ms, arrivals, room, passes in [*turns, *to_the_end]:
            now_ms += step_ms
            late = []
            for magic, place, later_ms in arrivals:
                slots = range(twin.read, twin.claimed)
                if slots:
                    slot = slots[place % len(slots)]
                    late.append(Late(slot, magic, number, 77, slot * PRECISION_MS + later_ms))
                    number += 1
            alone.push("late", late)
            room += (RING_COUNT - COLD) * is_cold  # what is owed finds so much
            twin.room = room
            alone.leave_room("dequeue", room)
            assert alone.step(now_ms) == twin.step(late, now_ms)
            assert alone.need == twin.need and alone.waiting("late") == 0
            compare(alone, twin)
            answer(alone, twin)
            for _ in range(passes):
                if twin.may_pass(now_ms):
                    twin.read += 1
                    alone.set_cursors(read=twin.read)
        assert not any(twin.buckets) and twin.read > START_SLOT + 12
        handed = sorted(each.message for each in twin.out)
        linked = {unit.message_offset for unit in twin.units.values()}
        everyone = [each for each in linked if each not in twin.done]
        assert handed == sorted([*everyone, *range(1 << 31, number)])


def test_a_damaged_unit_stops_the_walk_and_nothing_of_its_slot_is_taken_before() -> None:
    with Alone(DEQUEUE_GET) as alone:
        log = Log(alone.tag, PRECISION_MS, alone.engine.commitlog.segment_bytes)
        for i in range(3):
            link(alone, log, i, PLAIN, (0, 10 * i), 0)
        alone.engine.timerlog.ensure(0).view[52 + 30] ^= 1
        alone.step(START_MS + 50)
        assert alone.need == ("damaged timerlog", 52)
        assert (alone.cursor("claimed"), alone.cursor("walked")) == (START_SLOT + 1, START_SLOT)
        assert alone.near_messages() == [(START_MS + 20, (1 << 30) + 2)]
        assert alone.waiting("dequeue") == 0


def test_a_unit_in_a_slot_that_is_not_its_own_is_damage() -> None:
    with Alone(DEQUEUE_GET) as alone:
        unit = naive.Unit(52, -1, PLAIN, START_MS, 0, 1 << 30, 300, 9, 1, 0)
        alone.link(START_SLOT + 1, unit)
        alone.step(START_MS)
        assert alone.need == ("damaged timerlog", 0)


def test_what_is_due_before_the_read_cursor_fires_by_its_own_millisecond() -> None:
    """While the clock was set back behind the read cursor: also if several share a ring's place."""
    with Alone(DEQUEUE_GET) as alone:
        ring = len(alone.engine.near.head) // 2 - 1
        alone.step(START_MS)
        began_ms = START_MS - 3 * ring
        due = [began_ms + ms for ms in (5, ring + 5, 5, 2 * ring + 5, 3, -7, ring + 4)]
        alone.push("late", [Late(START_SLOT, PLAIN, i, 77, ms) for i, ms in enumerate(due)])
        taken_at = {}
        for now_ms in [*range(began_ms, began_ms + 10), *range(began_ms + 10, START_MS, 7)]:
            before = alone.tail("dequeue")
            alone.step(now_ms)
            taken_at |= {taken(row).message: now_ms for row in alone.since("dequeue", before)}
        assert [*taken_at] == [5, 4, 0, 2, 6, 1, 3]
        for i, now_ms in taken_at.items():
            assert max(due[i], began_ms) <= now_ms < max(due[i] + 7, began_ms + 1)


@pytest.mark.timeout(60)
def test_a_clock_that_is_set_on_by_years_is_not_gone_through_by_milliseconds() -> None:
    """What it comes to stands in the ring already: near would be held for minutes."""
    with Alone(DEQUEUE_GET) as alone:
        alone.step(START_MS)
        began_ms = START_MS - 30 * 365 * 86_400_000
        due = [began_ms + 5, START_MS + 20, START_MS + 21]
        alone.push("late", [Late(START_SLOT, PLAIN, i, 77, ms) for i, ms in enumerate(due)])
        alone.step(began_ms)
        begun, found = alone.tail("dequeue"), []
        for now_ms in (began_ms + 4, START_MS + 10, START_MS + 20, START_MS + 40):
            alone.step(now_ms)
            found.append([taken(row).message for row in alone.since("dequeue", begun)])
        assert found == [[], [0], [0, 1], [0, 1, 2]]
