"""Sources of an earlier life's copies: how long the copies cursor waits for each."""

from pathlib import Path

import numpy as np

from tests.services.test_cleaning import (
    SECOND,
    SMALL,
    START_MS,
    copy_some,
    live_on,
    open_small,
    put_far,
)
from timerstore import ManualClock
from timerstore.services.opening.recover_copies import assume_sources, learn_sources


def test_the_copies_cursor_waits_for_what_was_copied_far_ahead(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = open_small(tmp_path / "s", clock)
    put_far(store, 40)
    store.core.cleaner.stopped = True
    live_on(store, clock, 3)
    copied = copy_some(store, 3, 3)
    assert 0 < copied < 40
    first_copy = store.core.engine.world.cleaning.passes[3]
    store.close()
    with open_small(tmp_path / "s", clock) as store:
        engine = store.core.engine
        found = engine.recovered_sources
        learn_sources(engine)
        assert np.array_equal(found, engine.recovered_sources)
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
        assume_sources(store.core.engine, np.array([7, 9]), 5)
        assert store.core.engine.last_recovered_source(5) == 9
        assert store.core.engine.last_recovered_source(6) == -1
        clock.advance(SECOND)
