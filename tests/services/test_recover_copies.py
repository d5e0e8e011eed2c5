"""Sources of an earlier life's copies: how long the copies cursor waits for each."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.services.test_cleaning import (
    SMALL,
    START_MS,
    copy_some,
    live_on,
    open_small,
    put_far,
)
from timerstore import ManualClock
from timerstore.services.opening import recover_settled
from timerstore.services.opening.recover_settled import assume_sources, learn_sources


def test_the_copies_cursor_waits_for_what_was_copied_far_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START_MS)
    store = open_small(tmp_path / "s", clock)
    put_far(store, 40)
    store.core.upkeep.cleaner.stopped = True
    live_on(store, clock, 3)
    copied = copy_some(store, 3, 3)
    assert 0 < copied < 40
    first_copy = store.core.engine.world.cleaning.passes[3]
    store.core.play_now()  # what a service's thread does by itself
    store.close()
    with monkeypatch.context() as patch:
        patch.setattr(recover_settled, "live_units", lambda *_: pytest.fail("all units are read"))
        store = open_small(tmp_path / "s", clock)
    with store:
        engine = store.core.engine
        found = engine.recovered_sources
        learn_sources(engine)
        slots = dict(found.tolist())
        assert len(engine.recovered_sources) >= copied
        for source, slot in engine.recovered_sources.tolist():
            assert slot <= slots[source]
        engine.recovered_sources = found
        ahead = found[found[:, 1] > engine.read_slot + 2]
        assert len(ahead) == copied
        assert engine.recovered_copy == first_copy
        last = int(ahead[:, 0].max())
        for read_slot, floor, waits in (
            (engine.read_slot, 0, True),
            (engine.read_slot, last, True),
            (engine.read_slot, last + 1, False),
            (int(ahead[:, 1].max()), 0, True),
            (int(ahead[:, 1].max()) + 1, 0, False),
        ):
            offsets = engine.levels.offset
            assert (engine.scan_from(read_slot, floor, offsets, 1 << 40) == first_copy) == waits


def test_what_was_fired_was_claimed(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock, SMALL) as store:
        engine, nothing = store.core.engine, np.zeros((2, 0), np.int64)
        assume_sources(engine, np.array([7, 9]), nothing, 5)
        assert engine.last_recovered_source(5) == 9
        assert engine.last_recovered_source(6) == -1


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 30), unique=True),
    st.dictionaries(st.integers(0, 30), st.integers(0, 1 << 45)),
    st.integers(0, 1 << 40),
)
def test_what_waits_again_is_due_in_its_slot_at_the_latest(
    origins: list[int], waiting: dict[int, int], claimed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock(START_MS)
        with open_small(Path(folder) / "s", clock, SMALL) as store:
            engine = store.core.engine
            rows = np.array([list(waiting), list(waiting.values())], np.int64)
            assume_sources(engine, np.array(origins, np.int64), rows, claimed)
            top = claimed + 2 * engine.config.wheel_slot_count
            for source, slot in engine.recovered_sources.tolist():
                due = waiting.get(source, 0) // engine.precision_ms
                assert slot == min(max(due, claimed), top)
            assert engine.recovered_sources[:, 0].tolist() == origins
            engine.recovered_sources = engine.recovered_sources[:0]
