"""Congestion: crowded slots refuse, whichever way a timer comes to them."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.small_store import SMALL
from tests.wheel.test_place import cases, settings_of
from timerstore import CongestedError, ManualClock, TimerStore
from timerstore.calls.putting.admission import place_all

LIMIT = 10
CONFIG = replace(SMALL, congestion_slot_count=LIMIT)
START_MS = 1_800_000_000_000
DUE_MS = START_MS + 20_000
SECOND = timedelta(seconds=1)


def crowd(store: TimerStore, count: int, due_ms: int = DUE_MS) -> list[str]:
    """Bring a slot to so many timers, which chance may refuse a few times."""
    ids: list[str] = []
    while len(ids) < count:
        try:
            ids.append(store.put(b"x", topic="t", at_ms=due_ms))
        except CongestedError:
            assert len(ids) > LIMIT
    return ids


@pytest.mark.parametrize("linked", [False, True])
def test_a_burst_is_refused_before_any_of_it_has_a_unit(tmp_path: Path, linked: bool) -> None:
    with TimerStore(tmp_path, config=CONFIG, clock=ManualClock(START_MS)) as store:
        crowd(store, 2 * LIMIT)
        if linked:
            store.core.play_now()
        assert store.count() == 2 * LIMIT
        for offset_ms in range(0, 1_000, 100):
            with pytest.raises(CongestedError, match="congestion_slot_count"):
                store.put(b"y", topic="t", at_ms=DUE_MS + offset_ms)
            with pytest.raises(CongestedError) as refused:
                store.put_many([b"y"] * 3, at_ms=[DUE_MS + offset_ms, DUE_MS - 9_000, DUE_MS])
            assert list(refused.value.ids) == []
        assert store.count() == 2 * LIMIT
        store.put(b"y", at_ms=DUE_MS + 1_000)


def test_refusal_rises_from_the_limit_to_twice_the_limit(tmp_path: Path) -> None:
    """The mean of many tries, against the rule of `naive.rejection_probability`."""
    rng = np.random.default_rng(7)
    with TimerStore(tmp_path, config=CONFIG, clock=ManualClock(START_MS)) as store:
        store.putting.congestion._rng = rng
        for present in range(LIMIT - 2, 2 * LIMIT + 2):
            slot, tries, refused = 10**6, 400, 0
            store.putting.congestion._counts[slot] = present
            for _ in range(tries):
                try:
                    store.putting.congestion._judge(slot, 1, LIMIT)
                except CongestedError:
                    refused += 1
            chance = naive.rejection_probability(present, LIMIT)
            assert abs(refused / tries - chance) < 0.12, present


def test_a_reschedule_into_a_crowded_slot_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with TimerStore(tmp_path, config=CONFIG, clock=ManualClock(START_MS)) as store:
        id = store.put(b"moved", at_ms=DUE_MS + 5_000)
        crowd(store, 2 * LIMIT)
        with pytest.raises(CongestedError):
            store.reschedule(id, at_ms=DUE_MS)
        assert [timer.id for timer in store.pending(topic="default")] == [id]
        assert store.reschedule(id, at_ms=DUE_MS + 1_000)


def test_reschedules_count(tmp_path: Path) -> None:
    with TimerStore(tmp_path, config=CONFIG, clock=ManualClock(START_MS)) as store:
        done = 0
        while done < 2 * LIMIT:
            id = store.put(b"x", at_ms=DUE_MS + 1_000 + 1_000 * (done % 15))
            try:
                store.reschedule(id, at_ms=DUE_MS)
                done += 1
            except CongestedError:
                assert done > LIMIT and store.cancel(id)
                store.core.play_now()
        with pytest.raises(CongestedError):
            store.put(b"x", at_ms=DUE_MS)


def test_retries_with_a_delay_count_and_are_never_refused(tmp_path: Path) -> None:
    clock, count = ManualClock(START_MS), 3 * LIMIT
    with TimerStore(tmp_path, config=CONFIG, clock=clock) as store:
        for i in range(count):  # spread
            store.put(b"x", topic="t", at_ms=START_MS + 1_000 * i)
        clock.advance(count * SECOND)
        taken = list(store.consume("t", timeout=0))
        assert len(taken) == count
        for delivery in taken:
            delivery.nack(5 * SECOND)
        due_ms = clock.now_ms + 5_000
        with pytest.raises(CongestedError):
            store.put(b"x", at_ms=due_ms)
        clock.advance(5 * SECOND)
        assert len(list(store.consume("t", timeout=0))) == count


def test_hops_count_where_they_lie_and_come_through(tmp_path: Path) -> None:
    """What waits on its way crowds the slot that it waits in, and its own one after the hop."""
    clock, far_ms = ManualClock(START_MS), START_MS + 60_000  # beyond the window of 40 slots
    with TimerStore(tmp_path, config=CONFIG, clock=clock) as store:
        crowd(store, 2 * LIMIT, far_ms)
        with pytest.raises(CongestedError):
            store.put(b"y", at_ms=far_ms)
        store.core.play_now()
        wheel = store.core.engine.wheel.slots
        (at,) = np.flatnonzero(wheel["count"] == 2 * LIMIT)
        hop_ms = int(wheel[at]["time"]) * 1_000
        assert START_MS < hop_ms < START_MS + 40_000
        with pytest.raises(CongestedError):
            store.put(b"y", at_ms=hop_ms)
        clock.advance(timedelta(milliseconds=hop_ms - START_MS + 1_000))
        assert store.stats().rolled_count == 2 * LIMIT
        with pytest.raises(CongestedError):  # now they lie in their own slot
            store.put(b"y", at_ms=far_ms)
        clock.advance(timedelta(milliseconds=far_ms - clock.now_ms))
        assert len(list(store.consume("t", timeout=0))) == 2 * LIMIT


def test_a_cancel_makes_room(tmp_path: Path) -> None:
    with TimerStore(tmp_path, config=CONFIG, clock=ManualClock(START_MS)) as store:
        ids = crowd(store, 2 * LIMIT)
        store.core.play_now()
        assert store.cancel_many(ids).all()
        store.core.play_now()
        for _ in range(LIMIT):
            store.put(b"y", at_ms=DUE_MS)


def test_what_was_let_in_and_never_came_is_forgotten(tmp_path: Path) -> None:
    """A put that fails behind the check, a reschedule of what has fired."""
    with TimerStore(tmp_path, config=CONFIG, clock=ManualClock(START_MS)) as store:
        store.core.play_now()
        for _ in range(5 * LIMIT):
            store.putting.congestion.check(DUE_MS, START_MS)
        store.put(b"x", at_ms=DUE_MS)
        store.core.play_now()
        store.putting.congestion.check(DUE_MS, START_MS)
        assert store.putting.congestion._counts == {DUE_MS // 1_000: 1}


@given(cases(), st.integers(0, 3))
def test_each_is_judged_by_the_slot_that_it_goes_to(
    case: tuple[naive.Wheel, int, int], more: int
) -> None:
    wheel, out_ms, now_ms = case
    due_ms = np.array([out_ms + 997 * i for i in range(more + 1)], np.int64)
    slots = np.empty(more + 1, np.int64)
    base = max(now_ms // wheel.precision_ms, wheel.read, wheel.claimed - 1)
    place_all(settings_of(wheel), base, wheel.read, due_ms, slots)
    for due, slot in zip(due_ms.tolist(), slots.tolist(), strict=True):
        assert slot == naive.place(due, now_ms, wheel).slot
