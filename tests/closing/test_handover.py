"""Handing over to a broker, which fires whatever the slots from R on lead to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.as_broker import AsBroker
from tests.rigs import broker
from tests.services.test_cleaning import SECOND, START_MS, copy_some, drain, live_on, open_small
from timerstore import ManualClock, TimerStore, verify
from timerstore.closing import handover
from timerstore.validation import validate


def _copied_in_part(
    path: Path, clock: ManualClock, times: int, end: Callable[[TimerStore], None]
) -> tuple[list[str], list[str]]:
    """Live in a store that ends in the midst of a pass; return its far timers, the cancelled."""
    store = open_small(path, clock)
    ids = [store.put(b"far %d" % (i % 3), delay=(500 + i % 3) * SECOND) for i in range(30)]
    cancelled = [ids[3], ids[7]]
    assert store.cancel_many(cancelled).all()
    store.core.cleaner.stopped = True
    live_on(store, clock, 5)
    assert copy_some(store, 7, times) > 0
    store.core.cleaner.stopped = True
    end(store)
    return ids, cancelled


@pytest.mark.usefixtures("any_wheel")
@pytest.mark.parametrize("end", [TimerStore.close, TimerStore.abandon])
@pytest.mark.parametrize("times", [1, 2, 4])
def test_another_process_hands_over_what_was_copied(
    tmp_path: Path, end: Callable[[TimerStore], None], times: int
) -> None:
    """Its predecessor had copied in a pass that nobody remembers: sources and copies are linked."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    ids, cancelled = _copied_in_part(path, clock, times, end)
    with open_small(path, clock) as store:
        store.core.cleaner.stopped = True
        pending = sorted(set(ids) - set(cancelled))
        assert sorted(timer.id for timer in store.pending()) == pending
        store.handover()
    assert AsBroker(path).keys() == pending
    assert validate(path).ok, str(validate(path))
    assert verify(path).ok, str(verify(path))

    with open_small(path, clock) as store:
        assert store.count() == 28 == len(list(store.pending()))
        clock.advance(700 * SECOND)
        assert sorted(drain(store)) == sorted(
            b"far %d" % (i % 3) for i in range(30) if i not in (3, 7)
        )


@pytest.mark.usefixtures("any_wheel")
@pytest.mark.parametrize(
    "step", ["cut_chains", "move_units", "_place_deletes", "check_reached", "write_broker_files"]
)
@pytest.mark.parametrize("after", [True, False])
def test_a_handover_may_be_killed_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """Whoever opens the store then has the same timers, and fires each once."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    put, cancelled = _copied_in_part(path, clock, 2, TimerStore.abandon)
    ids = set(put) - set(cancelled)
    original = getattr(handover, step)

    def killed(*given: object) -> None:
        if after:
            original(*given)
        raise KeyboardInterrupt

    store = open_small(path, clock)
    store.core.cleaner.stopped = True
    monkeypatch.setattr(handover, step, killed)
    with pytest.raises(KeyboardInterrupt):
        store.handover()
    monkeypatch.undo()
    assert sorted(timer.id for timer in store.pending()) == sorted(ids)
    store.abandon()
    with open_small(path, clock) as store:
        assert sorted(timer.id for timer in store.pending()) == sorted(ids)
        assert store.health().ok
        clock.advance(700 * SECOND)
        assert len(drain(store)) == len(ids)
    if step != "cut_chains":  # the wheel may still say where chains ended that were cut
        assert validate(path).ok, str(validate(path))
        assert verify(path).ok, str(verify(path))


@pytest.mark.usefixtures("any_wheel")
@pytest.mark.parametrize("named", [False, True])
def test_a_delete_that_a_broker_of_5_5_wrote_names_its_topic_afterwards(
    tmp_path: Path, named: bool
) -> None:
    """It leaves the topic out by default, and the broker that goes on looks for topic and key."""
    due_ms, keys = broker.PUT_MS + 600_000, [f"K{i}" for i in range(9)]
    put = [broker.timer("t", b"x", due_ms + i, key, {}) for i, key in enumerate(keys)]
    for i in (2, 5):
        target = f"t+{keys[i]}" if named else keys[i]
        put.append(broker.timer("t", b"0", due_ms + i, keys[i], {"TIMER_DEL_UNIQKEY": target}))
    path = broker.write_store(tmp_path / "s", put, 1 << 16)
    with open_small(path, ManualClock(broker.PUT_MS + 1_000, force=True)) as store:
        assert store.count() == 7
        store.handover()
    assert AsBroker(path).keys() == [key for key in keys if key not in ("K2", "K5")]
    assert verify(path).ok and validate(path).ok
