"""Chains walked, the timer log scanned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suite.rig import COUNT, START_MS, drive, play, put
from timerstore import TimerStore
from timerstore.services.looking.slot_units import chain_units
from timerstore.services.world.state import ENQUEUE_GET, ENQUEUE_PUT
from timerstore.timelog.bytes.unit import Units
from timerstore.wheel.chain import WALK_DONE, scan_units


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


def bench_scan(store: TimerStore, benchmark: Any) -> None:
    """Read the timer log from end to end."""
    put(store, 3_600_000)
    drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)
    timerlog, units = store.core.engine.timerlog, Units.room(COUNT)

    def stage() -> None:
        state = np.array([timerlog.start, 0], np.int64)
        with timerlog.reading() as table:
            found = scan_units(table, timerlog.end, 0, 1_000, 0, units, state)
        assert found == COUNT
        assert state[1] == WALK_DONE

    play(benchmark, stage)
