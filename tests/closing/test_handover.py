"""Handing over to a broker, which fires whatever the slots from R on lead to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.as_broker import AsBroker
from tests.services.test_cleaning import SECOND, START_MS, drain, is_sound, live_on, open_small
from timerstore import ManualClock, TimerStore


def _begin_pass(store: TimerStore, steps: int) -> int:
    """Copy a part of what is pending in the oldest segment; return how much."""
    store.core.cleaner.stopped, store.core.cleaner.units_at_once = False, 7
    for _ in range(steps):
        store.core.cleaner.step()
    return store.stats().cleaning.copied_count


@pytest.mark.usefixtures("any_wheel")
@pytest.mark.parametrize("end", [TimerStore.close, TimerStore.abandon])
@pytest.mark.parametrize("steps", [2, 3, 5])
def test_another_process_hands_over_what_was_copied(
    tmp_path: Path, end: Callable[[TimerStore], None], steps: int
) -> None:
    """Its predecessor had copied in a pass that nobody remembers: sources and copies are linked."""
    clock, path = ManualClock(START_MS), tmp_path / "s"
    store = open_small(path, clock)
    ids = [store.put(b"far %d" % (i % 3), delay=(500 + i % 3) * SECOND) for i in range(30)]
    cancelled = [ids[3], ids[7]]
    assert store.cancel_many(cancelled).all()
    store.core.cleaner.stopped = True
    live_on(store, clock, 5)
    assert _begin_pass(store, steps) > 0
    store.core.cleaner.stopped = True
    end(store)

    with open_small(path, clock) as store:
        store.core.cleaner.stopped = True
        pending = sorted(set(ids) - set(cancelled))
        assert sorted(timer.id for timer in store.pending()) == pending
        store.handover()
    assert AsBroker(path).keys() == pending
    assert is_sound(path)

    with open_small(path, clock) as store:
        assert store.count() == 28 == len(list(store.pending()))
        clock.advance(700 * SECOND)
        assert sorted(drain(store)) == sorted(
            b"far %d" % (i % 3) for i in range(30) if i not in (3, 7)
        )
