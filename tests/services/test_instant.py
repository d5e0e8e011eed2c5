"""What is captured of an instant, against the same words read one by one."""

import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.services.alone import near_entries
from tests.small_store import SMALL
from timerstore.calls.pending import is_pending
from timerstore.services.looking import instant
from timerstore.services.looking.instant import capture_instant
from timerstore.services.world.state import waiting_places
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX

START_MS = 1_700_000_000_000


def slow_slots(store: timerstore.TimerStore) -> list[tuple[int, int]]:
    world = store.core.engine.world
    start = world.dequeue_get.claimed_slot
    stop = world.dequeue_put.passed_slot + 2 * world.settings.slot_count
    slots, get = store.core.engine.wheel.slots, world.dequeue_get
    owed = [(slot, int(world.near.owed[slot % len(world.near.owed)]))
            for slot in range(get.owed_slot, get.claimed_slot)]  # fmt: skip
    found = [(int(s["time"]), int(s["last"])) for s in slots if start <= s["time"] < stop]
    return sorted([each for each in owed if each[1] >= 0] + found)


def slow_messages(store: timerstore.TimerStore) -> list[int]:
    world = store.core.engine.world
    ring = world.dequeue_ring
    taken = ring.message[waiting_places(ring.ends)]
    return sorted(near_entries(world.near)[1].tolist() + taken.tolist())


def pairs(table: np.ndarray) -> set[tuple[int, int]]:
    return {(high, low) for high, low in table.reshape(-1, 2).tolist() if high or low}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 90_000)),
        st.tuples(st.just("level"), st.integers(1, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("pass"), st.integers(1, 20_000)),
    ),
    max_size=30,
)


@given(steps)
def test_an_instant_is_what_the_words_say(steps: list[tuple[str, int]]) -> None:
    clock = timerstore.ManualClock(START_MS)
    with (
        tempfile.TemporaryDirectory() as folder,
        timerstore.open(Path(folder) / "store", config=SMALL, clock=clock) as store,
    ):
        ids: list[str] = []
        for what, value in steps:
            if what == "put":
                ids.append(store.put(b"b", at_ms=clock.now_ms + value))
            elif what == "level":
                ids.append(store.put(b"b", delay_level=value))
            elif what == "cancel" and ids:
                store.cancel(ids[value % len(ids)])
            elif what == "pass":
                clock.advance(timedelta(milliseconds=value))
        world, levels = store.core.engine.world, 18
        found = capture_instant(store.core.engine)
        assert sorted(found.messages.tolist()) == slow_messages(store)
        assert [tuple(row) for row in found.slots.tolist()] == slow_slots(store)
        assert pairs(found.cancelled) == pairs(store.core.engine.cancelled.table)
        assert len(pairs(found.cancelled)) == store.core.engine.cancelled.set.count
        assert found.pending_count == store.count() == len(list(store.pending()))
        snapshot = found.snapshot
        assert snapshot.claimed == world.dequeue_get.claimed_slot
        assert snapshot.read == store.core.engine.read_slot
        assert snapshot.timerlog_end == store.core.engine.timerlog.end
        assert snapshot.queue_start == world.enqueue_put.linked_index
        assert snapshot.queue_end == store.core.engine.queues.next_index(0)
        assert found.level_start.tolist() == store.core.engine.levels.offset[:levels].tolist()
        waiting = int((found.level_stop - found.level_start).sum())
        assert waiting >= store.core.engine.queues.table.pending[QUEUE_COUNT_MAX:].sum()
        assert snapshot.top == world.dequeue_put.passed_slot + 2 * world.settings.slot_count
        assert snapshot.floor.offset == world.cleaning.floor
        light = capture_instant(store.core.engine, whole=False)
        assert sorted(light.messages.tolist()) == slow_messages(store)
        assert len(light.cancelled) == len(light.slots) == 0


SHORT = timerstore.Config(
    tuning=timerstore.Tuning(wheel_slot_count=128, roll_window_slots=60, precision_ms=1_000)
)


def test_slots_whose_places_are_used_again_while_they_are_listed_are_listed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, listed = timerstore.ManualClock(START_MS), instant._list_slots
    with timerstore.open(tmp_path, config=SHORT, clock=clock) as store:
        store.put(b"first", delay=timedelta(seconds=30))
        store.core.play_now()

        def late(*given: object) -> int:
            monkeypatch.setattr(instant, "_list_slots", listed)
            clock.advance(timedelta(seconds=230))
            store.put(b"second", delay=timedelta(seconds=56))  # a lap behind the first
            store.core.play_now()
            return listed(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(instant, "_list_slots", late)
        found = capture_instant(store.core.engine)
        slot = START_MS // 1_000 + 230 + 56
        assert [row[0] for row in found.slots.tolist()] == [slot]
        assert found.snapshot.read == store.core.engine.read_slot and found.pending_count == 1


def test_a_verdict_on_slots_that_were_passed_meanwhile_is_found_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, capture = timerstore.ManualClock(START_MS), is_pending.capture_instant
    with timerstore.open(tmp_path, config=SHORT, clock=clock) as store:
        id = store.put(b"x", delay=timedelta(seconds=30))
        store.core.play_now()
        captured = []

        def late(*given: object, **named: object) -> instant.Instant:
            found = capture(*given, **named)  # type: ignore[arg-type]
            if not captured:
                clock.advance(timedelta(seconds=230))
            captured.append(found.snapshot.read)
            return found

        monkeypatch.setattr(is_pending, "capture_instant", late)
        assert not is_pending.judge(store.core, [id]).pending[0]
        assert len(captured) == 2 and captured[1] == store.core.engine.read_slot
