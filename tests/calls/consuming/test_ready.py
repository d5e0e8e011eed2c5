"""The ready way of a pull, beside the long way: the same messages in the same order."""

import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rigs.storm_taken import run_of
from timerstore import (
    Batch,
    Config,
    InvalidArgumentError,
    ManualClock,
    StoreClosedError,
    TimerStore,
)
from timerstore.calls.consuming.ready import READY_QUEUES_MAX
from timerstore.jit.kernel import INTERPRETED
from timerstore.values.config import Durability

PUTS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([1, 2, 90, 40_000]),
        st.sampled_from([None, "a tag"]),
    ),
    max_size=12,
)
STEPS = st.lists(
    st.tuples(
        PUTS, st.sampled_from([1, 2, 5, 1 << 16]), st.sampled_from(["all", "one", "back", ""])
    ),
    min_size=1,
    max_size=6,
)


def rows_of(batch: Batch) -> list[Any]:
    columns = [batch.ids.to_pylist(), batch.bodies.to_pylist()]
    numbers = [batch.due_ms, batch.fired_ms, batch.tags_codes]
    decoded = [(d.tag, d.queue_index, d.offset) for d in batch]
    return [*zip(*columns, *(each.tolist() for each in numbers), decoded, strict=True)]


@settings(max_examples=25, deadline=None)
@given(steps=STEPS, durability=st.sampled_from(["group", "process"]))
def test_it_hands_out_what_the_long_way_does(steps: Any, durability: Any) -> None:
    clock, config = ManualClock(1_800_000_000_000), Config(durability=durability)
    with (
        tempfile.TemporaryDirectory() as folder,
        TimerStore(Path(folder) / "s", config=config, clock=clock) as store,
    ):
        readers = [store.consuming.group("t", name) for name in ("ready", "long")]
        readers[1].belong_to(lambda cursor, visible_end, count_max: count_max)
        readers[1].owner = None  # it goes the long way, and belongs to nobody
        for puts, count, how in steps:
            for delay_ms, length, tag in puts:
                store.put(bytes([length % 251]) * length, topic="t", delay_ms=delay_ms, tag=tag)
            clock.advance(timedelta(milliseconds=2))
            batches = [
                store.pull("t", group=each.name, max_count=count, timeout=0) for each in readers
            ]
            # The ready way takes what its block holds, and the next pull the rest.
            size = min(map(len, batches))
            found, expected = (rows_of(each)[:size] for each in batches)
            assert found == expected and (size > 0) == any(map(len, batches))
            for batch in batches:
                run = run_of(batch)
                run.give_back(range(size, len(run)))
                if how == "all" and len(run) == size:
                    batch.ack()
                elif how == "all":
                    run.settle_some(list(range(size)))
                elif how == "one" and size:
                    next(iter(batch)).ack()
                elif how == "back":
                    run.give_back(range(size))
            assert readers[0].committed() == readers[1].committed()
            cursors = [next(iter(each.cursors.values()), None) for each in readers]
            counts = [each and (each.open_count, each.in_flight_count) for each in cursors]
            assert counts[0] == counts[1]
        stats = {each.group: each.handled_count for each in store.stats().groups}
        assert stats.get("ready") == stats.get("long")


@pytest.mark.parametrize(("durability", "few"), [("process", (8, 9)), ("group", (55, 55))])
def test_a_pull_with_its_ack_calls_few_functions(
    tmp_path: Path, durability: Durability, few: tuple[int, int]
) -> None:
    """Each costs a thread that pulls each millisecond a microsecond or two."""
    called = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    with TimerStore(tmp_path / "s", config=Config(durability=durability)) as store:
        for timeout, most in zip((0, 60.0), few, strict=True):  # the second one waits
            for _ in range(3):  # the first one finds its queues
                called.clear()
                store.put(b"x", topic="t", delay_ms=100 if timeout else 0)
                if not timeout:
                    while store.count():
                        time.sleep(0.001)
                    time.sleep(0.01)
                sys.setprofile(note)
                batch = store.pull("t", timeout=timeout)
                batch.ack()
                sys.setprofile(None)
                assert len(batch) == 1
            looks = called.count("Group.pull_ready")  # who waits looks up now and then
            assert INTERPRETED or len(called) - 3 * max(0, looks - 2) <= most, called


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with TimerStore(tmp_path / "s", clock=ManualClock(1_800_000_000_000)) as made:
        yield made


def fired(store: TimerStore, count: int) -> None:
    for _ in range(count):
        store.put(b"x", topic="t")
    assert isinstance(store.core.clock, ManualClock)
    store.core.clock.advance(timedelta(seconds=1))


def test_both_ways_at_once_hand_out_each_message_once(store: TimerStore) -> None:
    """The long way has the lock, but the ready way takes none: it may come in between."""
    group = store.consuming.group("t", "g")
    fired(store, 1)
    store.pull("t", group="g", timeout=0).ack()
    fired(store, 5)
    (cursor,) = group.cursors.values()
    hand_out, taken = cursor._hand_out, []

    def first(*given: int) -> int:
        count = hand_out(*given)
        taken.append(group.pull(2))
        return count

    cursor._hand_out = first
    taken.append(group.pull(2, lambda cursor, visible_end, count_max: count_max))
    assert sorted(index for run in taken for index in run.indexes.tolist()) == [1, 2, 3, 4]


def test_a_group_of_many_queues_reads_on_after_an_ordered_consumer_was_refused(
    store: TimerStore,
) -> None:
    for queue_id in range(READY_QUEUES_MAX + 1):
        store.core.engine.queues.row(b"t", queue_id)
    group = store.consuming.group("t", "g")
    fired(store, 1)
    batch = store.pull("t", group="g", timeout=0)
    assert len(batch) == 1 and group.belong_to(lambda *_: 1) == 1
    batch.ack()
    fired(store, 2)
    assert len(store.pull("t", group="g", timeout=0)) == 2


def test_a_forgotten_group_hands_out_nothing_after_an_ordered_consumer(store: TimerStore) -> None:
    group = store.consuming.group("t", "g")
    fired(store, 1)
    assert group.belong_to(lambda *_: 1) is None
    store.consuming.forget("t", "g")
    group.belong_to_all()
    with pytest.raises(InvalidArgumentError, match="was forgotten"):
        group.pull(1)


@pytest.mark.parametrize("at", [1, 2])
def test_a_pull_maps_nothing_behind_a_close(store: TimerStore, tmp_path: Path, at: int) -> None:
    """The store is closed when a kernel says what to map, or which messages it handed out."""
    group = store.consuming.group("t", "g")
    fired(store, 1)
    store.pull("t", group="g", timeout=0).ack()
    fired(store, 2)
    group.let_go()
    pull, calls = group.ready_calls.pull, []

    def closes(*given: int) -> int:
        calls.append(pull(*given))
        if len(calls) == at:
            store.close()
        return calls[-1]

    group.ready_calls.pull = closes
    with pytest.raises(StoreClosedError):
        group.pull(1)
    mapped = (tmp_path / "s").as_posix() in Path("/proc/self/maps").read_text()
    assert len(calls) == at and not mapped


@pytest.mark.parametrize("start_ms", [10**11, 9_300_000_000_000, 253_402_300_000_000])
def test_response_times_are_those_of_any_clock(tmp_path: Path, start_ms: int) -> None:
    """Nanoseconds of the year 9999 do not fit in 64 bits."""
    clock = ManualClock(start_ms)
    with TimerStore(tmp_path / "s", clock=clock) as store:
        for count in (1, 2):  # by the long way, and the ready one
            fired(store, 1)
            batch = store.pull("t", group="g", timeout=0)
            clock.advance(timedelta(seconds=3))
            batch.ack()
            (stats,) = store.stats().groups
            response = stats.response
            assert (response.count, response.max_ms, response.sum_ms) == (count, 3000, 3000 * count)


@pytest.mark.parametrize(("log", "call"), [("commitlog", "pin"), ("queues", "run")])
def test_a_pull_that_fails_keeps_its_puller(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch, log: str, call: str
) -> None:
    """Few may take the ready way: once they were lost, all pulls of a group took the long one."""

    def fail(*given: int) -> None:
        raise KeyboardInterrupt

    group = store.consuming.group("t", "g")
    fired(store, 1)
    store.core.play_now()
    monkeypatch.setattr(getattr(store.core.engine, log), call, fail)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            group.pull(1, lambda *_: 1)
    monkeypatch.undo()
    assert len(store.pull("t", group="g", timeout=0)) == 1
    assert len(group._pullers) == len(group._ready_pullers) == 1


def test_an_abandoned_store_maps_nothing(tmp_path: Path) -> None:
    store = TimerStore(tmp_path / "s", clock=ManualClock(1_800_000_000_000))
    for _ in range(2):  # by the long way, and the ready one
        fired(store, 1)
        store.pull("t", group="g", timeout=0).ack()
    store.abandon()
    gc.collect()
    assert (tmp_path / "s").as_posix() not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("pulled_count", [0, 1, 2])
def test_an_entry_that_points_past_the_log_is_not_hidden(tmp_path: Path, pulled_count: int) -> None:
    """It looked as if it was not durable yet, for as long as it was the last one."""
    clock, config = ManualClock(1_800_000_000_000), Config(durability="group")
    with TimerStore(tmp_path / "s", config=config, clock=clock) as store:
        for _ in range(pulled_count):  # the first pull goes the long way
            fired(store, 1)
            store.pull("t", group="g", timeout=0).ack()
        fired(store, 2)
        queue = tmp_path / "s" / "consumequeue" / "t" / "0" / f"{0:020}"
        with queue.open("r+b") as file:
            file.seek((pulled_count + 1) * 20)
            file.write(b"\1")
        assert sum(len(store.pull("t", group="g", timeout=0)) for _ in range(2)) == 1
        assert [place.offset for place in store.core.engine.damage.places] == [
            20 * (pulled_count + 1)
        ]
