"""Going through slots as a broker does: whatever it would not fire once is found."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.services.test_cleaning import SECOND, START_MS, copy_some, open_small
from timerstore import ManualClock, TimerStore, TimerStoreError
from timerstore.jit.acting import ALONE, acting_as
from timerstore.services.broker.reached import check_reached
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes.unit import NO_UNIT


def _used(engine: Engine) -> np.ndarray:
    slots = engine.wheel.slots
    return np.flatnonzero((slots["time"] >= engine.read_slot) & (slots["last"] != NO_UNIT))


def _lose_a_slot(engine: Engine) -> None:
    engine.wheel.slots["last"][_used(engine)[0]] = NO_UNIT


def _skip_a_unit(engine: Engine) -> None:
    first = _used(engine)[0]
    engine.wheel.slots["last"][first] = engine.wheel.slots["first"][first]


def _reach_a_source(engine: Engine) -> None:
    """A message was copied, and nobody remembers."""
    assert engine.world.cleaning.pass_count
    with acting_as(ALONE):
        engine.world.cleaning.pass_count = 0


def _cancel_without_a_delete(engine: Engine) -> None:
    """The delete waits in another slot than its timer."""
    assert engine.cancelled.set.count


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (_lose_a_slot, "are not reached exactly once"),
        (_skip_a_unit, "are not reached exactly once"),
        (_reach_a_source, "beside its copy"),
        (_cancel_without_a_delete, "no delete beside"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, fault: Callable[[Engine], None], told: str) -> None:
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        ids = store.put_many([b"far"] * 40, delay_ms=50_000)
        store.put_many([b"farther"] * 10, delay_ms=500_000)
        store.core.play_now()
        engine = store.core.engine
        check_reached(engine)
        if fault is _reach_a_source:
            _copy(store, clock)
        if fault is _cancel_without_a_delete:
            late = store.put(b"rolls", delay=500 * SECOND)
            clock.advance(3 * SECOND)
            assert store.cancel(late) and store.cancel(ids[0])
            engine.cancelled.add(np.array([1], np.int64), np.array([1], np.int64))
        store.core.play_now()
        fault(engine)
        with pytest.raises(TimerStoreError, match=told):
            check_reached(engine)
        store.abandon()


def _copy(store: TimerStore, clock: ManualClock) -> None:
    clock.advance(SECOND)
    store.flush()
    copy_some(store, 16_384, 3)
