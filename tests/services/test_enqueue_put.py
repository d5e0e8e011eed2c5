"""Enqueue-put alone: from the enqueue ring to log, wheel or late ring, beside its twin."""

from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.naive_services import (
    DELETE,
    LEVEL_MARK,
    NO_NEED,
    PLACES,
    TIMER,
    UNREADABLE,
    Enqueued,
    EnqueuePut,
)
from tests.services.alone import (
    CONFIG,
    ENQUEUE_PUT,
    PRECISION_MS,
    RING_COUNT,
    START_MS,
    START_SLOT,
    Alone,
)

LATE_BEGIN = 2 * RING_COUNT - 1
LOG_BYTES = CONFIG.commitlog_segment_bytes
KINDS = st.sampled_from([TIMER] * 6 + [DELETE] * 2 + [UNREADABLE])
SLOTS_AHEAD = st.sampled_from([-40, -1, 0, 1, 2, 11, 12, 13, 19, 20, 27, 255, 256, 300, 4_000])
WITHIN_MS = st.sampled_from([0, 1, 50, PRECISION_MS - 1])
LATER_MS = st.sampled_from([0, 1, PRECISION_MS, -1, 1 << 33])  # exactly due after the unit's time
ITEMS = st.tuples(KINDS, SLOTS_AHEAD, WITHIN_MS, LATER_MS)


def entry_of(i: int, kind: int, slots: int, within_ms: int, later_ms: int) -> Enqueued:
    """What enqueue-get handed on of the message number `i`."""
    out_ms = START_MS + slots * PRECISION_MS + within_ms
    target = (-1, i | LEVEL_MARK if i % 3 else i) if i % 4 else (77 + i % 2, 5)
    return Enqueued(
        out_ms,
        out_ms + later_ms,
        i * 321,
        100 + i,
        i * 1_000_003 - 5_000_000,
        kind,
        *(target if kind == DELETE else (0, 0)),
    )


def compare(alone: Alone, twin: EnqueuePut) -> None:
    """Whatever enqueue-put writes is what the twin wrote."""
    log = alone.units()
    assert (log.damage, log.units, log.end) == (None, twin.units, twin.end)
    assert alone.engine.timerlog.end == twin.end
    assert alone.slots() == twin.slots
    assert [tuple(row) for row in alone.since("late", LATE_BEGIN)] == twin.late
    assert alone.slot_column("late") == [twin.late_count[place] for place in range(PLACES)]
    assert alone.cancelled() == twin.cancelled
    assert alone.cursor("linked") == alone.cursor("linked_count") == twin.linked
    assert alone.cursor("collisions") == 0
    latest = alone.engine.world.latest_slot
    assert all(latest[segment] == slot for segment, slot in twin.latest_slot.items())
    dirty = {slot % len(alone.engine.wheel.slots) * 32 // 4_096 for slot in twin.slots}
    assert {page for page, is_dirty in enumerate(alone.engine.wheel.array.dirty) if is_dirty} == (
        dirty
    )


@given(
    st.lists(ITEMS, max_size=40),
    st.integers(0, 2 * RING_COUNT),
    st.lists(
        st.tuples(
            st.integers(1, 20),  # entries that enqueue-get hands on
            st.sampled_from([-3_000, -1, 0, 30, 250, 2_000]),  # the clock's step, ms
            st.integers(0, 3),  # slots that the read cursor moves, and the claim cursor before it
            st.integers(0, 3),  # late arrivals that dequeue-get takes
        ),
        min_size=1,
        max_size=12,
    ),
    st.sets(st.integers(0, 39), max_size=3),
    st.booleans(),
)
def test_alone(
    items: list[tuple[int, int, int, int]],
    begin: int,
    turns: list[tuple[int, int, int, int]],
    done: set[int],
    recovering: bool,
) -> None:
    with Alone(ENQUEUE_PUT) as alone:
        alone.begin_ring("enqueue", begin)
        entries = [entry_of(i, *item) for i, item in enumerate(items)]
        config = alone.engine.config
        wheel = naive.Wheel(
            PRECISION_MS,
            config.wheel_slot_count,
            config.roll_window_slots,
            START_SLOT,
        )
        sources = {i * 321 for i in done}
        alone.use_sets(done=dict.fromkeys(sources, 5))
        alone.narrow_cancelled(4)
        alone.set_cursors(recovering=int(recovering))
        twin = EnqueuePut(
            wheel,
            START_SLOT,
            config.timerlog_segment_bytes,
            late_room=3,
            recovering=recovering,
            done=sources,
            cancelled_room=4,
        )
        alone.begin_ring("late", LATE_BEGIN)
        now_ms, ready, linked, behind = START_MS, 0, 0, 0
        still = [(0, 0, 0, 3)] * (8 * len(entries) + 8)
        for count, clock_ms, slots, taken in [*turns, (40, 0, 0, 3), *still]:
            more = entries[ready : ready + count]
            alone.push("enqueue", more)
            ready += len(more)
            now_ms += clock_ms
            wheel = twin.wheel
            read = wheel.read + slots
            twin.claimed = max(twin.claimed, read + slots)
            twin.wheel = wheel._replace(read=read)
            alone.set_cursors(read=read, claimed=twin.claimed)
            behind = max(0, behind - taken)
            twin.late_room = 3 - behind
            alone.leave_room("late", twin.late_room)
            before = len(twin.late)
            assert alone.step(now_ms) == twin.step(entries[linked:ready], now_ms, LOG_BYTES)
            behind += len(twin.late) - before
            linked = twin.linked
            assert alone.need == twin.need
            compare(alone, twin)
            if twin.need != NO_NEED:
                alone.meet()
                if twin.need[0] == "cancelled room":
                    twin.cancelled_room = 1 << 20
                else:
                    twin.segments.add(twin.need[1] // twin.segment_bytes)
                twin.need = NO_NEED
            if linked == len(entries) == ready:
                break
        assert linked == len(entries) == ready
