"""Far timers hop: one unit each time, over crashes too."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes.format import UNIT_BYTES

START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
CONFIG = Config(
    durability="process",
    tuning=Tuning(
        wheel_slot_count=128,
        roll_window_slots=10,
        commitlog_segment_bytes=1 << 16,
        timerlog_segment_bytes=520,
    ),
)
SHORT = replace(CONFIG, precision_ms=100)
"""Its hops are shorter than a precision with a second: each reads its message."""


def opened(path: Path, clock: ManualClock, config: Config = CONFIG) -> TimerStore:
    return TimerStore(path, config=config, clock=clock, disk=QuietDisk())


@pytest.mark.parametrize("due_ms", [90_123, 90_000])
def test_a_hop_appends_a_unit_alone(tmp_path: Path, due_ms: int) -> None:
    clock = ManualClock(START_MS, force=True)
    with opened(tmp_path / "s", clock) as store:
        engine = store.core.engine
        store.put(b"far", topic="t", at_ms=START_MS + due_ms)
        store.core.play_now()
        log_end = engine.commitlog.end
        clock.advance(89 * SECOND)
        hops = engine.world.dequeue_get.hop_count
        assert engine.commitlog.end == log_end
        assert hops == -(-(90 - 9) // 9)
        blanks = engine.timerlog.end // 520 * (520 % UNIT_BYTES + UNIT_BYTES)
        assert engine.timerlog.end == (1 + hops) * UNIT_BYTES + blanks
        clock.advance(timedelta(milliseconds=due_ms - 89_000 - 1))
        assert not store.pull("t", timeout=0)
        clock.advance(timedelta(milliseconds=1))
        assert [each.body for each in store.pull("t", timeout=0)] == [b"far"]


@pytest.mark.whole
@pytest.mark.tier("prove", only=("False-told", "True-read"))
@pytest.mark.parametrize("config", [CONFIG, SHORT], ids=["told", "read"])
@pytest.mark.parametrize("flush", [False, True])
def test_killed_at_each_slot(tmp_path: Path, config: Config, flush: bool) -> None:
    """Each timer fires once, what was cancelled does not, and the count is exact."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    slot = timedelta(milliseconds=config.precision_ms)
    store = opened(path, clock, config)
    dues = [START_MS + config.precision_ms * slots + 7 for slots in (15, 27, 28, 40, 63)]
    ids = [store.put(b"%d" % due, topic="t", at_ms=due) for due in dues]
    fired: list[bytes] = []
    for turn in range(70):
        clock.advance(slot)
        if turn == 12:
            assert store.cancel(ids[2]) and store.cancel(ids[3])
        batch = store.pull("t", timeout=0)
        fired += [each.body for each in batch]
        batch.ack()
        if flush or batch:
            store.flush()
        gone = {2, 3} if turn >= 12 else set()
        waits = {i for i, due in enumerate(dues) if due > clock.now_ms} - gone
        assert store.count() == len(waits)
        assert {timer.id for timer in store.pending()} == {ids[i] for i in waits}
        store.abandon()
        store = opened(path, clock, config)
        assert store.count() == len(waits)
    assert fired == [b"%d" % dues[i] for i in (0, 1, 4)]
    store.close()
