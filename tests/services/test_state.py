"""The services' state: every word has an owner, in cache lines of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.small_store import SMALL
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.record import ALONE, CALLER, NotTheOwnerError, acting_as
from timerstore.services.world.state import (
    CANCEL,
    CLEANING,
    DELIVER_LEVELS,
    DEQUEUE_GET,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    ENQUEUE_PUT,
    PREFETCH,
    new_thread,
)

EVERYONE = (
    *(ENQUEUE_GET, ENQUEUE_PUT, DEQUEUE_GET, DELIVER_LEVELS, DEQUEUE_PUT),
    *(CLEANING, PREFETCH, CANCEL, CALLER),
)
OF_FIRE = {DEQUEUE_PUT, DELIVER_LEVELS, CANCEL}
OWNERS = {
    "settings": set(),
    "enqueue_get": {ENQUEUE_GET},
    "enqueue_put": {ENQUEUE_PUT},
    "dequeue_get": {DEQUEUE_GET},
    "deliver_levels": {DELIVER_LEVELS},
    "dequeue_put": {DEQUEUE_PUT},
    "cancelled": OF_FIRE,
    "done": set(),
    "hopped": set(),
    "cleaning": {CLEANING},
    "prefetch": {PREFETCH},
    "callers": {CALLER},
    "commitlog": set(EVERYONE),  # under the append lock
    "queues": set(EVERYONE),
    "timer_queue": set(EVERYONE),
    "timerlog": set(EVERYONE),
    "near": {DEQUEUE_GET},
    "levels": {DELIVER_LEVELS, CALLER},
    "enqueue_ring": {ENQUEUE_GET, ENQUEUE_PUT},
    "late_ring": {ENQUEUE_PUT, DEQUEUE_GET},
    "dequeue_ring": {DEQUEUE_GET, DEQUEUE_PUT},
    "stage": OF_FIRE | {CLEANING},
}


def words_of(each: Any, where: str) -> Iterator[tuple[Any, str, str, bool]]:
    """Yield (record, where it is, a word's name, is it shared) of a record and those in it."""
    for name, word in each.layout.words.items():
        yield each, where, name, word.shared
    for name, (kind, _) in each.layout.places.items():
        if hasattr(kind, "words"):
            yield from words_of(getattr(each, name), where)


def test_every_word_has_its_owners(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(1_700_000_000_000)
    with timerstore.open(tmp_path, config=SMALL, clock=clock) as store:
        found = [
            each
            for name in store.core.engine.world.layout.places  # type: ignore[attr-defined]
            if hasattr(getattr(store.core.engine.world, name), "layout")
            for each in words_of(getattr(store.core.engine.world, name), name)
        ]
        assert {where for _, where, _, shared in found if not shared} == set(OWNERS)
        for each, where, name, shared in found:
            before = getattr(each, name)
            for who in EVERYONE:
                with acting_as(who):
                    if INTERPRETED and not shared and who not in OWNERS[where]:
                        with pytest.raises(NotTheOwnerError, match=name):
                            setattr(each, name, before)
                    else:
                        setattr(each, name, before)
            with acting_as(ALONE):
                setattr(each, name, before)


def test_records_share_no_cache_line(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(1_700_000_000_000)
    with timerstore.open(tmp_path, config=SMALL, clock=clock) as store:
        world = store.core.engine.world
        records = {
            id(each): each
            for name in world.layout.places  # type: ignore[attr-defined]
            if hasattr(getattr(world, name), "layout")
            for each, *_ in words_of(getattr(world, name), name)
        }
        lines = [
            int(each.block[0]) // 64 + i
            for each in records.values()
            for i in range(each.cells.nbytes // 64)
        ]
        assert all(int(each.block[0]) % 64 == 0 for each in records.values())
        assert len(lines) == len(set(lines))
        assert len(records) == 36


def test_what_threads_wait_on_has_lines_of_its_own() -> None:
    thread: Any = new_thread(DEQUEUE_PUT, 7)
    lines = {name: word.place // 8 for name, word in thread.layout.words.items()}
    assert lines["sleeping_until_ms"] == lines["blocked"]
    apart = ["need", "sleeping_until_ms", "token", "step", "eventfd"]
    assert len({lines[name] for name in apart}) == len(apart)
    assert lines["need"] == lines["need_offset"] == lines["step_count"]
