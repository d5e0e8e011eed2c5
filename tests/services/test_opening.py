"""Opening an engine: without what is damaged; whatever fails leaves nothing open."""

import gc
import os
from datetime import timedelta
from pathlib import Path

import pytest

from tests.services.alone import CONFIG, START_MS, START_SLOT
from timerstore import Config, ManualClock, TimerStore
from timerstore.errors import CorruptStoreError
from timerstore.services.opening.recovery import open_engine
from timerstore.testing.damage import flip_bit
from timerstore.testing.disk import PowerCutError, PowerDisk, QuietDisk


def make(path: Path, config: Config = CONFIG) -> None:
    """A store that was closed with ten timers in it."""
    clock = ManualClock(START_MS)
    with TimerStore(path, config=config, clock=clock, disk=QuietDisk()) as store:
        store.put_many([b"x"] * 10, topic="t", delay_ms=900)
        clock.advance(timedelta(milliseconds=1))  # each has its unit


def descriptors() -> list[str]:
    """What this process has open; a map keeps its file's until nobody refers to it."""
    gc.collect()
    names = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(name) for name in names if name.is_symlink())


@pytest.mark.slow
def test_a_damaged_wheel_has_its_slots_made_anew_and_is_named(tmp_path: Path) -> None:
    make(tmp_path / "s")
    flip_bit(tmp_path / "s" / "timerwheel", (START_SLOT + 9) % 256 * 32 + 20)
    engine, findings = open_engine(tmp_path / "s", CONFIG, ManualClock(START_MS), QuietDisk())
    assert engine.rebuild == frozenset() and findings.pending_count == 10
    assert [place.file for place in engine.damage.places] == ["timerwheel"]
    assert engine.pending_count() == 10 and os.listdir(tmp_path / "s" / "timerlog")
    engine.close_files()


@pytest.mark.slow
def test_a_store_whose_making_was_killed(tmp_path: Path) -> None:
    """At each event of the disk, one after the other; the next opening makes it."""
    for event in range(1, 100):
        path, clock = tmp_path / str(event), ManualClock(START_MS)
        path.mkdir()
        disk = PowerDisk(path, {})
        disk.stop_after = event
        try:
            TimerStore(path, config=CONFIG, clock=clock, disk=disk).abandon()
        except PowerCutError:
            with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as store:
                id = store.put(b"x", topic="t", delay=timedelta(milliseconds=50))
                store.core.play_now()
                store.flush()  # the wheel has a page to write
                clock.advance(timedelta(milliseconds=60))
                assert store.pull("t", timeout=0).ids.to_pylist() == [id]
        else:
            break
    assert 10 < event < 99


@pytest.mark.slow
def test_what_fails_leaves_no_file_open(tmp_path: Path) -> None:
    make(tmp_path / "s")
    (segment,) = (tmp_path / "s" / "commitlog").glob("0" * 20)
    os.truncate(segment, 700)  # the commit log is the truth: it cannot be made anew
    before = descriptors()
    for _ in range(3):
        with pytest.raises(CorruptStoreError, match="commitlog"):
            open_engine(tmp_path / "s", CONFIG, ManualClock(START_MS), QuietDisk())
    assert descriptors() == before
