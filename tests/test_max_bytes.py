"""`max_bytes`: what it counts, where it can never work, how a store stays small."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.test_small_stores import taken_bytes
from timerstore import (
    Config,
    InvalidArgumentError,
    ManualClock,
    StoreFullError,
    TimerStore,
    Tuning,
)
from timerstore.testing.disk import QuietDisk

pytestmark = pytest.mark.on_disk

START_MS = 1_800_000_000_000
MIB = 1 << 20


def open_store(path: Path, config: Config) -> TimerStore:
    return TimerStore(path, config=config, clock=ManualClock(START_MS), disk=QuietDisk())


@pytest.mark.parametrize("max_bytes", [1, 60_000, 100 * MIB])
def test_what_can_never_work_is_refused_when_the_store_is_opened(
    tmp_path: Path, max_bytes: int
) -> None:
    least = Config().least_max_bytes
    with pytest.raises(InvalidArgumentError, match=f"at least {least} is needed"):
        timerstore.open(tmp_path / "s", config=Config(max_bytes=max_bytes))
    assert not (tmp_path / "s" / "commitlog").exists()
    with open_store(tmp_path / "s", Config(max_bytes=least)) as store:
        store.put(b"body", delay=timedelta(hours=1))
    with open_store(tmp_path / "s", Config()) as store:  # the sizes are those it was made with
        assert store.count() == 1
    with pytest.raises(InvalidArgumentError, match=r"at least \d+ is needed"):
        open_store(tmp_path / "s", Config.small(20 * MIB))


def test_blocks_are_counted_and_not_lengths(tmp_path: Path) -> None:
    """As `du` does, but for the small files, of which the spare one has a mebibyte."""
    with open_store(tmp_path / "s", Config()) as store:
        assert store.stats().disk_bytes < 2 * MIB
        store.put_many([bytes(1_000)] * 5_000, topic="t", delay_ms=3_600_000)
        store.flush()
        store.core.engine.disk.change_count += 1
        other = taken_bytes(tmp_path / "s") - store.stats().disk_bytes
        assert MIB <= other <= 2 * MIB
    with open_store(tmp_path / "s", Config()) as store:
        assert 5 * MIB < store.stats().disk_bytes < 9 * MIB
        taken = store.stats().disk_bytes
    with timerstore.open(tmp_path / "s", read_only=True) as looked_at:
        assert abs(looked_at.stats().disk_bytes - taken) < MIB


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [10 * MIB, 16 * MIB, 300 * MIB])
def test_a_small_store_goes_on_within_its_limit(tmp_path: Path, max_bytes: int) -> None:
    """Whatever is put is consumed; a refused put is one that has to wait for that."""
    config = Config.small(max_bytes, durability="process", retention_ms=0)
    body, refused, count = bytes(100_000), 0, 0
    with open_store(tmp_path / "s", config) as store:
        clock = store.core.clock
        while count * len(body) < 2 * max_bytes:
            try:
                count += len(store.put_many([body] * 4, topic="t", delay_ms=500))
                refused = 0
            except StoreFullError as e:
                count += len(e.ids)
                refused += 1
                assert refused < 5, "it never goes on"
            clock.advance(timedelta(seconds=2))  # type: ignore[attr-defined]
            while len(batch := store.pull("t", timeout=0)):
                batch.ack()
            store.flush()
            assert taken_bytes(tmp_path / "s") < max_bytes + 2 * MIB


def test_small_settings_can_be_changed() -> None:
    config = Config.small(64 * MIB, durability="process", commitlog_segment_bytes=4 * MIB)
    assert (config.commitlog_segment_bytes, config.durability) == (4 * MIB, "process")
    with pytest.raises(InvalidArgumentError, match=r"at least \d+ is needed"):
        Config.small(64 * MIB, commitlog_segment_bytes=64 * MIB)
    with pytest.raises(InvalidArgumentError, match=f"Use {10 * MIB} to"):
        Config.small(7_549_747)
    with pytest.raises(InvalidArgumentError, match="max_bytes"):
        Config.small(0)
    with pytest.raises(InvalidArgumentError, match="no setting"):
        Config.small(64 * MIB, sise=1)


def test_a_setting_of_tuning_is_none_of_config() -> None:
    config: Any = Config
    with pytest.raises(TypeError, match=r"Config\(tuning=Tuning\(cleaning=…\)\)"):
        config(cleaning=False)
    with pytest.raises(TypeError, match="Did you mean 'max_bytes'"):
        config(max_byte=1)
    tuned = Config(tuning=Tuning(cleaning=False))
    assert not replace(tuned, max_bytes=None).cleaning
    assert replace(tuned, tuning=Tuning()).cleaning
