"""Stores in which messages expire."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.calls.consuming.test_expires import START_MS, opened
from timerstore import ManualClock, TimerStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[TimerStore]:
    with opened(tmp_path / "s", clock) as store:
        yield store


@pytest.fixture
def real(tmp_path: Path) -> Iterator[TimerStore]:
    with opened(tmp_path / "real") as store:
        yield store
