"""A broker's store whose first commit log segments its own clean-up has removed."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import naive
from tests.table_stores import exported
from timerstore import Config, ManualClock, TimerStore, Tuning, verify
from timerstore.services.engine.rebuild import Damage
from timerstore.store.store import ReadOnlyStore
from timerstore.tables import TABLES, read_table
from timerstore.testing.disk import QuietDisk
from timerstore.testing.ledger import TIMER_TOPIC
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.validation import validate

pytestmark = pytest.mark.slow

CONFIGS = {
    "pending": Config(durability="process", tuning=Tuning(precision_ms=1_000)),
    "fired": Config(durability="process", tuning=Tuning(precision_ms=100, roll_window_slots=20)),
    "crashed": Config(durability="process", tuning=Tuning(precision_ms=100, roll_window_slots=20)),
}
INTERNAL = (TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX")
Key = tuple[str, str]


def remove_first(path: Path, *, queues_too: bool) -> int:
    """Remove the commit log's first segment, as a broker's clean-up; return the log's start.

    With `queues_too` also the queues' segments whose messages are all gone.
    """
    first, second, *_ = sorted((path / "commitlog").iterdir())
    first.unlink()
    start, removed_count = int(second.name), 0
    for file in (path / "consumequeue").glob("*/*/*") if queues_too else ():
        last = naive.decode_entry(file.read_bytes()[-naive.ENTRY_BYTES :])
        if 0 < last.message_bytes and last.message_offset < start:
            file.unlink()
            removed_count += 1
    assert removed_count > 0 or not queues_too
    return start


def messages_of(path: Path) -> list[naive.Message]:
    """All messages that are kept."""
    files = {int(file.name): file.read_bytes() for file in (path / "commitlog").iterdir()}
    return naive.scan_commit_log(dict(sorted(files.items())), min(files)).messages


def keys_of(path: Path, *, fired: bool) -> dict[Key, list[int]]:
    """Stored times of fired messages, or of those that wait, by topic and unique key."""
    found: dict[Key, list[int]] = {}
    for message in messages_of(path):
        if (message.topic in INTERNAL) != fired and "TIMER_DEL_UNIQKEY" not in message.properties:
            topic = message.topic if fired else message.properties["REAL_TOPIC"]
            key = topic, message.properties.get("UNIQ_KEY", "")
            found.setdefault(key, []).append(message.stored_ms)
    return found


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.tier("prove", but=("pending-True", "fired-False", "crashed-True"))
@pytest.mark.parametrize("queues_too", [False, True])
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_what_is_gone_is_dropped_and_counted(
    name: str,
    queues_too: bool,
    golden: Callable[[str], Path],
    golden_list: Callable[[str], list[dict[str, Any]]],
) -> None:
    path, account = golden(name), golden_list(name)
    before = keys_of(path, fired=True)
    newest = max(message.stored_ms for message in messages_of(path))
    waiting = keys_of(path, fired=False).keys() - before.keys()
    start = remove_first(path, queues_too=queues_too)
    deleted = {(row["topic"], row["deletes"]) for row in account if row["kind"] == "delete"}
    kept = (keys_of(path, fired=False).keys() & waiting) - deleted
    gone = waiting - keys_of(path, fired=False).keys() - deleted
    timers = [row for row in account if row["kind"] in ("timer", "level")]
    due_ms = {(row["topic"], row["unique_key"]): row["due_ms"] for row in timers}
    assert kept and gone

    with ReadOnlyStore(path, config=CONFIGS[name], clock=ManualClock(newest, force=True)) as looked:
        listed = {(timer.topic, timer.id) for timer in looked.pending()}
        assert looked.count() == len(listed)
    assert kept <= listed
    clock = ManualClock(newest, force=True)
    store = TimerStore(path, config=CONFIGS[name], clock=clock, disk=QuietDisk())
    assert store.core.findings.removed_count >= len(gone)
    assert store.stats().recovery["removed_count"] == store.core.findings.removed_count
    assert store.core.findings.by_broker and not store.core.findings.rebuilt
    ids = {timer.id for timer in store.pending()}
    for topic, key in sorted(gone):
        assert key not in ids, topic
    clock.advance(timedelta(seconds=1))
    store.close() if name == "pending" else store.abandon()
    store = TimerStore(path, config=CONFIGS[name], clock=clock, disk=QuietDisk())
    clock.advance(timedelta(days=11) if name == "pending" else timedelta(hours=3))
    assert store.count() == 0 and list(store.pending()) == []
    assert not store.core.engine.damage.places
    store.close()
    after = keys_of(path, fired=True)
    for who in kept:
        assert len(after[who]) == 1, who
        assert after[who][0] >= due_ms[who]
    assert not gone & after.keys()
    assert int(min((path / "commitlog").iterdir()).name) >= start
    assert verify(path, config=CONFIGS[name]).pending_count == 0


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_whoever_looks_comes_to_an_end(
    name: str, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    path = golden(name)
    remove_first(path, queues_too=True)
    assert verify(path, config=CONFIGS[name]).message_count > 0
    assert str(validate(path))
    for table in TABLES:
        read_table(path, table)
    assert exported(path).num_rows > 0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_handover_of_what_is_left(golden: Callable[[str], Path]) -> None:
    path = golden("pending")
    newest = max(message.stored_ms for message in messages_of(path))
    remove_first(path, queues_too=True)
    clock = ManualClock(newest, force=True)
    store = TimerStore(path, config=CONFIGS["pending"], clock=clock, disk=QuietDisk())
    count = store.count()
    store.handover()
    report = verify(path, config=CONFIGS["pending"])
    assert [str(each) for each in report.problems] == []
    assert report.pending_count == count > 0


def test_what_was_removed_is_no_damage(tmp_path: Path) -> None:
    damage = Damage(tmp_path, cast(SegmentedFile, SimpleNamespace(start=1_000)))
    assert not damage.note("commitlog", 999, "it is gone")
    assert damage.note("commitlog", 1_000, "it is damaged")
    assert damage.note("timerlog", 0, "it is damaged")
    assert damage.note("commitlog", -1, "it is damaged") and damage.count == 3
