"""Places in the order of due time, against a dictionary; how much is read for the first few."""

import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.models.ledger import read_messages
from tests.table_stores import LIVES, REFUSED, SMALL, TOPICS
from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.calls.pending import is_pending
from timerstore.jit.kernel import INTERPRETED
from timerstore.services.looking import timer_places
from timerstore.services.looking.instant import capture_instant
from timerstore.services.looking.timer_places import DueOrder
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import Units

pytestmark = pytest.mark.long

MILLISECOND = timedelta(milliseconds=1)
LATER = st.lists(
    st.one_of(
        st.tuples(st.just("far"), st.lists(st.integers(3_000, 500_000), min_size=1, max_size=9)),
        st.tuples(st.just("same"), st.integers(0, 9_000), st.integers(1, 9)),
        st.tuples(st.just("back"), st.integers(1, 20_000)),
        st.tuples(st.just("clean")),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    max_size=6,
)
RANGES = st.tuples(
    st.none() | st.integers(-5_000, 90_000),
    st.none() | st.integers(-5_000, 200_000),
    st.none() | st.integers(0, 20),
    st.none() | st.sampled_from(TOPICS),
)


class Ledger:
    """A store on a manual clock, beside a dictionary of what is pending in it."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.latest_ms = path, ManualClock(), 0
        self.uses_levels = False
        self.pending: dict[str, tuple[int, str]] = {}  # by id: due time, topic
        self.store = self.open()

    def open(self) -> TimerStore:
        return timerstore.open(self.path, config=SMALL, clock=self.clock)

    def put(self, at_ms: int, topic: str) -> None:
        self.pending[self.store.put(b"b", topic=topic, at_ms=at_ms)] = at_ms, topic

    def play(self, act: str, *rest: Any) -> None:
        store, ids = self.store, [*self.pending]
        now_ms = self.clock.now_ms
        if act == "put":
            for delay_ms in rest[0]:
                self.put(now_ms + delay_ms, rest[1])
        elif act == "far":
            for delay_ms in rest[0]:
                self.put(now_ms + delay_ms, TOPICS[delay_ms % 3])
        elif act == "same":
            for i in range(rest[1]):
                self.put(now_ms + rest[0], TOPICS[i % 3])
        elif act == "level":
            self.uses_levels = True
            for level in rest[0]:
                id = store.put(b"at level", topic=rest[1], delay_level=level)
                self.pending[id] = now_ms + int(store.core.engine.level_ms[level - 1]), rest[1]
        elif act == "cancel" and ids:
            if store.cancel(id := ids[rest[0] % len(ids)]):
                del self.pending[id]
        elif act == "move" and ids:
            try:
                id = ids[rest[0] % len(ids)]
                new = store.reschedule(id, delay=rest[1] * MILLISECOND)
            except REFUSED:
                return
            self.pending[new] = now_ms + rest[1], self.pending.pop(id)[1]
        elif act == "advance":
            self.clock.advance(rest[0] * MILLISECOND)
        elif act == "back" and not self.uses_levels:  # which then deliver by the clock
            self.clock.advance(-rest[0] * MILLISECOND)
        elif act == "flush":
            store.flush()
        elif act == "clean":
            store.clean()
        elif act == "reopen":
            store.abandon() if rest[0] else store.close()
            self.store = self.open()
        self.latest_ms = max(self.latest_ms, self.clock.now_ms)
        for id in [*self.pending]:  # what has fired is not pending any more
            if not self.store.get(id):
                assert self.pending.pop(id)[0] <= self.latest_ms

    def within(self, start_ms: int | None, end_ms: int | None, topic: str | None) -> dict[str, int]:
        return {
            id: due_ms
            for id, (due_ms, of) in self.pending.items()
            if topic in (None, of)
            and (start_ms is None or due_ms >= start_ms)
            and (end_ms is None or due_ms < end_ms)
        }


def check(ledger: Ledger, wanted: tuple[Any, ...]) -> None:
    store, now_ms = ledger.store, ledger.clock.now_ms
    start_ms, end_ms = (None if each is None else now_ms + each for each in wanted[:2])
    limit, topic = wanted[2:]
    truth = ledger.within(start_ms, end_ms, topic)
    bounds: dict[str, Any] = {"start_ms": start_ms, "end_ms": end_ms, "topic": topic}
    listed = [(timer.id, timer.due_ms) for timer in store.pending(**bounds, limit=limit)]
    assert dict(listed).items() <= truth.items()
    assert [due_ms for _, due_ms in listed] == sorted(truth.values())[:limit]
    columns = store.pending_columns(**bounds, limit=limit, columns=["id", "due_ms"]).to_pylist()
    same = [(each["id"], each["due_ms"]) for each in columns]
    assert same == listed if limit is not None else sorted(same) == sorted(listed)
    for bucket_ms in (1, 1_000, 7_777):
        found = store.horizon(bucket_ms, start_ms=start_ms, end_ms=end_ms)
        due_ms = np.array([*ledger.within(start_ms, end_ms, None).values()], np.int64)
        buckets, counts = np.unique(due_ms // bucket_ms, return_counts=True)
        assert found.start_ms.tolist() == (buckets * bucket_ms).tolist()
        assert found.count.tolist() == counts.tolist()


@given(LIVES, LATER, LIVES, st.lists(RANGES, min_size=1, max_size=3), st.sampled_from([2, 1 << 22]))
def test_listings_are_what_a_dictionary_says(
    first: list[Any], later: list[Any], last: list[Any], ranges: list[Any], known_max: int
) -> None:
    """Also if only so many places may be known at a time."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer_places, "_KNOWN_MAX", known_max)
        ledger = Ledger(Path(folder) / "s")
        for act in [*first, *later, *last]:
            ledger.play(*act)
        for wanted in [(None, None, None, None), *ranges]:
            check(ledger, wanted)
        ledger.store.abandon()


# --- how much is read


class Read:
    """Counts the units and messages that are read for listings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units = self.messages = 0

        def counted(read: Callable[..., Iterator[Units]]) -> Callable[..., Iterator[Units]]:
            def read_counted(*args: Any, **named: Any) -> Iterator[Units]:
                for units in read(*args, **named):
                    self.units += len(units)
                    yield units

            return read_counted

        def read_messages(core: Any, messages: Any, *rest: Any) -> is_pending.Found:
            self.messages += len(messages)
            return read(core, messages, *rest)

        read = is_pending.read_messages
        for name in ("chain_units", "all_units"):
            monkeypatch.setattr(timer_places, name, counted(getattr(timer_places, name)))
        monkeypatch.setattr(is_pending, "read_messages", read_messages)

    def take(self) -> tuple[int, int]:
        """Return how many units and messages were read, and begin again."""
        both, self.units, self.messages = (self.units, self.messages), 0, 0
        return both


COUNT = 4_000
EACH_MS = 500


@pytest.fixture
def full(tmp_path: Path) -> Iterator[TimerStore]:
    """A store of COUNT timers that are due over three windows, two a second."""
    config = Config(
        durability="process", tuning=Tuning(wheel_slot_count=1_024, roll_window_slots=700)
    )
    clock = ManualClock()
    with timerstore.open(tmp_path / "full", config=config, clock=clock) as store:
        delay_ms = np.random.default_rng(1).permutation(np.arange(COUNT) * EACH_MS + 5_000)
        store.put_many([b"b"] * COUNT, topic="t", delay_ms=delay_ms)
        clock.advance(timedelta(seconds=2))
        yield store


def test_the_first_few_cost_what_they_are(
    full: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, now_ms = Read(monkeypatch), full.core.clock.now_ms
    assert len([*full.pending(limit=10)]) == 10
    units, messages = read.take()
    assert units < 400 and messages <= 256
    assert len([*full.pending(start_ms=now_ms + 60_000, limit=10)]) == 10
    units, messages = read.take()
    assert units < 1_200 and messages <= 256
    for seconds in (500, 1_000, 1_800):  # rolls, of which each slot has some for each window
        assert len([*full.pending(start_ms=now_ms + seconds * 1_000, limit=10)]) == 10
        units, messages = read.take()
        assert units < 200 and messages <= 64
    assert full.pending_columns(end_ms=now_ms + 10_000).num_rows == 14
    units, messages = read.take()
    assert units < 400 and messages <= 32
    assert int(full.horizon(1_000, end_ms=now_ms + 10_000).count.sum()) == 14
    assert read.take()[0] < 400
    assert int(full.horizon(3_600_000).count.sum()) == COUNT
    units, messages = read.take()
    assert units == COUNT and messages <= 10


@pytest.mark.whole
def test_what_is_due_at_one_millisecond_is_read_as_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path / "midnight", config=SMALL, clock=clock) as store:
        ids = store.put_many([b"b"] * 3_000, topic="t", delay_ms=60_000)
        clock.advance(timedelta(seconds=2))
        read = Read(monkeypatch)
        assert [timer.id for timer in store.pending(limit=10)] == [*ids[:10]]
        assert read.take() == (3_000, 256)
        clock.advance(timedelta(seconds=50))  # all have hopped into their own slot
        read.take()
        assert [timer.id for timer in store.pending(limit=10)] == [*ids[:10]]
        assert read.take() == (3_000, 256)


@pytest.mark.parametrize("known_max", [600, 1 << 22])
def test_far_timers_are_sorted_a_part_at_a_time(
    full: TimerStore, monkeypatch: pytest.MonkeyPatch, known_max: int
) -> None:
    """As if there were more of them; if they are too many to be kept, by more than one pass."""
    monkeypatch.setattr(timer_places, "_KNOWN_MAX", known_max)
    order = DueOrder(full.core.engine, capture_instant(full.core.engine))
    order._ripe_at_once = 100
    seen, until = list[int](), (0, 0)
    while True:
        places, until = order.next(64)
        if not len(places.message):
            break
        due_ms = places.due_ms.tolist()
        assert due_ms == sorted(due_ms) and (not seen or due_ms[0] >= seen[-1])
        assert due_ms[-1] <= until[0] and order._known_count <= known_max
        seen += due_ms
    assert len(seen) == COUNT
    assert (order.unit_count == COUNT) == (known_max > COUNT) and order.unit_count < 20 * COUNT


def test_what_is_read_in_the_order_of_the_log_goes_on_past_damage(full: TimerStore) -> None:
    """Each slot's chain ends there, and others do not."""
    damaged = int(full.core.engine.timerlog.end // fmt.UNIT_BYTES // 2) * fmt.UNIT_BYTES
    full.core.engine.timerlog.view(damaged)[fmt.UNIT_MESSAGE_AT + 7] ^= 1
    listed = {timer.id for timer in full.pending()}
    assert COUNT - 9 <= len(listed) < COUNT
    ids = {*full.pending_columns(columns=["id"])["id"].to_pylist()}
    assert listed <= ids and len(ids) == full.horizon(1_000).count.sum() < COUNT
    full.core.engine.timerlog.view(damaged)[fmt.UNIT_MESSAGE_AT + 7] ^= 1
    assert len([*full.pending()]) == full.horizon(1_000).count.sum() == COUNT


def test_a_brokers_rolls_are_on_no_grid(golden: Callable[[str], Path]) -> None:
    """They are found by who begins behind their slots, in this life and the next."""
    path, tuning = golden("pending"), Tuning(roll_window_slots=172_800)
    newest = max(message.stored_ms for message in read_messages(path))
    clock = ManualClock(newest, force=True)
    for life in range(3):
        with TimerStore(path, config=Config(tuning=tuning), clock=clock) as store:
            assert store.core.findings.by_broker == (life == 0)
            whole = [(timer.due_ms, timer.id) for timer in store.pending()]
            assert len(whole) == store.count() > 1_000
            for first in range(0, len(whole) - 20, 600 if INTERPRETED else 120):
                start_ms = whole[first][0]
                wanted = [each for each in whole if each[0] >= start_ms][:20]
                listed = store.pending(start_ms=start_ms, limit=20)
                assert [(timer.due_ms, timer.id) for timer in listed] == wanted
            if life == 2:
                clock.advance(timedelta(days=2, hours=1))
                far_ms, before = whole[-1][0] - 86_400_000, capture_instant(store.core.engine)
                assert store.core.engine.wheel.off_grid_until <= before.snapshot.claimed
                assert [*store.pending(start_ms=far_ms)]
