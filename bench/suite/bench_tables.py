"""Tables of Arrow batches."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from suite.rig import COUNT, START_MS, play, put
from timerstore import Config, ManualClock


@pytest.fixture
def path(folder: Path) -> Path:
    """Return a closed store with COUNT timers that are pending, as many that have fired."""
    clock = ManualClock(START_MS)
    config = Config(durability="process")
    with timerstore.open(folder / "store", config=config, clock=clock) as store:
        put(store, 0)
        put(store, 3_600_000)
        clock.advance(timedelta(seconds=2))
    return folder / "store"


@pytest.mark.parametrize(
    ("table", "rows"),
    [("messages", 3 * COUNT), ("fired", COUNT), ("units", 2 * COUNT), ("timers", COUNT)],
)
def bench_table(path: Path, benchmark: Any, table: str, rows: int) -> None:
    """Read a table, every column."""

    def stage() -> None:
        assert timerstore.read(path, table).num_rows == rows

    play(benchmark, stage, count=rows)
