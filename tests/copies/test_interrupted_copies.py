"""A signal's exception anywhere in a copy's work: what was there is whole, a repeat works."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
from tests.copies.kept import TINY
from tests.copies.test_standby import Pair, count
from tests.interrupting import Interrupt, interrupted

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]
FILES = (
    *(f"copies/{each}.py" for each in ("backup", "catalog", "chains", "destination", "fetching")),
    *(f"copies/{each}.py" for each in ("follower", "promote", "restore", "standby")),
)


def ship(pair: Pair) -> None:
    pair.kept.follower._cared_s -= 61
    pair.kept.follower.step()


def fetch(pair: Pair) -> None:
    pair.fetch()


def become_store(pair: Pair) -> None:
    pair.promote()


def restore(pair: Pair) -> None:
    pair.kept.restore()


@pytest.mark.parametrize("act", [ship, fetch, become_store, restore])
def test_wherever_it_is_interrupted(tmp_path: Path, act: Callable[[Pair], None]) -> None:
    at = done = 0
    while True:
        folder = tmp_path / str(at)
        pair = Pair(folder, f"file://{folder}/objects")
        pair.ship(8)
        pair.fetch()
        pair.ship(8)
        pair.kept.put(8)
        total = 16 if act is not ship else 24
        with interrupted(at, *FILES) as places:
            try:
                act(pair)
            except Interrupt:
                done += 1
        if not places.raised:
            pair.close()
            break
        gc.collect()  # a process that ends lets go of its locks
        assert timerstore.verify(pair.place).ok
        if act is restore and pair.kept.restored.exists():
            assert count(pair.kept.restored) == total  # it was whole already
        elif act is not become_store or (pair.local / "standby.json").exists():
            act(pair)
        assert not list(folder.glob(".*"))
        if act is not restore:
            pair.kept.restore()
        held = pair.local if act in (fetch, become_store) else pair.kept.restored
        assert count(pair.kept.restored) == count(held) == total
        assert timerstore.verify(held, config=TINY).ok
        pair.close()
        at += 1 + at // 10
    assert done > 15
