"""Searches in the key index: what they find, what they cut out; no file can mislead them."""

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive_keys import entries_of
from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore
from timerstore.services.calls.key_search import (
    BEGIN,
    BEGIN_BEHIND,
    GO_ON,
    GO_ON_WITHOUT,
    SEARCH_BEHIND,
    SEARCH_FOUND,
    SEARCH_NO_WORD,
    SEARCH_NOTHING_LEFT,
    KeySearch,
)
from timerstore.services.engine.engine import Engine
from timerstore.testing.disk import QuietDisk

START_MS = 1_800_000_000_000
HOUR = timedelta(hours=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    clock = ManualClock(START_MS)
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        yield store


class Search(KeySearch):
    """A search of a store, as its callers make it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.world, engine.keys.index)
        self._logs = engine.commitlog, engine.queues.files[0]

    def next(self, key: bytes, topic: bytes, how: int) -> int:
        with self._logs[0].reading(), self._logs[1].reading():
            return super().next(key, topic, how)


def search_of(store: TimerStore) -> KeySearch:
    return Search(store.core.engine)


def ids_found(store: TimerStore, key: bytes = b"k", how: int = GO_ON) -> list[str | None]:
    """All that a search finds, each then passed in the same way."""
    search, found = search_of(store), list[str | None]()
    said = search.next(key, b"t", BEGIN)
    if said == SEARCH_BEHIND:
        store.core.engine.keys.catch_up()
        said = search.next(key, b"t", BEGIN)
    while said == SEARCH_FOUND:
        found.append(search.id)
        said = search.next(key, b"t", how)
    assert said == SEARCH_NOTHING_LEFT
    return found


def test_the_newest_comes_first(store: TimerStore) -> None:
    ids = [store.put(b"a", topic="t", delay=HOUR, key="k") for _ in range(4)]
    store.put(b"a", topic="u", delay=HOUR, key="k")
    store.put(b"a", topic="t", delay=HOUR, key="k k")
    level = store.put(b"a", topic="t", delay_level=2, key="k")
    assert ids_found(store) == [*reversed(ids), level]


def test_it_says_what_is_missing(store: TimerStore) -> None:
    search = search_of(store)
    store.put(b"a", topic="t", delay=HOUR, key="k")
    assert search.next(b"k", b"t", BEGIN) == SEARCH_BEHIND
    assert search.next(b"k", b"t", BEGIN_BEHIND) == SEARCH_NOTHING_LEFT
    assert search.next(b"  ", b"t", BEGIN_BEHIND) == SEARCH_NO_WORD
    store.core.engine.keys.catch_up()
    store.put(b"a", topic="t", delay_level=1, key="k")
    assert search.next(b"k", b"t", BEGIN) == SEARCH_BEHIND


def test_what_is_done_with_is_cut_out(store: TimerStore) -> None:
    ids = [store.put(b"a", topic="t", delay=HOUR, key="k") for _ in range(4)]
    assert ids_found(store, how=GO_ON_WITHOUT) == ids[::-1]
    assert ids_found(store) == []
    newest = store.put(b"a", topic="t", delay=HOUR, key="k")
    assert ids_found(store) == [newest]


def test_what_was_passed_is_cut_out(store: TimerStore) -> None:
    """A search that finds a timer fired, of which it was known that it had its unit, drops it."""
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    for i in range(6):
        store.put(b"a", topic="t", delay=timedelta(seconds=1), key="k")
        assert len(ids_found(store)) <= 3
        clock.advance(timedelta(seconds=2 + i))
    ids_found(store)
    clock.advance(timedelta(seconds=9))
    ids_found(store)
    clock.advance(timedelta(seconds=9))
    assert ids_found(store) == []
    level = store.put(b"a", topic="t", delay_level=1, key="k")
    assert ids_found(store) == [level]
    clock.advance(timedelta(seconds=1))
    assert ids_found(store) == []


@settings(max_examples=25)
@given(
    damage=st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), min_size=1, max_size=12),
    seed=st.integers(0, 99),
)
@pytest.mark.timeout(60, method="signal")
def test_no_file_can_mislead_it(
    damage: list[tuple[int, int]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever stands in the file, a search ends, and finds nothing that is not there."""
    rnd, path = random.Random(seed), tmp_path_factory.mktemp("s") / "s"
    with TimerStore(path, config=SMALL, clock=ManualClock(START_MS), disk=QuietDisk()) as store:
        ids = {store.put(b"a", topic="t", delay=HOUR, key=rnd.choice("kl")) for _ in range(9)}
        store.core.engine.keys.catch_up()
        file = store.core.engine.keys._files[0]
        used = np.flatnonzero(file.map.view)
        for at, value in damage:
            file.map.view[used[at % len(used)]] = value
        entries_of(file.map.view, 3, 4)[0]["previous"] = rnd.choice([3, 4, 9, -1, 1 << 30])
        entries_of(file.map.view, 4, 5)[0]["offset"] = rnd.choice([-1, 1 << 60, 17, 0])
        for how in (GO_ON, GO_ON_WITHOUT):
            for key in (b"k", b"l"):
                found = ids_found(store, key, how)
                assert len(found) <= 9 and set(found) <= ids
