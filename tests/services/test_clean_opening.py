"""Opening after a clean close reads nothing of what is pending but what it links."""

import logging
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import timerstore
from tests.services.alone import forget_cancelled
from tests.table_stores import LIVES, SMALL, TOPICS, live, pending
from tests.wheel_checks import check_cancelled
from timerstore import ManualClock, TimerStore
from timerstore.services.opening import recover_pending, recover_settled, recovery_findings
from timerstore.timelog.bytes.decode import identity_of
from timerstore.timelog.files.checkpoint import CANCELLED_FILE


def refuse(*_: Any) -> Iterator[Any]:
    raise AssertionError("all units are read")


def reopened(store: TimerStore) -> TimerStore:
    """The store, closed and opened again by its clock, without reading all units."""
    clock = store.core.clock
    if isinstance(clock, ManualClock):
        store.core.play_now()  # what a service's thread does by itself
    store.close()
    with pytest.MonkeyPatch.context() as patch:
        for each in (recover_pending, recover_settled):
            patch.setattr(each, "live_units", refuse)
        config, manual = store.core.engine.config, clock if isinstance(clock, ManualClock) else None
        return timerstore.open(store.core.path, config=config, clock=manual)


def told(store: TimerStore) -> Any:
    """What a store says of what is pending, in each way."""
    counts = [(store.count(topic), store.upcoming(topic)) for topic in [None, *TOPICS]]
    return pending(store), counts, store.horizon(1).count.tolist()


@given(LIVES)
def test_a_life_and_a_clean_close(first: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = live(Path(folder) / "s", first)
        store.core.play_now()
        before, cancelled = told(store), store.core.engine.cancelled.set.count
        store = reopened(store)
        assert told(store) == before
        assert store.core.engine.cancelled.set.count >= cancelled
        check_cancelled(store.core.engine.cancelled)
        store.core.clock.advance(timedelta(days=30))  # type: ignore[attr-defined]
        assert store.count() == 0
        store.close()


@pytest.mark.parametrize("cancelled", [0, 7])
def test_what_is_put_last_has_its_unit_before_the_store_is_closed(
    tmp_path: Path, cancelled: int
) -> None:
    store = timerstore.open(tmp_path / "s", config=timerstore.Config(durability="process"))
    ids = store.put_many([b"b"] * 1_000, topic="t", delay_ms=range(50_000, 90_000, 40))
    assert store.cancel_many(ids[:cancelled]).sum() == cancelled
    store = reopened(store)
    assert store.core.findings.relinked_count == 0
    assert store.count() == 1_000 - cancelled
    store.close()


def test_a_delete_that_was_passed_counts_as_long_as_its_slot_is_read_again(tmp_path: Path) -> None:
    """A service may be stopped between the two: its target has left the set, its slot is there."""
    clock = ManualClock()
    store = timerstore.open(tmp_path / "s", config=SMALL, clock=clock)
    ids = store.put_many([b"b"] * 20, topic="t", delay_ms=range(1_000, 21_000, 1_000))
    assert store.cancel_many([ids[2], ids[15]]).all()
    clock.advance(timedelta(milliseconds=2_500))
    engine = store.core.engine
    identity = identity_of(b"t", ids[2].encode(), engine.store_tag)
    assert forget_cancelled(engine.cancelled, *identity)
    assert engine.world.dequeue_get.claimed_slot > (clock.now_ms + 500) // 1_000 >= engine.read_slot
    store = reopened(store)
    assert [timer.id in (ids[2], ids[15]) for timer in store.pending()] == [False] * 16
    clock.advance(timedelta(seconds=40))
    assert len(store.pull("t", timeout=0, max_count=99)) == 18
    store.close()


@pytest.mark.parametrize("how", ["gone", "damaged", "older", "empty"])
def test_a_set_that_is_not_of_that_close_is_found_again(tmp_path: Path, how: str) -> None:
    store = timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock())
    ids = [store.put(b"b", delay=timedelta(seconds=9 + i)) for i in range(30)]
    store.cancel(ids[3])
    clock = store.core.clock
    store.close()
    file = tmp_path / "s" / CANCELLED_FILE
    data = file.read_bytes()
    if how == "older":
        with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:  # type: ignore[arg-type]
            store.cancel(ids[4])
        file.write_bytes(data)
    elif how == "gone":
        file.unlink()
    else:
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if how == "damaged" else b"")
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:  # type: ignore[arg-type]
        assert {timer.id for timer in store.pending()} == {*ids} - {ids[3]} - (
            {ids[4]} if how == "older" else set()
        )
        assert store.core.engine.cancelled.set.count == 1 + (how == "older")


def test_a_long_opening_says_how_far_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_findings, "SILENT_S", -1.0)
    monkeypatch.setattr(recovery_findings, "EACH_S", -1.0)
    store = timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock())
    store.put_many([b"b"] * 500, delay_ms=60_000)
    store.flush()
    store.abandon()
    with caplog.at_level(logging.WARNING), timerstore.open(tmp_path / "s", config=SMALL) as store:
        said = [each.getMessage() for each in caplog.records]
    assert any("timers get their units" in each for each in said), said
    assert any("counted again" in each and each.endswith("% done") for each in said), said
