"""With which sizes a store is opened that has lost what it was made with."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.services.test_recovery import CONFIG, START_MS, content_of
from timerstore import Config, ManualClock, NotAStoreError, TimerStore, Tuning
from timerstore.errors import InvalidArgumentError
from timerstore.testing.disk import QuietDisk
from timerstore.testing.ledger import TIMER_TOPIC
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import SIZES

pytestmark = pytest.mark.slow


def sizes_of(config: Config) -> dict[str, int]:
    return {name: getattr(config, name) for name in SIZES}


def make(path: Path) -> int:
    """A store with a cancelled timer and one that waits; return its tag."""
    store = TimerStore(
        path, config=CONFIG, clock=ManualClock(START_MS, force=True), disk=QuietDisk()
    )
    ids = store.put_many([b"x" * 100] * 200, topic="a", at_ms=START_MS + 5_000)
    store.cancel(ids[3])
    tag = store.core.engine.store_tag
    store.close()
    return tag


def forget(path: Path, *, copies: bool, checkpoint: bool) -> None:
    (path / "timerstore.json").unlink()
    file = path / "config" / "timercheck"
    if checkpoint:
        file.unlink()
    elif copies:
        content = bytearray(file.read_bytes())
        for at in (fmt.IDENTITY_AT, fmt.CHECKPOINT_COPY_AT + fmt.IDENTITY_AT):
            content[at : at + fmt.IDENTITY.itemsize] = bytes(fmt.IDENTITY.itemsize)
        file.write_bytes(content)


def test_the_copy_does(tmp_path: Path) -> None:
    path = tmp_path / "store"
    tag = make(path)
    before = (path / "timerstore.json").read_text()
    forget(path, copies=False, checkpoint=False)
    clock = ManualClock(START_MS, force=True)
    store = TimerStore(path, clock=clock, disk=QuietDisk())
    assert sizes_of(store.core.engine.config) == sizes_of(CONFIG)
    assert store.core.engine.store_tag == tag and store.core.findings.restored_sizes
    assert (path / "timerstore.json").read_text() == before
    assert store.count() == 199
    clock.advance(timedelta(seconds=6))
    assert len(store.pull("a", max_count=300, timeout=0)) == 199
    store.close()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_without_a_copy_nothing_is_guessed(tmp_path: Path, checkpoint: bool) -> None:
    path = tmp_path / "store"
    tag = make(path)
    described = json.loads((path / "timerstore.json").read_text())
    forget(path, copies=True, checkpoint=checkpoint)
    before = content_of(path)
    config = Config(tuning=Tuning(roll_window_slots=CONFIG.roll_window_slots))
    with pytest.raises(NotAStoreError, match="no broker's store") as caught:
        TimerStore(path, config=config, clock=ManualClock(START_MS, force=True), disk=QuietDisk())
    assert content_of(path) == before
    said = str(caught.value)
    written = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert written == described and written["store_tag"] == tag
    (path / "timerstore.json").write_text(json.dumps(written))
    store = TimerStore(path, clock=ManualClock(START_MS, force=True), disk=QuietDisk())
    assert store.count() == 199
    store.close()


@pytest.mark.slow
def test_a_brokers_store_is_measured(golden: Callable[[str], Path]) -> None:
    path = golden("fired")
    os.truncate(path / "consumequeue" / TIMER_TOPIC / "0" / f"{0:020d}", 0)  # the first of many
    config = Config(tuning=Tuning(precision_ms=1_000, roll_window_slots=20))
    store = TimerStore(
        path, config=config, clock=ManualClock(START_MS, force=True), disk=QuietDisk()
    )
    sizes = sizes_of(store.core.engine.config)
    assert (sizes["precision_ms"], sizes["roll_window_slots"]) == (100, 20)
    assert sizes["commitlog_segment_bytes"] == 1 << 20
    assert sizes["consumequeue_segment_bytes"] == 2_000
    assert sizes["timerlog_segment_bytes"] == 5_248
    assert sizes["wheel_slot_count"] == 604_800
    store.close()


def test_an_empty_commit_log_alone_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(InvalidArgumentError, match="no segment"):
        TimerStore(tmp_path, clock=ManualClock(START_MS, force=True), disk=QuietDisk())


def test_a_broker_that_keeps_its_commit_log_elsewhere_is_no_new_store(
    golden: Callable[[str], Path],
) -> None:
    """Opened as one, it would lose its queues and timers."""
    path = golden("fired")
    (path / "commitlog").rename(path.with_name("elsewhere"))
    (path / "lock").touch()
    before = {each: each.stat().st_mtime_ns for each in path.rglob("*")}
    for read_only in (False, True):
        with pytest.raises(NotAStoreError, match="storePathCommitLog"):
            timerstore.open(path, read_only=read_only)
    assert {each: each.stat().st_mtime_ns for each in path.rglob("*")} == before
    path.with_name("elsewhere").rename(path / "commitlog")
    clock = ManualClock(START_MS, force=True)
    with TimerStore(path, clock=clock, disk=QuietDisk()) as store:
        assert store.core.engine.commitlog.end > 0
