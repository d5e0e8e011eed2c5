"""Health: each state with its beginning, its words in the log."""

from __future__ import annotations

import errno
import json
import logging
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import (
    Consumer,
    Health,
    ManualClock,
    Retry,
    StoreFullError,
    TimerStore,
    TimerStoreError,
)
from timerstore.services.opening.recovery_findings import RecoveryFindings
from timerstore.testing.damage import flip_bit
from timerstore.testing.disk import FailingDisk


def wait_for(store: TimerStore, state: str) -> Health:
    wait_until(lambda: store.health().state == state)
    return store.health()


def test_a_sound_store_runs(tmp_path: Path) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        found = store.health()
        assert (found.state, found.ok, found.conditions) == ("running", True, ())
        assert found.opened_ms == clock.now_ms
        json.dumps(found.to_dict())


def test_pauses_are_listed_with_what_ends_them(tmp_path: Path) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        store.pause("firing")
        clock.advance(timedelta(seconds=60))
        store.pull("mails", group="mailer", timeout=0)
        store.pause("consuming", group="mailer", duration=timedelta(seconds=9))
        found = store.health()
        assert found.state == "paused" and found.ok
        firing, consuming = found.conditions
        assert clock.now_ms - firing.since_ms == 60_000
        assert "resume PATH firing" in firing.cure
        assert "'mailer' is paused until 2027-01-15T08:01:09+00:00" in consuming.what
        assert "--group mailer" in consuming.cure
        clock.advance(timedelta(seconds=9))
        assert len(store.health().conditions) == 1


def test_what_waits_for_somebody_is_a_warning(tmp_path: Path) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        store.put_many([b"a", b"b", b"c"], topic="mails")
        store.put(b"typo", topic="mials")
        consumer = Consumer(store, "mailer", max_attempts=0)
        consumer.subscribe("mails", lambda d: Retry(delay_level=-1))
        assert consumer.step() == 3
        clock.advance(timedelta(seconds=60))
        found = store.health()
        assert (found.state, found.ok, found.conditions) == ("running", True, ())
        letters, unread = sorted(found.warnings, key=lambda each: each.kind)
        assert (letters.kind, letters.group, letters.count) == ("dead letters", "mailer", 3)
        assert "'mailer' gave up 3 messages" in letters.what and "dead PATH mailer" in letters.cure
        assert (unread.kind, unread.topic, unread.group, unread.count) == (
            *("nobody reads", "mials"),
            *(None, 1),
        )
        assert clock.now_ms - unread.since_ms == clock.now_ms - letters.since_ms == 60_000
        json.dumps(found.to_dict())
        store.drop_dead_letters("mailer")
        store.pull("mials", timeout=0).ack()
        assert store.health().warnings == ()


def test_no_space_is_told_and_goes_away(tmp_path: Path) -> None:
    disk = FailingDisk()
    with TimerStore(tmp_path / "s", config=SMALL, disk=disk) as store:
        before_ms = store.core.clock.now_ms
        disk.refuse(errno.ENOSPC, "write", where="timercheck")
        store.put(b"x", delay=timedelta(hours=1))
        found = wait_for(store, "waiting for space")
        assert not found.ok and found.conditions[0].since_ms >= before_ms
        assert "room" in found.conditions[0].cure
        disk.heal()
        wait_for(store, "running")


def test_room_that_comes_while_one_looks_is_no_error(tmp_path: Path) -> None:
    """Whoever waited takes back the error first, then since when: a look may fall between."""
    with timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock()) as store:
        store.core.runner.waiting_for_space = StoreFullError("no room")
        (found,) = store.health().conditions
        assert (found.state, found.since_ms) == ("waiting for space", None)
        store.core.runner.waiting_for_space = None


def test_a_failed_flush_is_told_though_every_call_raises(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = TimerStore(tmp_path / "s", config=SMALL, disk=disk)
    disk.refuse(errno.EIO, "sync")
    store.put(b"x", delay=timedelta(days=1))
    found = wait_for(store, "flush failed")
    assert not found.ok and "disk" in found.conditions[0].cure
    assert found.conditions[0].since_ms is not None
    for call in (store.count, store.close):
        with pytest.raises(TimerStoreError):
            call()


def test_damage_is_named_with_its_place(tmp_path: Path) -> None:
    clock = ManualClock()
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        ids = [store.put(b"x" * 100, delay=timedelta(days=1)) for _ in range(3)]
        offset = int(ids[1][12:24], 16)
    log = next((tmp_path / "s" / "commitlog").iterdir())
    flip_bit(log, offset + 95)
    (tmp_path / "s" / "config" / "timercheck").unlink()  # so that all of it is read
    with timerstore.open(tmp_path / "s", config=SMALL, clock=clock) as store:
        found = store.health()
        assert found.state == "damaged" and not found.ok
        assert f"commitlog at {offset}" in found.conditions[0].what
        assert "verify" in found.conditions[0].cure


def test_recovery_is_told_in_one_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    store = timerstore.open(tmp_path / "s", config=SMALL, clock=clock)
    store.put(b"a", delay=timedelta(days=1))
    store.flush()
    store.put(b"b", delay=timedelta(days=1))
    store.abandon()
    with caplog.at_level(logging.INFO, "timerstore"):
        timerstore.open(tmp_path / "s", read_only=True).close()
        assert caplog.records == []
        timerstore.open(tmp_path / "s", config=SMALL, clock=clock).close()
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert (
        "recovered after a crash: " in record.getMessage() and "nothing lost" in record.getMessage()
    )
    assert "2 timers pending" in record.getMessage()
    assert record.store == str(tmp_path / "s") and record.recovery["pending_count"] == 2


def test_a_sentence_names_what_was_cut() -> None:
    found = RecoveryFindings(clean=False, scanned_count=1, torn_bytes=1_234, rebuilt=["timers"])
    found.repaired_reschedule, found.removed_count = True, 2
    text = found.sentence(1)
    for part in (
        "1 message read",
        "1,234 bytes that were not written whole were cut",
        "timers made anew",
        "2 timers",
        "1 damaged",
    ):
        assert part in text
