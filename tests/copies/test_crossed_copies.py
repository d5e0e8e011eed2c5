"""Several who write to, thin out or read one destination at once; odd places, small stores."""

import os
import random
import signal
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import timerstore
from tests.cli.shell import finish, process
from tests.copies.kept import TINY, Kept, objects
from tests.copies.test_follow import Followed
from tests.rigs.objects import CutDestination
from tests.rigs.waiting import wait_until
from tests.tiers import how_many, some
from timerstore import Config, StoreLockedError
from timerstore.copies import follower as follower_module
from timerstore.copies.catalog import PointRemovedError
from timerstore.copies.destination import find_destination, find_place
from timerstore.copies.promote import promote
from timerstore.copies.standby import Standby
from timerstore.errors import StoreAccessError

SECONDS = how_many("CROSSED_SECONDS", 3, 60)
pytestmark = [pytest.mark.timeout(180 + 5 * SECONDS), pytest.mark.long]
SMALLEST = replace(
    TINY,
    tuning=replace(
        TINY.tuning,
        commitlog_segment_bytes=1_024,
        consumequeue_segment_bytes=20,
        timerlog_segment_bytes=104,
    ),
)


def test_a_backup_to_where_it_is_followed_is_refused(tmp_path: Path) -> None:
    """Its point would stand before those that the follower adds: what they hold was not seen."""
    kept = Followed(tmp_path, f"file://{tmp_path}/objects")
    kept.put(10)
    kept.follower.step()
    for take in (lambda: kept.store.backup(kept.dest), lambda: kept.back_up(keep=1)):
        with pytest.raises(StoreLockedError, match="already follows"):
            take()
    assert kept.store.backup(tmp_path / "elsewhere").ok
    kept.follower.close()
    kept.back_up()
    kept.back_up()
    follower = kept.follow()
    kept.put(5)
    follower.step()
    assert kept.count_restored() == 15
    follower.close()


def test_a_backup_alone_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    kept = Kept(tmp_path, f"file://{tmp_path}/objects")
    kept.put(1)
    before = sorted(os.listdir(kept.path))
    kept.back_up()
    assert sorted(os.listdir(kept.path)) == before


def test_restores_beside_a_follower_that_merges_and_thins(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has all that was shipped when it began; one that is overtaken says so."""
    monkeypatch.setattr(follower_module, "_CARE_S", 0.0)
    monkeypatch.setattr(follower_module, "_FEW", 2)
    monkeypatch.setattr(follower_module, "_MANY", 3)
    rnd, path, done, overtaken = random.Random(2), tmp_path / "store", 0, 0
    with timerstore.open(path, config=TINY) as store:
        with store.follow(place, every=0.01, keep=0.1) as following:
            store.put(b"first", delay=timedelta(hours=1))
            wait_until(lambda: following.status.shipped_end)
            until_s = time.monotonic() + SECONDS
            while time.monotonic() < until_s or not done:
                store.put_many([bytes(rnd.randrange(1, 900))] * 9, delay=timedelta(hours=1))
                shipped_end = following.status.shipped_end
                try:
                    report = timerstore.restore(place, tmp_path / f"new{done}", config=TINY)
                except PointRemovedError:
                    overtaken += 1
                    continue
                done += 1
                assert report.ok and report.log_end >= shipped_end
                assert following.status.error is None
        assert overtaken <= done, (overtaken, done)
        assert timerstore.verify(place).ok
        assert timerstore.restore(place, tmp_path / "last").pending_count == store.count()


@pytest.mark.prove
def test_a_follower_that_is_stopped_while_segments_go(tmp_path: Path) -> None:
    """Wherever it stood still: it goes on, and the copy has what the store has."""
    rnd, path, place = random.Random(4), tmp_path / "store", f"file://{tmp_path}/objects"
    config = Config(durability="process", flush_interval_ms=20, tuning=TINY.tuning)
    store = timerstore.open(path, config=config)
    child = process("follow", path, place, "--every", "20ms")
    until_s, starts = time.monotonic() + SECONDS, set[int]()
    try:
        wait_until(lambda: store.stats().copies)
        while time.monotonic() < until_s or len(starts) < 9:
            os.kill(child.pid, signal.SIGSTOP)
            stop_s = time.monotonic() + rnd.choice((0.02, 0.2, 1.0))
            while time.monotonic() < stop_s:
                store.put_many([bytes(300)] * 20, delay_ms=rnd.choice((0, 5, 50)))
                store.pull("default", max_count=9_999, timeout=0.05).ack()
                store.flush()
                starts.add(store.stats().commitlog_start)
            os.kill(child.pid, signal.SIGCONT)
            time.sleep(rnd.random() * 0.3)
        for _ in range(3):
            store.put(b"kept", delay=timedelta(hours=1))
        wait_until(lambda: store.stats().copies[0].lag_bytes == 0)
        assert store.stats().copies[0].error is None
    finally:
        os.kill(child.pid, signal.SIGCONT)
        child.send_signal(signal.SIGTERM)
    code, _, err = finish(child)
    assert code == 0 and "Traceback" not in err and "removed its log" in err, err
    held = {each.id for each in store.pending()}
    store.close()
    assert timerstore.verify(place).ok
    chains = [each for each in objects(place) if each.endswith(".json")]
    assert len(chains) > 1
    assert timerstore.restore(place, tmp_path / "new", config=config).ok
    with timerstore.open(tmp_path / "new", read_only=True, config=config) as restored:
        assert {each.id for each in restored.pending()} == held


def test_a_destination_that_lets_nobody_delete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies go on, and it is said once; a backup says that its point was taken."""
    kept = Followed(tmp_path, f"file://{tmp_path}/objects", keep_ms=1)
    cut = CutDestination(
        find_destination(str(kept.dest)), 1 << 30, fails=lambda call: call.startswith("remove")
    )
    kept.follower.dest, kept.follower._find = cut, lambda: cut
    for number in range(1, 5):
        kept.put(3)
        kept.follower._cared_s -= 61
        kept.follower.step()
        assert kept.follower.status.error is None
        assert kept.count_restored() == 3 * number
    assert [
        each.getMessage() for each in caplog.records if "cannot be removed" in each.getMessage()
    ]
    assert sum("cannot be removed" in each.getMessage() for each in caplog.records) == 1
    assert timerstore.verify(str(kept.dest)).ok
    cut.fails = lambda call: False
    kept.follower._cared_s -= 61
    kept.follower.step()
    assert len(timerstore.backup_points(str(kept.dest))) <= 2
    assert timerstore.verify(str(kept.dest)).ok
    kept.follower.close()
    cut.fails = lambda call: call.startswith("remove")
    monkeypatch.setattr("timerstore.copies.destination.find_destination", lambda dest: cut)
    before = len(timerstore.backup_points(str(kept.dest)))
    with pytest.raises(StoreAccessError, match="was taken, but older points"):
        kept.back_up(keep=1)
    assert len(timerstore.backup_points(str(kept.dest))) == before + 1


ODD = ("a b", "100%", "%41", "ünï☃", "..x", "a#b", "a?b", "a&b=c", "+", "sub/../other", "'\"")


@pytest.mark.parametrize("name", some(ODD, 2))
@pytest.mark.parametrize("kind", some(["file", "folder", "s3"], 3))
def test_odd_places(tmp_path: Path, request: pytest.FixtureRequest, kind: str, name: str) -> None:
    """Two places are two, however they are spelled."""
    places: list[Any]
    if kind == "folder":
        places = [tmp_path / name, tmp_path / f"{name}2"]
    elif kind == "file":
        places = [f"file://{tmp_path}/{quote(each)}" for each in (name, f"{name}2")]
    else:
        if "?" in name or ".." in name:
            pytest.skip("means something else in an address, or to the server of the tests")
        places = [f"{request.getfixturevalue('s3')}/{each}" for each in (name, f"{name}2")]
    for number, place in enumerate(places):
        path = tmp_path / f"store{number}"
        with timerstore.open(path, config=TINY) as store:
            store.put_many([b"x"] * (3 + number), delay=timedelta(hours=1))
            with store.follow(place):
                pass
            assert store.stats().copies[0].lag_bytes == 0
            with pytest.raises(StoreLockedError), store.follow(place):
                store.follow(place)
    for number, place in enumerate(places):
        assert timerstore.verify(place).ok
        assert timerstore.restore(place, tmp_path / f"new{number}").pending_count == 3 + number
        local = tmp_path / f"local{number}"
        standby = Standby(local, find_destination(place), os.fspath(place))
        standby.step()
        standby.close()
        assert promote(local, config=TINY).pending_count == 3 + number
    if kind != "s3":
        assert isinstance(find_place(tmp_path / name), type(find_destination(places[0])))


@pytest.mark.parametrize("config", [TINY, SMALLEST], ids=["tiny", "smallest"])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_stores_that_are_small(tmp_path: Path, config: Config, count: int) -> None:
    """Or empty: all that a copy does works."""
    place, path = f"file://{tmp_path}/objects", tmp_path / "store"
    with timerstore.open(path, config=config) as store:
        for _ in range(count):
            store.put(b"x", delay=timedelta(hours=1))
        with store.follow(place, every=0.01):
            pass
        assert store.backup(place).ok
    assert timerstore.verify(place).ok
    assert timerstore.restore(place, tmp_path / "new", config=config).pending_count == count
    local = tmp_path / "local"
    standby = Standby(local, find_destination(place), place)
    standby.step()
    assert standby.step().copied_bytes == 0
    standby.close()
    assert timerstore.verify(local).ok
    assert promote(local, config=config).pending_count == count
    with timerstore.open(local, config=config) as store:
        store.put(b"more", delay=timedelta(hours=1))
        store.backup(place, keep=1)
    assert timerstore.restore(place, tmp_path / "newer").pending_count == count + 1
    assert timerstore.salvage(place, tmp_path / "salvaged").pending_count == count + 1
