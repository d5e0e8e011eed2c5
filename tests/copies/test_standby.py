"""A standby, which becomes the store: the one before is refused, whatever ends where."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.cli.shell import SMALL, Run, finish, process
from tests.copies.kept import AHEAD_MS, TINY
from tests.copies.test_follow import Followed
from tests.rigs.waiting import wait_until
from tests.sparse_copy import copy_tree
from tests.tiers import how_many
from tests.watched import Ended, EndingDisk
from timerstore import (
    CorruptStoreError,
    InvalidArgumentError,
    NotAStoreError,
    StoreFullError,
    StoreLockedError,
)
from timerstore.copies import promote as promote_module
from timerstore.copies import standby as standby_module
from timerstore.copies.catalog import read_catalog
from timerstore.copies.chains import claim_chain, newest_claim
from timerstore.copies.destination import find_destination
from timerstore.copies.promote import PromoteReport, promote
from timerstore.copies.standby import Standby, folder_beside, held_folder, read_standby
from timerstore.core.directory import STANDBY_FILE
from timerstore.testing.damage import flip_bit
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.names import segment_name
from timerstore.timelog.reading.reader import Fault

pytestmark = pytest.mark.timeout(120)
EACH = how_many("STANDBY_STEP", 3, 1)


class Pair:
    """A store that is followed, with a standby of it."""

    def __init__(self, folder: Path, place: str) -> None:
        self.kept, self.place, self.local = Followed(folder, place), place, folder / "local"

    def ship(self, count: int) -> None:
        self.kept.put(count)
        self.kept.follower.step()

    def fetch(self, **options: Any) -> int:
        standby = Standby(self.local, find_destination(self.place), self.place, **options)
        try:
            return standby.step().copied_bytes
        finally:
            standby.close()

    def promote(self, **options: Any) -> PromoteReport:
        return promote(self.local, config=TINY, clock=self.kept.clock, **options)

    def goes_on(self, count: int) -> None:
        """Fail unless the old store is shut out, and the new one is backed up in its place."""
        with pytest.raises(StoreLockedError, match="taken over"):
            self.kept.follower.step()
        with timerstore.open(self.local, config=TINY, clock=self.kept.clock) as store:
            store.backup(self.place)
        assert self.kept.restore().pending_count == count

    def close(self) -> None:
        self.kept.follower.close()
        self.kept.store.close()


def fetched(tmp_path: Path, count: int) -> Pair:
    """Return a pair whose standby has so many timers."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    pair.ship(count)
    pair.fetch()
    return pair


@pytest.fixture
def pair(place: str, tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path, place)
    yield found
    found.close()


def count(path: Path, **options: Any) -> int:
    with timerstore.open(path, read_only=True, config=TINY, **options) as store:
        return store.count()


def test_a_standby_says_what_to_do_instead_of_a_restore(pair: Pair, tmp_path: Path) -> None:
    pair.ship(1)
    pair.fetch()
    with pytest.raises(InvalidArgumentError, match="timerstore promote"):
        timerstore.restore(pair.local, tmp_path / "new")
    with pytest.raises(InvalidArgumentError, match="another folder"):
        pair.kept.store.backup(pair.local)


def test_it_fetches_what_is_new(pair: Pair) -> None:
    for number in range(1, 6):
        pair.ship(30)
        assert pair.fetch() > 0 and pair.fetch() == 0
        assert count(pair.local) == 30 * number
        assert timerstore.verify(pair.local).ok
    with pytest.raises(NotAStoreError, match="is a standby"):
        timerstore.open(pair.local)
    (point,) = timerstore.backup_points(pair.local)
    assert point.log_end == pair.kept.store.stats().commitlog_end


def test_it_becomes_the_store(pair: Pair) -> None:
    """At its last point; then it is followed itself, and nobody else is."""
    pair.ship(20)
    pair.fetch()
    pair.ship(5)
    report = pair.promote()
    assert (report.pending_count, report.fenced) == (25, True)
    assert "25 timers are pending" in str(report) and report.to_dict()["fenced"]
    pair.kept.put(7)
    with pytest.raises(StoreLockedError, match="taken over"):
        pair.kept.follower.step()
    pair.kept.follower.close()
    with pytest.raises(StoreLockedError, match="taken over"):
        timerstore.backup(pair.kept.path, pair.place)
    assert not (pair.local / STANDBY_FILE).exists()
    with timerstore.open(pair.local, config=TINY, clock=pair.kept.clock) as store:
        assert store.count() == 25
        store.put(b"in the new one", delay=timedelta(milliseconds=AHEAD_MS))
        with store.follow(pair.place):
            pass
    assert timerstore.verify(pair.place).ok
    assert pair.kept.restore().pending_count == 26
    with pytest.raises(NotAStoreError, match="no standby"):
        pair.promote()


def test_what_comes_late_from_the_one_before_is_not_seen(pair: Pair, tmp_path: Path) -> None:
    """Its look at the claims was before, its point is written behind: nobody sees it."""
    pair.ship(10)
    pair.fetch()
    shipper = pair.kept.follower._shipper
    assert shipper is not None
    report = pair.promote()
    pair.kept.put(9)
    shipper.check_is_ours = lambda: None  # type: ignore[method-assign]
    pair.kept.follower.step()
    points = timerstore.backup_points(pair.place)
    assert len(points) == 1 and report.pending_count == 10
    assert pair.kept.restore().pending_count == 10
    with timerstore.open(pair.local, config=TINY, clock=pair.kept.clock) as store:
        store.put(b"x", delay=timedelta(hours=1))
        store.backup(pair.place)
    assert [point.number for point in timerstore.backup_points(pair.place)] == [1, 2]
    assert timerstore.verify(pair.place).ok
    assert timerstore.restore(pair.place, tmp_path / "again").pending_count == 11


def test_wherever_a_step_ends(tmp_path: Path) -> None:
    """What the folder holds is whole, and the next step goes on."""
    pair = fetched(tmp_path, 40)
    total, held, left, ended = 40, 40, 0, 0
    while True:
        pair.ship(40)
        total += 40
        try:
            pair.fetch(disk=EndingDisk(left))
        except Ended:
            ended += 1
        else:
            break
        report = timerstore.verify(pair.local)
        assert report.ok, (left, report.problems)
        assert 40 <= count(pair.local) <= total  # what was fetched behind the point is a prefix
        assert promoted_alone(pair, tmp_path / f"promoted{left}") in (held, total), left
        if ended % 2:
            pair.fetch()
            held = total
            assert count(pair.local) == held and holds_last_point(pair), left
        left += 1 + left // 6
    assert ended > 8 and count(pair.local) == total and holds_last_point(pair)
    pair.close()


def promoted_alone(pair: Pair, path: Path) -> int:
    """Return how many timers are pending in what becomes of the folder without its destination."""
    copy_tree(pair.local, path)
    return promote(path, config=TINY, clock=pair.kept.clock, fenced=False).pending_count


def holds_last_point(pair: Pair) -> bool:
    """Tell whether the folder holds the last point's small files, and no others."""
    catalog = read_catalog(find_destination(pair.place))
    (point,) = timerstore.backup_points(pair.local)
    folders = [pair.local, pair.local / "config"]
    found = {
        str(each.relative_to(pair.local)): each.read_bytes()
        for folder in folders
        for each in folder.iterdir()
        if each.is_file() and each.name != STANDBY_FILE
    }
    return point == catalog.points[-1] and found == catalog.read_files(point)


def test_wherever_a_step_over_a_gap_ends(tmp_path: Path) -> None:
    """The log before the gap stays until the one behind it is there as a whole."""
    pair = fetched(tmp_path, 10)
    make_gap(pair.kept)
    pair.ship(4)
    left, seen = 0, set[int]()
    while True:
        copy = Pair.__new__(Pair)
        copy.kept, copy.place, copy.local = pair.kept, pair.place, tmp_path / f"copy{left}"
        copy_tree(pair.local, copy.local)
        try:
            copy.fetch(disk=EndingDisk(left))
        except Ended:
            report = timerstore.verify(copy.local)
            assert report.ok, (left, report.problems)
            found = count(copy.local)
            assert found in (4, 10) and promoted_alone(copy, tmp_path / f"promoted{left}") == found
            seen.add(found)
            copy.fetch()
        else:
            break
        assert count(copy.local) == 4 and holds_last_point(copy)
        left += EACH
    assert seen == {4, 10}
    pair.close()


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    """Also in what no checksum of a message covers; behind the point's end nothing counts."""
    pair = fetched(tmp_path, 5)
    pair.ship(60)
    pair.fetch()
    (point,) = timerstore.backup_points(pair.local)
    for offset in (60, 4_000, 8_192 + 60, point.log_end - 9):
        copy = copy_tree(pair.local, tmp_path / str(offset))
        flip_bit(copy / "commitlog" / segment_name(offset // 8_192 * 8_192), offset % 8_192, 2)
        assert not timerstore.verify(copy).ok, offset
        for fenced in (True, False):
            with pytest.raises(CorruptStoreError, match="checksum is not what was fetched"):
                promote(copy, config=TINY, clock=pair.kept.clock, fenced=fenced)
    assert newest_claim(find_destination(pair.place))[0] == 1
    last = segment_name(point.log_end // 8_192 * 8_192)
    for name in (segment_name(0), last):
        copy = copy_tree(pair.local, tmp_path / f"missing{name}")
        (copy / "commitlog" / name).unlink()
        assert not timerstore.verify(copy).ok
    copy = copy_tree(pair.local, tmp_path / "short")
    os.truncate(copy / "commitlog" / last, 100)
    assert not timerstore.verify(copy).ok
    pair.close()


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_a_log_that_lacks_a_segment_is_fetched_anew(
    tmp_path: Path, number: int, is_cut: bool
) -> None:
    pair = fetched(tmp_path, 65)
    path = pair.local / "commitlog" / segment_name(number * 8_192)
    os.truncate(path, 100) if is_cut else path.unlink()
    pair.ship(1)
    assert pair.fetch() > 8_192
    assert timerstore.verify(pair.local).ok and count(pair.local) == 66
    pair.close()


def test_a_standby_without_a_point_is_no_store(tmp_path: Path) -> None:
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    pair.ship(40)
    with pytest.raises(Ended):
        pair.fetch(disk=EndingDisk(9))
    for options in ({}, {"read_only": True}, {"create": True}):
        with pytest.raises(NotAStoreError, match="no point yet"):
            timerstore.open(pair.local, **options)
    pair.fetch()
    assert count(pair.local) == 40
    pair.close()


@pytest.mark.prove
def test_wherever_a_promotion_ends(tmp_path: Path) -> None:
    """It is taken up by the next one, which has all of it."""
    left, ended = 0, True
    while ended:
        pair = Pair(tmp_path / str(left), f"file://{tmp_path}/objects{left}")
        pair.ship(12)
        pair.fetch()
        pair.ship(3)
        ended = False
        try:
            pair.promote(disk=EndingDisk(left))
        except Ended:
            ended = True
        pair.kept.put(1)
        if not ended:
            pair.close()
            break
        assert pair.promote().pending_count == 15
        pair.goes_on(15)
        pair.close()
        left += 1 + left // 3
    assert left > 9


def test_one_of_two_is_promoted(tmp_path: Path) -> None:
    pair = fetched(tmp_path, 10)
    other = Pair.__new__(Pair)
    other.kept, other.place, other.local = pair.kept, pair.place, tmp_path / "other"
    other.fetch()
    dest = find_destination(pair.place)
    with pytest.raises(Ended):
        pair.promote(disk=EndingDisk(2))
    if newest_claim(dest)[0] == 1:
        claim_chain(dest, 1, promoted=True)
    other.promote()
    plan = json.loads((pair.local / STANDBY_FILE).read_text())
    if plan["claim"]:
        with pytest.raises(StoreLockedError, match="Another copy has taken over"):
            pair.promote()
    with timerstore.open(other.local, config=TINY, clock=pair.kept.clock) as store:
        assert store.count() == 10
        store.backup(pair.place)
    pair.close()


def test_without_its_destination(tmp_path: Path) -> None:
    pair = fetched(tmp_path, 10)
    (tmp_path / "objects").rename(tmp_path / "gone")
    (tmp_path / "objects").write_text("")
    with pytest.raises(timerstore.TimerStoreError):
        pair.promote()
    assert count(pair.local) == 10  # a standby as before
    report = pair.promote(fenced=False)
    assert (report.pending_count, report.fenced) == (10, False)
    with timerstore.open(pair.local, config=TINY, clock=pair.kept.clock) as store:
        assert store.count() == 10
    pair.close()


def make_gap(kept: Followed) -> None:
    """Have the store remove log that was not shipped, with all that waits in it."""
    for _ in range(6):
        kept.put(60)
        kept.clock.advance(timedelta(minutes=5))
        for delivery in kept.store.consume("t", timeout=0):
            delivery.ack()
        kept.store.flush()


def test_a_gap_in_the_log_is_stepped_over(tmp_path: Path) -> None:
    pair = fetched(tmp_path, 10)
    make_gap(pair.kept)
    pair.ship(4)
    assert len(read_catalog(find_destination(pair.place)).known) == 2
    assert pair.fetch() > 0
    assert count(pair.local) == 4 and timerstore.verify(pair.local).ok
    assert pair.promote().pending_count == 4
    pair.close()


def test_a_backup_made_anew_in_the_same_place_is_refused(tmp_path: Path) -> None:
    """Its store may have been restored to an earlier time, so that its log differs."""
    pair = fetched(tmp_path, 10)
    pair.kept.follower.close()
    pair.kept.store.close()
    (tmp_path / "objects").rename(tmp_path / "gone")
    pair.kept.follower, pair.kept.store = (
        pair.kept.follow(),
        timerstore.open(pair.kept.path, config=TINY, clock=pair.kept.clock),
    )
    for _ in range(2):
        pair.ship(5)
        with pytest.raises(InvalidArgumentError, match=r"lacks points .* Pass another folder"):
            pair.fetch()
    assert count(pair.local) == 10 and timerstore.verify(pair.local).ok
    pair.close()


def test_what_lies_beside_is_of_one_point_only(tmp_path: Path) -> None:
    """Another chain may have a point of the same number: half of it must not pass for this one."""
    pair = fetched(tmp_path, 1)
    state = read_standby(pair.local)
    assert state is not None and state.point is not None
    later = replace(state.point, log_start=9_000, log_end=9_100)
    (folder_beside(pair.local, later) / "commitlog").mkdir(parents=True)
    assert held_folder(pair.local, state) == pair.local
    assert count(pair.local) == 1 and timerstore.verify(pair.local).ok
    pair.close()


def test_what_is_refused(tmp_path: Path) -> None:
    pair = fetched(tmp_path, 1)
    dest = find_destination(pair.place)
    held = Standby(pair.local, dest, pair.place)
    with pytest.raises(StoreLockedError):
        Standby(pair.local, dest, pair.place)
    held.close()
    with pytest.raises(InvalidArgumentError, match="files that belong to no standby"):
        Standby(pair.kept.path, dest, pair.place)
    elsewhere = f"file://{tmp_path}/elsewhere"
    with pytest.raises(InvalidArgumentError, match="standby of"):
        Standby(pair.local, find_destination(elsewhere), elsewhere)
    with pytest.raises(NotAStoreError, match="no standby"):
        promote(pair.kept.path)
    empty = Standby(tmp_path / "empty", find_destination(elsewhere), elsewhere)
    with pytest.raises(NotAStoreError, match="holds no backup"):
        empty.step()
    empty.close()
    with pytest.raises(NotAStoreError, match=r"no point yet. Run: timerstore standby .* --once"):
        promote(empty.path)
    pair.close()


@pytest.mark.slow
def test_the_commands(run: Run, tmp_path: Path) -> None:
    path, place, local = tmp_path / "timers", f"file://{tmp_path}/objects", tmp_path / "local"
    with timerstore.open(path, config=SMALL) as store:
        store.put(b"first", delay=timedelta(hours=1))
        with store.follow(place, every=timedelta(milliseconds=50)) as following:
            wait_until(lambda: following.status.shipped_end)
            assert "were new" in run("standby", place, local, "--once").output
            child = process("standby", place, local, "--every", "50ms")
            store.put(b"second", delay=timedelta(hours=1))
            end = store.stats().commitlog_end
            wait_until(lambda: timerstore.backup_points(local)[-1].log_end == end)
            child.send_signal(signal.SIGTERM)
            assert finish(child)[0] == 0
            assert "second" in run("pending", local).output
            assert "2 timers are pending" in run("promote", local).output
            store.put(b"third", delay=timedelta(hours=1))
            wait_until(lambda: following.status.ended)
            with pytest.raises(StoreLockedError):
                following.close()
            following.close = lambda: None  # type: ignore[method-assign]
    assert "taken over" in run("follow", path, place, exits=3).output
    assert json.loads(run("info", local, "--json").stdout)["pending_count"] == 2


def test_each_small_file_is_looked_at(tmp_path: Path) -> None:
    """A step heals it; without its destination nothing of it becomes a store."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    for number in range(2):
        pair.ship(5)
        pair.fetch()
        state = read_standby(pair.local)
        assert state is not None and len(state.files) >= 4
        assert "config/spare" not in state.files  # a mebibyte of nothing at each step
        for name in state.files:
            copy = copy_tree(pair.local, tmp_path / f"{number}{name.replace('/', '-')}")
            if size := (copy / name).stat().st_size:
                flip_bit(copy / name, size // 2, 1)
            else:
                (copy / name).write_bytes(b"\0")
            assert name in {each.file for each in timerstore.verify(copy).problems}, name
            with pytest.raises(CorruptStoreError, match="not the one that was fetched"):
                promote(copy, config=TINY, clock=pair.kept.clock, fenced=False)
            (copy / name).unlink()
            assert name in {each.file for each in timerstore.verify(copy).problems}, name
            healed = Pair.__new__(Pair)
            healed.place, healed.local = pair.place, copy
            assert healed.fetch() == 0 and timerstore.verify(copy).ok
    pair.close()


def test_a_step_that_ends_before_a_new_small_file_is_there(tmp_path: Path) -> None:
    """It is not missed, since the point before had none; the next step brings it."""
    pair = fetched(tmp_path, 5)
    state, name = read_standby(pair.local), "abort"
    assert state is not None and name in state.files
    before = {each: crc for each, crc in state.files.items() if each != name}
    replace(state, before=before).write(Disk(), pair.local)
    (pair.local / name).unlink()
    assert timerstore.verify(pair.local).ok
    pair.ship(5)
    with pytest.raises(Ended):
        pair.fetch(disk=EndingDisk(6))
    for _ in range(2):
        assert timerstore.verify(pair.local).ok
        pair.fetch()
    assert (pair.local / name).exists() and count(pair.local) == 10
    pair.close()


@pytest.mark.parametrize("has_point", [True, False])
def test_a_full_disk_leaves_nothing_behind_the_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_point: bool
) -> None:
    """Half a message ends at a hole, and to read one of a full tmpfs is a SIGBUS."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    if has_point:
        pair.ship(5)
        pair.fetch()
    pair.ship(65)
    lay_log = standby_module.lay_log

    def lay(*given: Any, **options: Any) -> None:
        lay_log(*given, **options)
        raise StoreFullError("full")

    monkeypatch.setattr(standby_module, "lay_log", lay)
    with pytest.raises(StoreFullError):
        pair.fetch()
    monkeypatch.undo()
    if has_point:
        assert count(pair.local) == 5 and timerstore.verify(pair.local).ok
    else:
        assert [each.name for each in pair.local.iterdir()] == [STANDBY_FILE]
    pair.fetch()
    assert count(pair.local) == 65 + 5 * has_point and timerstore.verify(pair.local).ok
    pair.close()


def test_a_cut_segment_is_not_read_as_zeros(tmp_path: Path) -> None:
    pair = fetched(tmp_path, 65)
    os.truncate(pair.local / "commitlog" / segment_name(8_192), 100)
    with pytest.raises(CorruptStoreError, match="a segment ends at this offset") as raised:
        standby_module.copy_standby(pair.local, tmp_path / "copy", QuietDisk())
    assert raised.value.offset == 8_292
    pair.close()


@pytest.mark.parametrize("fenced", [True, False])
def test_what_became_the_store_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """Another promotion ends while this one looks at the log: then programs put into the store."""
    pair = fetched(tmp_path, 10)

    def look(path: Path) -> list[Fault]:
        monkeypatch.undo()
        pair.promote()
        with timerstore.open(path, config=TINY, clock=pair.kept.clock) as store:
            store.put_many([b"x" * 1_000] * 20, delay=timedelta(hours=1))
        return []

    monkeypatch.setattr(promote_module, "standby_faults", look)
    with pytest.raises(timerstore.TimerStoreError, match="standby"):
        pair.promote(fenced=fenced)
    assert count(pair.local) == 30 and timerstore.verify(pair.local).ok
    pair.close()


def test_what_a_step_brings_before_a_promotion_has_the_folder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = fetched(tmp_path, 10)

    def look(path: Path) -> list[Fault]:
        pair.ship(65)
        pair.fetch()
        return []

    monkeypatch.setattr(promote_module, "standby_faults", look)
    assert pair.promote(fenced=False).pending_count == 75
    pair.close()


def test_a_store_is_no_standby_again(tmp_path: Path) -> None:
    """A kill had left a temporary file: an empty folder has that, a standby, but no store."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    pair.local.mkdir()
    (pair.local / f"{STANDBY_FILE}.tmp").write_text("{")
    pair.ship(10)
    pair.fetch()
    (pair.local / f"{STANDBY_FILE}.tmp").write_text("{")
    pair.promote(fenced=False)
    with pytest.raises(InvalidArgumentError, match="files that belong to no standby"):
        pair.fetch()
    assert count(pair.local) == 10
    pair.close()
