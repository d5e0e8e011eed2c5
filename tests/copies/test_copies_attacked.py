"""Copies under attack: two who write, disks that fill, points that go while they are read."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.copies.kept import AHEAD_MS, TINY
from tests.copies.test_follow import Followed
from tests.copies.test_standby import Pair, count
from tests.rigs.objects import watched_filesystem
from tests.watched import Ended, EndingDisk
from timerstore import InvalidArgumentError, StoreFullError, StoreLockedError
from timerstore.copies.backup import keep_newest, remove_needless
from timerstore.copies.catalog import Catalog, read_catalog
from timerstore.copies.chains import read_chains
from timerstore.copies.destination import find_destination
from timerstore.copies.restore import restore_point
from timerstore.copies.standby import Standby
from timerstore.timelog.files.disk import Disk

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]


def consume_all(kept: Followed) -> None:
    """Let all fire, and be consumed; then segments can go."""
    kept.clock.advance(timedelta(minutes=5))
    for delivery in kept.store.consume("t", timeout=0):
        delivery.ack()
    kept.store.flush()


@pytest.mark.parametrize("spelling", ["file://{}/objects/", "{}/objects", "file://{}/./objects"])
def test_one_destination_has_one_follower_however_it_is_spelled(
    tmp_path: Path, spelling: str
) -> None:
    kept = Followed(tmp_path, f"file://{tmp_path}/objects")
    kept.put(5)
    kept.follower.step()
    kept.dest = spelling.format(tmp_path)
    with pytest.raises(StoreLockedError, match="already follows"):
        kept.follow()


def late_point(pair: Pair) -> None:
    """The store writes a point after a copy claimed the destination: its look was before."""
    shipper = pair.kept.follower._shipper
    assert shipper is not None
    shipper.check_is_ours = lambda: None  # type: ignore[method-assign]
    pair.ship(9)


def test_a_standby_does_not_go_on_behind_a_point_that_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fetched what the old store wrote last, which the promoted copy has not."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    pair.ship(10)
    pair.fetch()
    other = tmp_path / "other"
    dest = find_destination(pair.place)
    standby = Standby(other, dest, pair.place)
    standby.step()
    pair.promote()
    late_point(pair)
    catalog = read_catalog(dest)  # as it was before the chain was begun
    chains = read_chains(dest)
    first = type(chains)(chains.known[:1], chains.newest_claim)
    with monkeypatch.context() as patch:
        patch.setattr("timerstore.copies.catalog.read_chains", lambda dest: first)
        old = Catalog(dest)
    assert len(old.points) == 2 and len(catalog.points) == 1
    with monkeypatch.context() as patch:
        patch.setattr("timerstore.copies.standby.read_catalog", lambda dest: old)
        assert standby.step().point.number == 2
    with timerstore.open(pair.local, config=TINY, clock=pair.kept.clock) as store:
        store.put_many([b"other"] * 30, topic="t", delay_ms=AHEAD_MS)
        store.backup(pair.place)
    with pytest.raises(InvalidArgumentError, match="lacks points"):
        standby.step()
    standby.close()
    pair.close()


def test_what_lies_behind_a_standby_s_point_is_not_kept(tmp_path: Path) -> None:
    """Of a step that was killed: what stands there may be of a point that counts no more."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    pair.ship(10)
    pair.fetch()
    end = pair.kept.follower.status.shipped_end
    size = TINY.commitlog_segment_bytes
    (segment,) = (pair.local / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(end)
        file.write(b"x" * (size - end))
    (segment.parent / f"{size:020d}").write_bytes(b"y" * size)
    pair.kept.store.put(b"\x00" * 3_000, delay_ms=AHEAD_MS)
    pair.ship(1)
    pair.fetch()
    assert timerstore.verify(pair.local).ok and count(pair.local) == 12
    held = b"".join(each.read_bytes() for each in sorted(segment.parent.iterdir()))
    end = pair.kept.follower.status.shipped_end
    assert not any(held[end:])
    pair.close()


def test_points_that_go_while_they_are_restored(tmp_path: Path) -> None:
    """It is told that the point has gone, and is no damage."""
    act = list[Callable[[], None]]()

    def watch(what: str, path: str) -> None:
        if act and what == "get" and path.startswith("log/"):
            act.pop()()

    folder = tmp_path / "objects"
    quiet = watched_filesystem(folder, lambda what, path: None)
    kept = Followed(tmp_path, quiet)
    for _ in range(3):
        kept.put(40)
        kept.follower.step()

    def thin() -> None:
        for _ in range(4):
            consume_all(kept)
            kept.put(40)
            kept.follower.step()
        shipper = kept.follower._shipper
        assert shipper is not None
        keep_newest(shipper.catalog, 1)
        remove_needless(shipper.catalog)

    kept.dest = watched_filesystem(folder, watch)
    act.append(thin)
    with pytest.raises(InvalidArgumentError, match="was removed while it was read"):
        kept.restore()
    assert not kept.restored.exists() and not act
    assert kept.restore().ok


def test_points_that_go_while_they_are_verified(tmp_path: Path) -> None:
    """Those of which only the newest stay are no damage."""
    act = list[Callable[[], None]]()

    def watch(what: str, path: str) -> None:
        if act and what == "get" and path.startswith("points/"):
            act.pop()()

    folder = tmp_path / "objects"
    kept = Followed(tmp_path, watched_filesystem(folder, lambda what, path: None))
    for _ in range(4):
        kept.put(20)
        kept.follower.step()
    shipper = kept.follower._shipper
    assert shipper is not None

    def thin() -> None:
        assert keep_newest(shipper.catalog, 2) == 2

    act.append(thin)
    place = watched_filesystem(folder, watch)
    assert timerstore.verify(place).ok and not act
    assert len(timerstore.backup_points(place)) == 2


def test_a_standby_of_a_destination_that_was_begun_anew(tmp_path: Path) -> None:
    """By another store: what the folder holds is not continued with it."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    pair.ship(10)
    pair.fetch()
    pair.close()
    (tmp_path / "objects").rename(tmp_path / "old")
    other = Followed(tmp_path, pair.place, "other")
    other.put(60)
    other.follower.step()
    with pytest.raises(InvalidArgumentError, match="another store"):
        pair.fetch()
    assert count(pair.local) == 10 and timerstore.verify(pair.local).ok


class FullDisk(Disk):
    """A disk that is full from one of its writes on, until somebody frees some."""

    def __init__(self, left: int) -> None:
        self.left = left

    def event(self, kind: str, path: Path) -> None:
        if kind in ("write", "create", "mkdir", "replace"):
            self.left -= 1
            if self.left < 0:
                raise StoreFullError(f"There is no space left for {path}.")


def test_wherever_the_disk_is_full(tmp_path: Path) -> None:
    """A restore leaves nothing; a standby keeps what it had, and goes on."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    pair.ship(60)
    pair.fetch()
    standby = Standby(pair.local, find_destination(pair.place), pair.place)
    left, fulls, total, target = 0, 0, 60, tmp_path / "new"
    while True:
        pair.ship(40)
        standby.disk = FullDisk(left)
        try:
            standby.step()
        except StoreFullError:
            fulls += 1
        assert timerstore.verify(pair.local).ok
        standby.disk = Disk()
        standby.step()
        total += 40
        assert count(pair.local) == total
        try:
            restore_point(
                find_destination(pair.place),
                target,
                config=TINY,
                clock=pair.kept.clock,
                disk=FullDisk(left),
            )
        except StoreFullError:
            fulls += 1
            assert not target.exists() and not list(tmp_path.glob(".*"))
        else:
            break
        left += 1 + left // 3
    assert fulls > 8
    standby.close()
    pair.close()


def test_segments_go_while_they_are_shipped(tmp_path: Path) -> None:
    """A follower that stands still while the store rolls, fires and cleans; then it goes on."""
    act = list[Callable[[], None]]()

    def watch(what: str, path: str) -> None:
        if act and what == "put" and path.startswith("log/"):
            act.pop()()

    kept = Followed(tmp_path, watched_filesystem(tmp_path / "objects", watch))

    def live() -> None:
        for _ in range(5):
            kept.put(60)
            consume_all(kept)
        kept.put(7)

    for _ in range(3):
        kept.put(50)
        act.append(live)
        kept.follower.step()
        assert not act and kept.follower.status.error is None, kept.follower.status
        kept.follower.step()
        assert kept.count_restored() == kept.store.count()
    assert timerstore.verify(kept.dest).ok


def test_a_kill_in_a_restore_leaves_what_the_next_one_replaces(tmp_path: Path) -> None:
    kept = Followed(tmp_path, f"file://{tmp_path}/objects")
    kept.put(100)
    kept.follower.step()

    class Killed(EndingDisk):
        def remove(self, path: Path) -> None:  # a process that was killed removes nothing
            if self.left >= 0:
                super().remove(path)

    left, ended = 0, 0
    while True:
        try:
            report = restore_point(
                find_destination(str(kept.dest)),
                kept.restored,
                config=TINY,
                clock=kept.clock,
                disk=Killed(left),
            )
        except (Ended, OSError):
            ended += 1
            assert not kept.restored.exists()
        else:
            break
        left += 1 + left // 3
    assert ended > 8 and report.ok and report.pending_count == 100
    assert timerstore.verify(kept.restored).ok
