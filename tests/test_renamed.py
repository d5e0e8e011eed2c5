"""Old names: each still works, with a warning in the program's own line."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
from timerstore import recurring
from timerstore.ground.renamed import renamed


@renamed(grey="gray")
class _Kind:
    gray = 7


def test_an_old_name_is_the_new_one_and_warns() -> None:
    kind: Any = _Kind()
    with pytest.warns(DeprecationWarning, match="grey is called gray now") as told:
        assert kind.grey == 7
    assert told[0].filename == __file__


def test_a_name_that_never_was() -> None:
    kind: Any = _Kind()
    with pytest.raises(AttributeError, match="'_Kind' object has no attribute 'green'"):
        _ = kind.green


def test_old_names_of_calls(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, clock=timerstore.ManualClock()) as opened:
        store: Any = opened
        consumer: Any = timerstore.Consumer(opened, "g")
        jobs: Any = recurring.Schedules(opened)
        calls: list[Callable[[], object]] = [
            lambda: store.redrive("g"),
            lambda: consumer.redrive(),
            lambda: jobs.go_on(),
        ]
        for call in calls:
            with pytest.warns(DeprecationWarning, match="is called") as told:
                assert call() == 0
            assert told[0].filename == __file__


def test_an_integer_as_the_time_of_a_restore(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", clock=timerstore.ManualClock()) as store:
        at_ms: Any = store.backup(tmp_path / "b").point.time_ms
    with pytest.warns(DeprecationWarning, match="is called at_ms= now") as told:
        assert timerstore.restore(tmp_path / "b", tmp_path / "r", at=at_ms).as_of_ms == at_ms
    assert told[0].filename == __file__
    with pytest.raises(timerstore.InvalidArgumentError, match="exclude each other"):
        timerstore.restore(tmp_path / "b", tmp_path / "r2", at=at_ms, at_ms=at_ms)


def test_an_old_name_of_the_package() -> None:
    package: Any = timerstore
    with pytest.warns(DeprecationWarning, match="Report is called VerifyReport now") as told:
        assert package.Report is timerstore.VerifyReport
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec("from timerstore import *", {})
