"""Damage that a store meets while it is open: what is sound goes on firing."""

import logging
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.models.ledger import read_ledger
from tests.small_store import small
from timerstore import ManualClock, TimerStore
from timerstore.services.engine.rebuild import MARK_FILE, PLACES_MAX, Damage
from timerstore.testing.damage import flip_bit
from timerstore.testing.disk import QuietDisk
from timerstore.testing.ledger import check_damaged
from timerstore.timelog.files.segments import SegmentedFile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60, method="signal")]

START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
CONFIG = small(8_192, 200, 520, roll_window_slots=6, retention_ms=3_600_000)
TIMER_QUEUE = "consumequeue/rmq_sys_wheel_timer/0"


def flip(path: Path, folder: str, offset: int) -> None:
    """Flip a bit of a log as it lies there."""
    files = sorted((path / folder).iterdir())
    size, start = files[0].stat().st_size, int(files[0].name)
    number, position = divmod(offset - start, size)
    flip_bit(files[number], position, 2)


def filled(path: Path) -> tuple[TimerStore, ManualClock, list[str]]:
    """A store with chains of several units, rolls, deletes; nothing is due yet."""
    clock = ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    delays = [2_000 + (i * 379) % 20_000 for i in range(80)]
    ids = list(store.put_many([b"body %d" % i for i in range(80)], topic="t", delay_ms=delays))
    store.cancel_many(ids[5::16])
    clock.advance(SECOND)  # all are linked
    return store, clock, ids


@pytest.mark.tier("prove", only=("numbers[023]-[!1]*", "numbers[0234]-12", "numbers4-[34]*"))
@pytest.mark.parametrize("field", [4, 12, 16, 28, 36, 44])
@pytest.mark.parametrize("numbers", [(0,), (7,), (40,), (84,), range(20, 29)])
def test_a_damaged_unit_waits_for_the_next_opening(
    field: int, numbers: Iterable[int], tmp_path: Path
) -> None:
    """All others fire at once."""
    path = tmp_path / "s"
    store, clock, _ = filled(path)
    before = read_ledger(path)
    offsets = {number // 9 * 520 + number % 9 * 52 for number in numbers}
    for offset in offsets:
        flip(path, "timerlog", offset + field)
    clock.advance(60 * SECOND)
    named = {(each["file"], each["offset"]) for each in store.stats().damage}
    # A slot's last unit, which nothing points to, may have been passed as another slot's.
    assert named in ({("timerlog", offset) for offset in offsets}, set())
    assert (path / MARK_FILE).exists() == bool(named)
    assert store.health().ok == (not named)
    fired = sum(len(root.fired_ms) for root in read_ledger(path).roots.values())
    assert store.count() <= len(offsets)
    assert fired + store.count() == sum(root.pending for root in before.roots.values())
    store.close()
    again = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    assert again.core.findings.rebuilt == (["timer index"] if named else [])
    clock.advance(60 * SECOND)
    ledger = read_ledger(path)
    ledger.check()
    assert not any(ledger.pending_count().values()) and again.count() == 0
    again.close()


@pytest.mark.parametrize("what", ["last", "first"])
def test_a_damaged_slot_hides_nothing(what: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    store, clock, _ = filled(path)
    slots = store.core.engine.wheel.slots
    used = np.flatnonzero(slots["time"] > START_MS // 1000 + 2)
    slots[what][used[1]] ^= 1 << 44 if what == "last" else 1 << 3
    clock.advance(60 * SECOND)
    ledger = read_ledger(path)
    ledger.check()
    assert not any(ledger.pending_count().values()) and store.count() == 0
    store.close()


@pytest.mark.parametrize("at", [2, 5, 30, 130, 200])
@pytest.mark.parametrize("when", ["linked", "before it is linked"])
def test_a_damaged_message_is_named_and_passed_by(
    at: int, when: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    ids = list(store.put_many([b"body %d" % i for i in range(9)], topic="t", delay_ms=5_000))
    offset = int(ids[4][12:24], 16)
    before = read_ledger(path)
    if when == "linked":
        clock.advance(SECOND)
    store.core.engine.queues.table.told[:] = -1  # else it would be read only when it fires
    flip(path, "commitlog", offset + at)
    with caplog.at_level(logging.ERROR, "timerstore"):
        clock.advance(20 * SECOND)
    check_damaged(store, before)
    assert f"commitlog is damaged at offset {offset}" in caplog.text
    stats = store.stats()
    assert stats.unreadable_count == 1 and stats.fired_count == 8
    assert store.count() == 0
    if at not in (2, 5) and (at, when) != (200, "before it is linked"):  # its topic is not known
        assert store.count("t") == 0
    assert len(store.pull("t", timeout=0)) == 8
    store.close()
    with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as again:
        clock.advance(20 * SECOND)
        assert again.count() == again.count("t") == 0
        check_damaged(again, before, everything_due=False)


@pytest.mark.parametrize("at", [0, 6, 9, 11])
def test_a_timer_whose_entry_is_damaged_fires_in_time(at: int, tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    store.put_many([b"body %d" % i for i in range(30)], topic="t", delay_ms=5_000)
    # The put is long ago: enqueue-get reads it in the log.
    store.core.engine.queues.table.told[:] = -1
    flip(path, TIMER_QUEUE, 12 * 20 + at)
    clock.advance(20 * SECOND)
    assert len(store.pull("t", timeout=0)) == 30 and store.count() == store.count("t") == 0
    assert [(each["file"], each["offset"]) for each in store.stats().damage] == [(TIMER_QUEUE, 240)]
    store.close()
    again = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    assert again.core.findings.rebuilt == ["consume queues"]
    clock.advance(20 * SECOND)
    ledger = read_ledger(path)
    ledger.check()
    assert not any(ledger.pending_count().values()) and again.count() == 0
    again.close()


def test_a_damaged_entry_keeps_what_the_next_opening_needs_and_no_more(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    for i in range(200):
        store.put(b"%3d" % i * 300, topic="t")
    far = store.put(b"far", topic="u", delay=10 * 86_400 * SECOND)
    flip(path, "consumequeue/t/0", 100 * 20 + 9)
    bodies = list[bytes]()
    while batch := store.pull("t", group="g", timeout=0):
        bodies += [each.body[:3] for each in batch]
        batch.ack()
    assert bodies == [b"%3d" % i for i in range(200) if i != 100]
    log, (damage,) = store.core.engine.commitlog, store.stats().damage
    assert (damage["file"], damage["offset"]) == ("consumequeue/t/0", 2_000)
    before = int(store.core.engine.queues.read(1, 99, 1)["offset"][0])
    for _ in range(3):
        clock.advance(7_200 * SECOND)
        store.clean()
    assert log.start == before // log.segment_bytes * log.segment_bytes > 0
    store.close()
    with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as again:
        assert again.core.findings.rebuilt == ["consume queues"]
        (delivery,) = again.pull("t", group="g", max_count=300, timeout=0)
        assert delivery.body[:3] == b"100" and again.get(far) is not None
        delivery.ack()
        clock.advance(7_200 * SECOND)
        again.clean()
        assert again.core.engine.commitlog.start > before


@pytest.mark.parametrize("at", [5, 30, 200])
def test_a_damaged_message_of_a_level_is_passed_by(at: int, tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    ids = [store.put(b"body %d" % i, topic="t", delay_level=2) for i in range(5)]
    offset = int(ids[2][12:24], 16) & ~(1 << 47)
    flip(path, "commitlog", offset + at)
    clock.advance(20 * SECOND)
    assert len(store.pull("t", timeout=0)) == 4
    assert store.count() == 0
    assert [each["offset"] for each in store.stats().damage] == [offset]
    store.close()


@pytest.mark.parametrize("number", [0, 2, 4])
@pytest.mark.parametrize("at", [0, 3, 6, 7, 9, 11, 12, 13, 14, 15, 16, 17, 19])
def test_a_damaged_entry_of_a_level_hides_no_message(number: int, at: int, tmp_path: Path) -> None:
    """It is looked for in the commit log, and comes in its order."""
    path, clock = tmp_path / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    for i in range(5):
        store.put(b"%d" % i * 200, topic="t", delay_level=2)
        store.put(b"other", topic="u", delay_level=3)
    flip(path, "consumequeue/SCHEDULE_TOPIC_XXXX/1", number * 20 + at)
    clock.advance(40 * SECOND)
    batch = store.pull("t", timeout=0)
    assert [each.body[:1] for each in batch] == [b"%d" % i for i in range(5)]
    batch.ack()
    assert store.count() == 0 and len(store.pull("u", timeout=0)) == 5
    assert [each["offset"] for each in store.stats().damage] == [number * 20]
    store.close()
    with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as again:
        assert again.core.findings.rebuilt == ["consume queues"]
        clock.advance(40 * SECOND)
        assert len(again.pull("t", timeout=0)) == again.count() == 0


def test_places_are_named_once_and_not_without_end() -> None:
    damage = Damage(Path("s"), cast(SegmentedFile, SimpleNamespace(start=0)))
    assert damage.note("commitlog", 7, "why") and not damage.note("commitlog", 7, "why")
    for offset in range(PLACES_MAX + 10):
        damage.note("timerlog", offset, "why")
    assert damage.count == PLACES_MAX + 11
    assert len(damage.to_list()) == PLACES_MAX
