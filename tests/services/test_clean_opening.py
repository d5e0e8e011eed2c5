"""Opening after a clean close reads nothing of what is pending but what it links."""

import dataclasses
import logging
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import timerstore
from tests.table_stores import LIVES, SMALL, TOPICS, live, pending
from timerstore import ManualClock, TimerStore
from timerstore.services.durable.cancelled_file import CANCELLED_FILE
from timerstore.services.opening import (
    recover_copies,
    recover_deletes,
    recover_pending,
    telling,
)


def refuse(*_: Any) -> Iterator[Any]:
    raise AssertionError("all units are read")


def reopened(store: TimerStore) -> TimerStore:
    """The store, closed and opened again at the time of its clock, without reading all units."""
    clock = store.core.clock
    store.close()
    with pytest.MonkeyPatch.context() as patch:
        for each in (recover_pending, recover_deletes, recover_copies):
            patch.setattr(each, "live_units", refuse)
        config = store.core.engine.config
        return timerstore.open(store.core.path, config=config, clock=clock)  # type: ignore[arg-type]


def told(store: TimerStore) -> Any:
    """What a store says of what is pending, in each way."""
    counts = [(store.count(topic), store.upcoming(topic)) for topic in [None, *TOPICS]]
    return pending(store), counts, store.horizon(1).count.tolist()


@given(LIVES, LIVES)
def test_lives_with_a_clean_close_between(first: list[Any], last: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = live(Path(folder) / "s", first)
        before, cancelled = told(store), store.core.engine.cancelled.set.count
        store = reopened(store)
        assert told(store) == before
        assert store.core.engine.cancelled.set.count == cancelled
        store.core.engine.cancelled.check()
        store.core.clock.advance(timedelta(days=30))  # type: ignore[attr-defined]
        assert store.count() == 0
        store.close()


def test_what_had_no_unit_is_linked_and_not_counted(tmp_path: Path) -> None:
    store = timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock())
    ids = store.put_many([b"b"] * 500, topic="t", delay_ms=range(5_000, 100_000, 190))
    assert store.core.engine.world.enqueue_put.linked_index == 0
    assert store.cancel(ids[7])
    store = reopened(store)
    assert store.core.findings.relinked_count == 501
    assert store.count() == 499 == len(list(store.pending()))
    store.close()


def test_moved_timers_are_not_looked_for(tmp_path: Path) -> None:
    tuning = dataclasses.replace(SMALL.tuning, cleaning_factor=1)
    config, clock = dataclasses.replace(SMALL, retention_ms=0, tuning=tuning), ManualClock()
    store = timerstore.open(tmp_path / "s", config=config, clock=clock)
    store.put_many([b"far"] * 50, topic="t", delay_ms=600_000)
    for _ in range(3):
        store.put_many([b"z" * 200] * 300, topic="t", delay_ms=100)
        clock.advance(timedelta(seconds=3))
        while len(batch := store.pull("t", timeout=0, max_count=1_000)):
            batch.ack()
        for _ in range(3):
            store.clean()
            store.flush()
            clock.advance(timedelta(seconds=2))
    assert store.core.engine.commitlog.start > 0
    store = reopened(store)
    assert store.count() == 50
    clock.advance(timedelta(seconds=700))
    assert len(store.pull("t", timeout=0, max_count=1_000)) == 50
    store.close()


@pytest.mark.parametrize("how", ["gone", "damaged", "older", "empty"])
def test_a_set_that_is_not_of_that_close_is_found_again(tmp_path: Path, how: str) -> None:
    store = timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock())
    ids = [store.put(b"b", delay=timedelta(seconds=9 + i)) for i in range(30)]
    store.cancel(ids[3])
    clock = store.core.clock
    store.close()
    file = tmp_path / "s" / "config" / CANCELLED_FILE
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
    monkeypatch.setattr(telling, "FIRST_S", -1.0)
    monkeypatch.setattr(telling, "EACH_S", -1.0)
    store = timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock())
    store.put_many([b"b"] * 500, delay_ms=60_000)
    store.flush()
    store.abandon()
    with caplog.at_level(logging.WARNING), timerstore.open(tmp_path / "s", config=SMALL) as store:
        said = [each.getMessage() for each in caplog.records]
    assert any("timers get their units" in each for each in said), said
    assert any("counted again" in each and each.endswith("% done") for each in said), said
