"""A manual clock moves no real timers by mistake."""

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
import timerstore.aio
from tests.small_store import SMALL
from timerstore import InvalidArgumentError, ManualClock, TimerStore
from timerstore.core.directory import CLOCK_FILE

HOUR = timedelta(hours=1)


def put(path: Path, clock: ManualClock | None = None, *, count: int = 1) -> None:
    with timerstore.open(path, config=SMALL, clock=clock) as store:
        for _ in range(count):
            store.put(b"later", delay=HOUR)


def content(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def test_real_timers_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    put(path, count=2)
    before = content(path)
    with pytest.raises(InvalidArgumentError, match=r"holds 2 real timers, .* force=True"):
        timerstore.open(path, clock=ManualClock())

    with pytest.raises(InvalidArgumentError, match="real timers"):
        TimerStore(path, clock=ManualClock())

    async def awaited() -> None:
        async with timerstore.aio.open(path, clock=ManualClock()):
            raise AssertionError("it was opened")

    with pytest.raises(InvalidArgumentError, match="real timers"):
        asyncio.run(awaited())
    assert content(path) == before
    with timerstore.open(path, read_only=True, clock=ManualClock()) as store:
        assert store.count() == 2  # looking moves nothing
    with timerstore.open(path) as store:
        assert store.count() == 2


def test_also_in_a_store_that_was_killed_and_in_a_copy(tmp_path: Path) -> None:
    store = TimerStore(tmp_path / "s", config=SMALL)
    store.put(b"later", delay=HOUR)
    store.put(b"a level's", delay_level=18)
    store.abandon()
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    for path in (tmp_path / "s", tmp_path / "copy"):
        with pytest.raises(InvalidArgumentError, match="2 real timers"):
            timerstore.open(path, clock=ManualClock())


def test_forced_they_fire_and_the_store_stays_a_real_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    put(path, count=2)
    with timerstore.open(path, read_only=True) as store:
        start_ms = store.core.clock.now_ms
    clock = ManualClock(start_ms, force=True)
    with timerstore.open(path, clock=clock) as store:
        store.put(b"later still", delay=3 * HOUR)
        clock.advance(2 * HOUR)
        assert len(store.pull("default", timeout=0)) == 2
    with pytest.raises(InvalidArgumentError, match="1 real timer,"):
        timerstore.open(path, clock=ManualClock())


def test_a_manual_clocks_store_is_opened_with_others(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock()
    put(path, clock)
    with timerstore.open(path, clock=ManualClock(clock.now_ms)) as store:
        assert store.count() == 1 and (path / CLOCK_FILE).exists()
    store = TimerStore(path, clock=ManualClock(clock.now_ms))
    store.abandon()
    with timerstore.open(path, clock=ManualClock(clock.now_ms)) as store:
        assert store.count() == 1


def test_the_system_clock_makes_its_timers_real_ones(tmp_path: Path) -> None:
    """They fire at the times that they have; what has passed, at once."""
    path, clock = tmp_path / "s", ManualClock(1_000_000_000_000)
    with timerstore.open(path, config=SMALL, clock=clock) as store:
        store.put(b"long ago", delay=HOUR)
        store.put(b"far ahead", at_ms=4_000_000_000_000)
    with timerstore.open(path) as store:
        (fired,) = store.pull("default", timeout=20)
        assert (fired.body, store.count()) == (b"long ago", 1)
        fired.ack()
        assert not (path / CLOCK_FILE).exists()
    with pytest.raises(InvalidArgumentError, match="1 real timer,"):
        timerstore.open(path, clock=clock)


def test_a_store_with_nothing_pending_takes_either(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with timerstore.open(path, config=SMALL) as store:
        store.cancel(store.put(b"cancelled", delay=HOUR))
        clock = ManualClock(store.core.clock.now_ms)
    put(path, clock)
    put(path, clock)
    with timerstore.open(path, clock=clock) as store:
        assert store.count() == 2


@pytest.mark.parametrize("bytes_left", [b"", b"The timers of this store are a Manual"])
def test_a_torn_mark_is_none(tmp_path: Path, bytes_left: bytes) -> None:
    path, clock = tmp_path / "s", ManualClock()
    put(path, clock)
    (path / CLOCK_FILE).write_bytes(bytes_left)
    with pytest.raises(InvalidArgumentError, match="1 real timer,"):
        timerstore.open(path, clock=clock)


@pytest.mark.usefixtures("any_wheel")
def test_a_store_that_was_handed_over_has_real_timers(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock()
    store = timerstore.open(path, config=SMALL, clock=clock)
    store.put(b"later", delay=HOUR)
    store.handover()
    assert not (path / CLOCK_FILE).exists()


def test_force_is_a_bool() -> None:
    with pytest.raises(InvalidArgumentError, match=r"force is 1\. Pass True or False"):
        ManualClock(force=1)  # type: ignore[arg-type]
