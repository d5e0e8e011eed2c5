"""Holds: what they keep of two logs, when they lapse, what a missing place means."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from timerstore.errors import CorruptStoreError
from timerstore.services.engine import holds
from timerstore.services.engine.holds import Holds, LapsedError


def log(name: str, start: int = 0, end: int = 1_000) -> Any:
    return SimpleNamespace(name=name, start=start, end=end)


@pytest.fixture
def logs() -> tuple[Any, Any]:
    return log("commitlog", 100), log("timerlog", 50)


def test_what_is_held_stays_until_the_last_reference_goes(logs: tuple[Any, Any]) -> None:
    held = Holds(*logs)
    hold = held.take()
    assert (hold.commitlog, hold.timerlog) == (100, 50)
    assert held.heed(300, 200, full=False) == (100, 50)
    later = held.take()  # it needs nothing that could go by now
    assert (later.commitlog, later.timerlog) == (300, 200)
    assert held.heed(400, 250, full=False) == (100, 50)
    del hold
    gc.collect()
    assert held.heed(400, 250, full=False) == (300, 200)
    assert not later.is_lapsed


def test_a_hold_that_keeps_nothing_does_not_lapse(logs: tuple[Any, Any]) -> None:
    held = Holds(*logs)
    hold = held.take()
    assert held.heed(100, 50, full=True) == (100, 50)
    assert not hold.is_lapsed
    assert held.heed(200, 50, full=True) == (200, 50)
    assert hold.is_lapsed


@pytest.mark.parametrize("what", ["time", "bytes", "works"])
def test_one_that_rests_lapses(
    logs: tuple[Any, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Holds(*logs)
    hold = held.take()
    if what != "works":
        hold.rest()
    if what == "time":
        hold.rests_until_s = 0
    else:
        monkeypatch.setattr(holds, "KEPT_BYTES", 0)
        logs[0].end = 300
    assert held.heed(300, 50, full=False)[0] == (100 if what == "works" else 300)
    assert hold.is_lapsed == (what != "works")


@pytest.mark.parametrize("lapsed", [False, True])
def test_what_a_missing_place_means(logs: tuple[Any, Any], lapsed: bool) -> None:
    """Before the hold: it was done with, whatever has become of the hold."""
    commitlog, timerlog = logs
    held = Holds(commitlog, timerlog)
    hold = held.take()
    hold.is_lapsed = lapsed
    hold.pass_missing(commitlog, 99)
    hold.pass_missing(timerlog, 49)
    for each, offset in ((commitlog, 100), (timerlog, 50)):
        with pytest.raises(LapsedError if lapsed else CorruptStoreError):
            hold.pass_missing(each, offset)
