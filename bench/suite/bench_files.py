"""Files: messages, chains, tables."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from suite.rig import COUNT, START_MS, drive, play, put
from timerstore import Config, ManualClock, TimerStore
from timerstore.jit.kernel import Kernel
from timerstore.jit.record import Words
from timerstore.services.looking.read_units import chain_units
from timerstore.services.world.state import ENQUEUE_GET, ENQUEUE_PUT
from timerstore.timelog.bytes.message import MessageParts, read_message
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at


@Kernel
def _read_many(table: SegmentTable, offsets: Words, found: MessageParts, verify: bool) -> int:
    bad = 0
    for i in range(len(offsets)):
        bad += read_message(segment_at(table, 0), offsets[i], offsets[i], found, verify)
    return bad


@pytest.mark.parametrize("verify", [False, True], ids=["frame", "frame-and-crc"])
def bench_read_message(store: TimerStore, benchmark: Any, verify: bool) -> None:
    """Find a message's parts and properties, without or with its checksum."""
    put(store, 3_600_000)
    entries = store.core.engine.queues.read(0, 0, COUNT)
    offsets = entries["offset"].astype(np.int64)
    table, found = store.core.engine.commitlog.shared_table, MessageParts()
    assert _read_many(table, offsets, found, verify) == 0
    play(benchmark, lambda: _read_many(table, offsets, found, verify))


def _linked(store: TimerStore, seconds: int) -> np.ndarray[Any, Any]:
    """Link COUNT timers of so many seconds; return their chains."""
    at_ms = START_MS + 3_600_000 + np.random.default_rng(1).integers(0, 1_000 * seconds, COUNT)
    store.put_many([b"x" * 100] * COUNT, at_ms=at_ms)
    drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)
    slots = store.core.engine.wheel.slots
    used = slots[slots["count"] > 0]
    return np.column_stack([used["time"], used["last"]]).astype(np.int64)


@pytest.mark.parametrize("seconds", [1, 1_000])
def bench_chains(store: TimerStore, benchmark: Any, seconds: int) -> None:
    """Walk one long chain, or a thousand short ones in turn."""
    chains = _linked(store, seconds)

    def stage() -> None:
        assert sum(len(part.offset) for part in chain_units(store.core.engine, chains)) == COUNT

    play(benchmark, stage)


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
