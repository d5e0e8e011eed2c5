"""The services' world: its words, clock, floor, needs, what wakes whom."""

import select
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.kernels import kernel
from tests.services.alone import DELIVER_LEVELS, DEQUEUE_GET, DEQUEUE_PUT, ENQUEUE_GET, NEEDS, Alone
from timerstore import InvalidArgumentError, ManualClock
from timerstore.jit.record import ALONE, Words, acting_as
from timerstore.services.world import needs
from timerstore.services.world.clock import attend, leave, listen
from timerstore.services.world.floor import Floor, is_superseded, read_floor
from timerstore.services.world.state import (
    INFO_UNLINKED,
    NO_HEAD,
    PASS_COLUMNS,
    SERVICE_NAMES,
    new_level_table,
)
from timerstore.services.world.world import (
    LATENESS_BUCKETS,
    READ_UNITS,
    STAGE_WORDS,
    WAKE_COUNT,
    bucket_lateness_ms,
    count_stage,
    lateness_bucket,
    new_stages,
    note_lost,
    service_of,
    wake_for,
)
from timerstore.timelog.bytes.unit import NOT_SAID, Units
from timerstore.wheel.cancelled import map_put_all, new_table

# --- needs


def test_each_has_a_number_of_its_own() -> None:
    numbers = [value for name, value in vars(needs).items() if name.isupper()]
    assert sorted(numbers) == list(range(len(numbers))) and needs.NOTHING == 0
    assert NEEDS.keys() == set(numbers)


# --- stages: counting what a stage did


@kernel
def _count(stages: Words, stage: int, count: int, elapsed_ns: int) -> None:
    count_stage(stages, stage, count, elapsed_ns)


def test_a_stage_counts_what_it_did() -> None:
    stages = new_stages()
    _count(stages, READ_UNITS, 5, 300)
    _count(stages, READ_UNITS, 2, 100)
    rows = stages.reshape(-1, STAGE_WORDS)
    assert rows[READ_UNITS, :4].tolist() == [2, 7, 400, 300]
    assert rows.sum() == rows[READ_UNITS].sum()


# --- levels: the arrays of the delay levels


def test_a_new_table_has_no_queue_and_waits_for_nothing() -> None:
    delays = np.array(naive.parse_levels("5s 1m 2s"), np.int64)
    table = new_level_table(delays, 77)
    assert set(table.row.tolist()) == {-1} and set(table.number.tolist()) == {-1}
    assert set(table.head_index.tolist()) == {NO_HEAD} and not table.offset.any()
    assert table.batch_max == 77


def test_a_level_that_is_not_configured_is_as_long_as_the_longest() -> None:
    """A broker's queue of such a level may hold messages: none may count as the clock's fault."""
    table = new_level_table(np.array([5_000, 60_000, 2_000], np.int64), 1)
    assert table.level_ms[:4].tolist() == [5_000, 60_000, 2_000, 60_000]
    assert set(table.level_ms[3:].tolist()) == {60_000}


# --- waking: whoever appends wakes enqueue-get only where it must


@kernel
def _wake_for(queues: Any, enqueue_get: Any, due_ms: int, eventfd: int, scratch: Any) -> None:
    wake_for(queues, enqueue_get, due_ms, eventfd, scratch)


@pytest.mark.parametrize("until_ms", [0, 1_000])
@pytest.mark.parametrize("due_ms", [999, 1_000])
@pytest.mark.parametrize("behind", [WAKE_COUNT - 1, WAKE_COUNT])
def test_it_is_woken_for_what_is_due_before_it_looks(
    until_ms: int, due_ms: int, behind: int
) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        world, eventfd = alone.engine.world, alone.engine.eventfds[ENQUEUE_GET]
        alone.engine.queues.table.next_index[0] = behind
        world.enqueue_get.thread.sleeping_until_ms = until_ms
        queues, scratch = alone.engine.queues.table, np.zeros(8, np.int64)
        _wake_for(queues, world.enqueue_get, due_ms, eventfd, scratch)
        woken = until_ms > 0 and (due_ms < until_ms or behind >= WAKE_COUNT)
        assert bool(select.select([eventfd], [], [], 0)[0]) == woken
        assert world.enqueue_get.thread.sleeping_until_ms == (0 if woken else until_ms)
        alone.engine.queues.table.next_index[0] = 0


# --- floor


SMALL = st.integers(0, 12)
PASSES = st.lists(st.tuples(SMALL, SMALL, SMALL, SMALL), max_size=4)


@kernel
def _ask(world: object, message: int, leads_to: int, offset: int) -> bool:
    return is_superseded(world, message, leads_to, offset)  # type: ignore[arg-type]


def defined(
    floor: int,
    passes: list[tuple[int, int, int, int]],
    hopped: dict[int, int],
    message: int,
    leads_to: int,
    offset: int,
) -> bool:
    """The floor is past its message; or a pass has looked at it, and it leads to the pass's first
    slot or later; or there is a later unit of its message.
    """
    return (
        message < floor
        or hopped.get(message, offset) > offset
        or any(
            start <= message < cursor and leads_to >= first_slot
            for start, cursor, first_slot, _ in passes
        )
    )


@given(
    floor=SMALL,
    passes=PASSES,
    hopped=st.dictionaries(SMALL, SMALL, max_size=6),
    rows=st.lists(st.tuples(SMALL, SMALL | st.just(NOT_SAID), SMALL), max_size=20),
)
def test_it_is_what_is_defined(
    floor: int,
    passes: list[tuple[int, int, int, int]],
    hopped: dict[int, int],
    rows: list[tuple[int, int, int]],
) -> None:
    expected = [defined(floor, passes, hopped, *row) for row in rows]
    units = Units.room(len(rows))
    for i, row in enumerate(rows):
        units.message[i], units.leads_to[i], units.offset[i] = row
    table = np.array(passes, np.int64).reshape(-1, PASS_COLUMNS)
    with Alone(DEQUEUE_GET) as alone:
        known = new_table(len(hopped))
        map_put_all(known, *np.array([*hopped.items()], np.int64).reshape(-1, 2).T.copy())
        alone.engine.use_hopped(known, len(hopped))
        world, cleaning = alone.engine.world, alone.engine.world.cleaning
        assert Floor(floor, table.ravel(), world.hopped).superseded(units).tolist() == expected
        with acting_as(ALONE):
            cleaning.floor, cleaning.pass_count = floor, len(passes)
        cleaning.passes[: table.size] = table.ravel()
        assert [_ask(world, *row) for row in rows] == expected
        assert read_floor(world).superseded(units).tolist() == expected


# --- clock: the manual clock with those who act between its events


SECOND = timedelta(seconds=1)
START_MS = 1_800_000_000_000


class Walker:
    """An attendant that notes where the clock stands, and has something to do at some times."""

    def __init__(self, clock: ManualClock, *times: int, taking: timedelta = timedelta(0)) -> None:
        self.clock, self.times, self.taking = clock, times, taking
        self.seen: list[int] = []
        attend(clock, self)

    def next_ms(self, start_ms: int, stop_ms: int) -> int:
        later = [START_MS + each for each in self.times if START_MS + each > start_ms]
        return min([stop_ms, *later])

    def arrived(self) -> None:
        self.seen.append(self.clock.now_ms - START_MS)
        if self.taking:
            taking, self.taking = self.taking, timedelta(0)
            self.clock.advance(taking)


def test_it_stops_where_an_attendant_has_something_to_do() -> None:
    clock, moves = ManualClock(), []
    listen(clock, lambda start_ms, stop_ms: moves.append((start_ms - START_MS, stop_ms - START_MS)))
    walker = Walker(clock, 300, 700, 5_000)
    clock.advance(SECOND)
    assert walker.seen == [0, 300, 700, 1_000]
    assert moves == [(0, 300), (300, 700), (700, 1_000)]
    leave(clock, walker)
    clock.advance(5 * SECOND)
    assert walker.seen[-1] == 1_000 and moves[-1] == (1_000, 6_000)


def test_it_never_goes_back_where_an_attendant_takes_longer() -> None:
    clock = ManualClock()
    Walker(clock, taking=10 * SECOND)
    clock.advance(SECOND)
    assert clock.now_ms == START_MS + 10_000


def test_it_can_be_set_back() -> None:
    clock, moves = ManualClock(), []
    walker = Walker(clock, 300)
    listen(clock, lambda start_ms, stop_ms: moves.append((start_ms - START_MS, stop_ms - START_MS)))
    clock.advance(-SECOND)
    assert clock.now_ms == START_MS - 1_000
    assert (moves, walker.seen) == ([(0, -1_000)], [-1_000])


@pytest.mark.parametrize("bad", ["1", None])
def test_it_refuses_what_is_no_length_of_time(bad: object) -> None:
    with pytest.raises(InvalidArgumentError):
        ManualClock().advance(bad)  # type: ignore[arg-type]


# --- world: what services share: rings, their records, how late timers were


@kernel
def _bucket(late_ms: int) -> int:
    return lateness_bucket(late_ms)


@kernel
def _note(world: Any, service: int, message: int) -> None:
    note_lost(service_of(world, service), message, INFO_UNLINKED)


@given(st.integers(0, 1 << 45) | st.integers(0, 3_000))
def test_a_bucket_holds_what_is_not_less_than_it_says(late_ms: int) -> None:
    bucket = _bucket(late_ms)
    least_ms = bucket_lateness_ms(bucket)
    assert least_ms <= late_ms
    if bucket < LATENESS_BUCKETS - 1:
        assert late_ms < bucket_lateness_ms(bucket + 1)
    if late_ms < 256:
        assert least_ms == late_ms  # exact
    elif bucket < LATENESS_BUCKETS - 1:
        assert late_ms - least_ms <= late_ms // 8  # eight steps for each doubling


def test_what_was_passed_by_is_noted_where_its_service_says_so() -> None:
    with Alone(DELIVER_LEVELS) as alone:
        world = alone.engine.world
        for service in range(len(SERVICE_NAMES)):
            for i in range(service):
                _note(world, service, 100 * service + i)
        for service in range(len(SERVICE_NAMES)):
            alone.service = service
            assert alone.lost() == [100 * service + i for i in range(service)]
            assert alone.unreadable_count == service


def test_services_share_no_memory_of_their_own() -> None:
    """A cache line for each: one's writes do not slow another one down."""
    with Alone(DELIVER_LEVELS) as alone:
        for name in ("found", "lost", "clock"):
            arrays = [getattr(each, name) for each in alone.engine.services]
            for i, one in enumerate(arrays):
                assert not any(np.shares_memory(one, other) for other in arrays[:i])
