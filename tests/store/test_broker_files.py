"""What a handover leaves for a broker, which must open the store in time."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.services.test_cleaning import SECOND, START_MS, open_small
from timerstore import Config, ManualClock, TimerStore, TimerStoreError, Tuning
from timerstore.store.handover import CONFIG_FILE

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SKIPPED_SLOTS = 604_800 - 60


def open_large(path: Path, clock: ManualClock, precision_ms: int = 1_000) -> TimerStore:
    config = Config(
        durability="process",
        tuning=Tuning(commitlog_segment_bytes=1 << 18, precision_ms=precision_ms),
    )
    return TimerStore(path, config=config, clock=clock)


def settings(path: Path) -> dict[str, str]:
    """Read a Java properties file."""
    lines = (path / CONFIG_FILE).read_text("latin-1").splitlines()
    pairs = (line.split(" = ", 1) for line in lines if not line.startswith("#"))
    return {name: value.encode().decode("unicode_escape") for name, value in pairs}


def test_a_wheel_that_a_broker_refuses_is_not_handed_over(tmp_path: Path) -> None:
    with open_small(tmp_path / "s", ManualClock(START_MS, force=True)) as store:
        with pytest.raises(TimerStoreError, match="604800"):
            store.handover()
        store.put(b"it goes on", delay=SECOND)
        assert store.count() == 1


def test_a_broker_is_told_the_sizes_and_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "таймеры \\ 1"
    with open_large(path, ManualClock(START_MS, force=True)) as store:
        store.put(b"x", delay=100 * HOUR)
        config = store.core.engine.config
        store.handover()
    found = settings(path)
    assert found["storePathRootDir"] == str(path)
    assert found["storePathCommitLog"] == str(path / "commitlog")
    assert int(found["mappedFileSizeCommitLog"]) == config.commitlog_segment_bytes
    assert int(found["mappedFileSizeConsumeQueue"]) == config.consumequeue_segment_bytes
    assert int(found["mappedFileSizeTimerLog"]) == config.timerlog_segment_bytes
    assert int(found["timerPrecisionMs"]) == config.precision_ms
    assert int(found["timerRollWindowSlot"]) == config.roll_window_slots
    assert found["cleanFileForciblyEnable"] == "false"
    assert found["enableMixedMessageType"] == "true", "else mqadmin makes no topic for timers"
    assert found["brokerIP1"] == "127.0.0.1", "else clients are told another address"
    assert found["appendTopicForTimerDeleteKey"] == "true", "else cancelled timers fire in 5.5"
    assert int(found["fileReservedTime"]) >= 72 + 48


@pytest.mark.parametrize("precision_ms", [100, 1_000])
def test_it_says_until_when_a_broker_must_open_it(tmp_path: Path, precision_ms: int) -> None:
    """A broker skips slots, not days; the first one that is used may be a roll's."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    store = open_large(path, clock, precision_ms)
    store.put(b"far", at_ms=START_MS + 3_000_000_000)
    window_ms = store.core.engine.config.roll_window_slots * precision_ms
    until_ms = store.handover()
    assert until_ms is not None
    assert window_ms // 3 <= until_ms - START_MS - SKIPPED_SLOTS * precision_ms <= window_ms
    assert "Start the broker before" in (path / CONFIG_FILE).read_text()
    with open_large(path, clock, precision_ms) as store:
        near_ms = START_MS + 50_000
        store.put(b"near", at_ms=near_ms)
        assert store.handover() == near_ms + SKIPPED_SLOTS * precision_ms


def test_nothing_that_waits_can_be_skipped(tmp_path: Path) -> None:
    with open_large(tmp_path / "s", ManualClock(START_MS, force=True)) as store:
        until_ms = store.handover()
    assert until_ms is None


def test_what_is_overdue_waits_where_no_broker_skips_it(tmp_path: Path) -> None:
    """The store had been closed for longer than a broker looks back."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    with open_large(path, clock) as store:
        store.put_many([b"missed"] * 50, topic="t", delay_ms=list(range(1_000, 51_000, 1_000)))
        store.put(b"far", topic="t", delay=30 * DAY)
    clock = ManualClock(START_MS + 9 * 86_400_000, force=True)
    store = open_large(path, clock)
    until_ms = store.handover()
    assert until_ms is not None and until_ms > clock.now_ms + 5 * 86_400_000
    with open_large(path, clock) as store:
        assert store.count() == 1
        assert len(store.pull("t", timeout=0, max_count=100)) == 50


def test_topics_and_groups_are_known_to_a_broker(tmp_path: Path) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    with open_large(path, clock) as store:
        store.put(b"x", topic="t")
        clock.advance(SECOND)
        (delivery,) = store.pull("t", group="readers", timeout=0)
        delivery.nack(HOUR)
        store.handover()
    topics = json.loads((path / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert topics["t"]["attributes"] == {"message.type": "MIXED"}
    content = json.loads((path / "config" / "subscriptionGroup.json").read_bytes())
    groups = content["subscriptionGroupTable"]
    assert list(groups) == ["readers"] and groups["readers"]["consumeEnable"]
