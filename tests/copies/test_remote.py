"""Remote backups: all that a backup in a folder does, at an address."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

import timerstore
import timerstore.copies.restore as restore_module
from tests.cli.shell import Run
from tests.copies.kept import START_MS, TINY, Kept, change, objects
from tests.rigs.objects import watched_filesystem
from timerstore import (
    CorruptStoreError,
    InvalidArgumentError,
    ManualClock,
    NotAStoreError,
)
from timerstore.copies import fetching
from timerstore.copies.catalog import read_catalog
from timerstore.copies.chains import claim_chain
from timerstore.copies.destination import Destination, find_destination, find_place
from timerstore.copies.standby import Standby
from timerstore.errors import StoreAccessError, StoreLockedError


def test_a_point_that_goes_while_it_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points are thinned out beside a restore, which has read what it needs of its own by then."""
    kept = Kept(tmp_path, f"file://{tmp_path}/objects")
    kept.put(10)
    kept.back_up()

    def lay_slowly(*given: Any, **options: Any) -> None:
        fetching.lay_log(*given, **options)
        kept.put(5)
        kept.back_up(keep=1)

    monkeypatch.setattr(restore_module, "lay_log", lay_slowly)
    report = kept.restore()
    assert (report.point, report.pending_count) == (1, 10)
    assert [each.number for each in timerstore.backup_points(kept.dest)] == [2]


def test_what_is_new_alone_is_sent(place: str, tmp_path: Path) -> None:
    kept = Kept(tmp_path, place)
    kept.put(200)
    first = kept.back_up()
    assert (first.message_count, first.point_count, first.point.number) == (200, 1, 1)
    assert first.copied_bytes == first.point.log_end
    before = set(objects(place))
    kept.put(3)
    second = kept.back_up()
    assert second.message_count == 3
    assert second.copied_bytes == second.point.log_end - first.point.log_end
    assert str(second) == (
        f"{kept.path}: point 2 of 2 in {second.dest}; 3 messages, {second.copied_bytes:,} bytes "
        f"were new, of {second.point.log_end:,}"
    )
    assert second.to_dict()["ok"]
    assert before < set(objects(place))  # none was changed in name, none removed
    kept.store.close()
    closed = timerstore.backup(kept.path, place)
    assert closed.copied_bytes == 0 and closed.point.number == 3
    assert [each.number for each in timerstore.backup_points(place)] == [1, 2, 3]
    assert timerstore.verify(place).ok
    report = kept.restore()
    assert (report.point, report.pending_count, report.ok) == (3, 203, True)
    assert not list(tmp_path.glob(".*"))
    with timerstore.open(kept.restored, config=TINY, clock=kept.clock) as store:
        assert store.count() == 203


def test_times_between_points_are_exact(place: str, tmp_path: Path) -> None:
    kept, counts = Kept(tmp_path, place), {}
    kept.put(20)
    kept.back_up()
    for _ in range(3):
        kept.put(40)
        counts[kept.clock.now_ms - 1] = kept.store.count()
        kept.clock.advance(timedelta(seconds=1))
    kept.back_up()
    kept.store.close()
    for at_ms, count in counts.items():
        at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms, microseconds=999)
        report = kept.restore(at=at)
        assert (report.point, report.pending_count, report.as_of_ms) == (1, count, at_ms)
        kept.restored.rename(tmp_path / f"{at_ms}")
    with pytest.raises(InvalidArgumentError, match="earliest point"):
        kept.restore(at_ms=1)


def test_a_gap_begins_a_chain(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The store removes what no backup had: the points before stay, what follows is complete."""
    kept = Kept(tmp_path, place)
    kept.put(20)
    first, between = kept.back_up().point, list[int]()
    for _ in range(6):
        kept.put(60)
        between.append(kept.clock.now_ms)
        kept.clock.advance(timedelta(minutes=5))
        for delivery in kept.store.consume("t", timeout=0):
            delivery.ack()
        kept.store.flush()
    kept.put(5)
    second = kept.back_up().point
    assert second.chain == 2 and second.log_start > first.log_end
    gap = f"from offset {first.log_end} to {second.log_start}"
    assert [gap in each.getMessage() for each in caplog.records] == [True]
    kept.put(5)
    assert kept.back_up().point.chain == 2
    kept.store.close()
    assert timerstore.verify(place).ok
    for at, number, count in ((between[2], 1, 20), (second.time_ms, 2, 5), (None, 3, 10)):
        done = kept.restore(at_ms=at)
        assert (done.point, done.pending_count) == (number, count)
        assert done.as_of_ms == timerstore.backup_points(place)[number - 1].time_ms
        kept.restored.rename(tmp_path / f"point{number}")


def test_what_is_kept_can_be_restored(tmp_path: Path) -> None:
    """With `keep` older points go, with the pieces that only they need."""
    place = f"file://{tmp_path}/objects"
    kept = Kept(tmp_path, place)
    for _ in range(5):
        kept.put(70)
        kept.clock.advance(timedelta(minutes=5))
        for delivery in kept.store.consume("t", timeout=0):
            delivery.ack()
        kept.store.flush()
        report = kept.back_up(keep=2)
        assert report.point_count == min(2, report.point.number)
        catalog = read_catalog(find_destination(place))
        assert len(catalog.points) == report.point_count
        start = min(point.log_start for point in catalog.points)
        assert start > 0 or report.point.number < 5
        assert all(piece.end > start for piece in catalog.pieces)
        assert timerstore.verify(place).ok
    kept.put(4)
    kept.back_up(keep=2)
    kept.store.close()
    assert kept.restore().pending_count == 4


def test_two_stores_in_one_place_are_refused(place: str, tmp_path: Path) -> None:
    kept, other = Kept(tmp_path, place), Kept(tmp_path, place, "other")
    for each in (kept, other):
        each.put(20)
    kept.back_up()
    with pytest.raises(InvalidArgumentError, match="another store"):
        other.back_up()
    kept.put(1)
    kept.back_up()
    kept.store.close()
    assert timerstore.restore(place, kept.restored, clock=kept.clock).pending_count == 21
    with timerstore.open(kept.restored, config=TINY, clock=kept.clock) as store:
        store.backup(place)  # it was restored to the last point, so it goes on there
    with pytest.raises(StoreLockedError, match="taken over"):
        timerstore.backup(kept.path, place)


def test_a_log_that_is_another_one_is_refused(place: str, tmp_path: Path) -> None:
    """The same store, of which two copies went on."""
    kept = Kept(tmp_path, place)
    kept.put(20)
    kept.store.close()
    timerstore.backup(kept.path, tmp_path / "local")
    twin = tmp_path / "twin"
    twin.mkdir()
    for each in kept.path.rglob("*"):
        if each.is_file():
            target = twin / each.relative_to(kept.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(each.read_bytes())
    for path, body in ((kept.path, b"ours"), (twin, b"theirs")):
        with timerstore.open(path, config=TINY, clock=ManualClock(START_MS + 5)) as store:
            store.put(body, delay=timedelta(minutes=1))
    timerstore.backup(kept.path, place)
    with pytest.raises(InvalidArgumentError, match="differs from the log"):
        timerstore.backup(twin, place)
    assert len(timerstore.backup_points(place)) == 1


def test_damage_is_found_and_named(place: str, tmp_path: Path) -> None:
    kept = Kept(tmp_path, place)
    kept.put(100)
    kept.back_up()
    kept.store.close()
    pieces = [name for name in objects(place) if name.startswith("log/")]
    assert len(pieces) > 2
    spoilt = pieces[1]
    change(place, spoilt, find_destination(place).get(spoilt)[:-1] + b"?")
    report = timerstore.verify(place)
    assert not report.ok and spoilt in {each.file for each in report.problems}
    with pytest.raises(CorruptStoreError, match=spoilt):
        kept.restore()
    assert not kept.restored.exists()
    salvaged = timerstore.salvage(place, tmp_path / "salvaged", clock=kept.clock)
    assert spoilt in {each.file for each in salvaged.files}
    assert 20 < salvaged.pending_count < 100 and salvaged.problems == ()
    change(place, spoilt, None)
    assert any(
        "missing" in each.reason or "no piece" in each.reason
        for each in timerstore.verify(place).problems
    )
    with pytest.raises(CorruptStoreError, match="no piece of the backup"):
        kept.restore()


def test_a_damaged_point_is_named(place: str, tmp_path: Path) -> None:
    kept = Kept(tmp_path, place)
    kept.put(10)
    for _ in range(2):
        kept.back_up()
    kept.store.close()
    last = [name for name in objects(place) if name.startswith("points/")][-1]
    change(place, last, find_destination(place).get(last)[:-4])
    with pytest.raises(CorruptStoreError, match=last):
        kept.restore()
    assert last in {each.file for each in timerstore.verify(place).problems}
    assert kept.restore(at_ms=START_MS + 1).pending_count == 10  # the point before is whole


def test_an_object_that_breaks_off_is_asked_for_again(tmp_path: Path) -> None:
    fails = list[str]()

    def watch(what: str, path: str) -> None:
        if what == "get" and path not in fails:
            fails.append(path)
            raise OSError("AWS Error INTERNAL_FAILURE: Failed to flush response stream")

    kept = Kept(tmp_path, watched_filesystem(tmp_path / "objects", watch))
    kept.put(100)
    kept.back_up()
    kept.store.close()
    assert kept.restore().pending_count == 100 and len(fails) > 3


def test_wherever_a_run_ends_earlier_points_are_whole(tmp_path: Path) -> None:
    """At each call of the file system; the next run goes on, and its point is whole."""
    left, seen = [1 << 30], list[str]()

    def watch(what: str, path: str) -> None:
        left[0] -= 1
        seen.append(f"{what} {path}")
        if left[0] < 0:
            raise OSError("the network is gone")

    filesystem = watched_filesystem(tmp_path / "objects", watch)
    kept = Kept(tmp_path, filesystem)
    kept.put(60)
    for number in range(1, 60):
        kept.put(2)
        left[0] = number
        is_done = False
        with suppress(StoreAccessError):
            kept.back_up(keep=3)
            is_done = True
        left[0] = 1 << 30
        try:
            points = timerstore.backup_points(filesystem)
        except NotAStoreError:
            assert number < 12
            continue
        if points:
            assert timerstore.verify(filesystem).ok, seen[-10:]
        if is_done:
            break
    assert is_done and number > 10
    kept.store.close()
    assert kept.restore().pending_count == 60 + 2 * number


def test_a_file_system_of_any_kind(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    filesystem = SubTreeFileSystem(str(tmp_path / "objects"), LocalFileSystem())
    assert isinstance(filesystem, FileSystem)
    kept = Kept(tmp_path, filesystem)
    kept.put(5)
    kept.back_up()
    kept.store.close()
    assert timerstore.verify(filesystem).ok
    assert timerstore.backup_points(tmp_path / "objects")[0].number == 1  # however it is named
    assert kept.restore().pending_count == 5


def test_addresses_that_are_refused(tmp_path: Path) -> None:
    for address, why in (
        ("s3://key:secret@bucket/timers", "password"),
        ("nothing://bucket/timers", "cannot read the address"),
        ("s3:///timers?x=1", "cannot read the address"),
        ("s3:///", "cannot read the address"),
        ("s3://bucket/a/../timers", "are no folders"),
        ("file:relative", "holds no commit log|No such|no backup"),
    ):
        with pytest.raises((InvalidArgumentError, NotAStoreError), match=why) as caught:
            timerstore.backup_points(address)
        assert "secret" not in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="Pass a str"):
        find_place(5)
    path = tmp_path / "store"
    timerstore.open(path, config=TINY).close()
    with pytest.raises(InvalidArgumentError, match="lies inside the other"):
        timerstore.backup(path, f"file://{path}/objects")
    with pytest.raises(NotAStoreError, match="holds no backup"):
        timerstore.backup_points(f"file://{tmp_path}/nothing")


def test_one_of_two_that_begin_at_once(tmp_path: Path) -> None:
    """Who sees another's claim gives up; who wrote before is refused."""
    dest = find_destination(f"file://{tmp_path}/objects")
    first = claim_chain(dest, 0)
    with pytest.raises(StoreLockedError, match="at the same moment"):
        claim_chain(dest, 0)
    assert dest.names("chains") == [f"{first[0]:08d}-{first[1]}.claim"]
    second = claim_chain(dest, first[0])
    assert second[0] == 2


def test_a_store_that_was_taken_over_is_refused(tmp_path: Path) -> None:
    """A claim that comes between its pieces and its point: the point is not written."""
    claimed = list[tuple[int, str]]()

    def watch(what: str, path: str) -> None:
        if what == "put" and path.startswith("log/00000001/") and kept.taken and not claimed:
            claimed.append((0, ""))
            claimed[0] = claim_chain(Destination(quiet, "", "there"), 1)

    kept = Kept(tmp_path, watched_filesystem(tmp_path / "objects", watch))
    kept.taken = False  # type: ignore[attr-defined]
    quiet = watched_filesystem(tmp_path / "objects", lambda what, path: None)
    kept.put(5)
    kept.back_up()
    kept.put(5)
    kept.taken = True  # type: ignore[attr-defined]
    with pytest.raises(StoreLockedError, match="taken over"):
        kept.back_up()
    kept.store.close()
    assert len(timerstore.backup_points(quiet)) == 1


@pytest.mark.slow
def test_the_shell(run: Run, s3: str, tmp_path: Path) -> None:
    path, place = tmp_path / "timers", s3
    with timerstore.open(path, config=TINY) as store:
        store.put(b"first", delay=timedelta(hours=1))
        assert "point 1 of 1" in run("backup", path, place).output
        store.put(b"second", delay=timedelta(hours=1))
        assert "point 2 of 2" in run("backup", path, place, "--keep", 2).output
    assert run("restore", place).stdout.count("\n") == 2
    assert "second" in run("pending", place).output
    assert "no damage" in run("verify", place).output
    assert "2 timers pending" in run("restore", place, tmp_path / "new").output
    assert "2 messages were whole" in run("salvage", place, tmp_path / "salvaged").output
    assert "no backup" in run("verify", f"{place}/nothing", exits=3).output


def test_what_takes_folders_alone_says_what_to_do(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = "s3://bucket/timers"
    calls: list[Callable[[Any], Any]] = [
        timerstore.open,
        timerstore.connect,
        lambda path: timerstore.restore(tmp_path, path),
        lambda path: timerstore.backup(path, tmp_path / "backup"),
        lambda path: Standby(path, find_destination(tmp_path), "there"),
    ]
    for call in calls:
        for path in (place, Path(place)):
            with pytest.raises(InvalidArgumentError, match="timerstore restore s3://bucket/timers"):
                call(path)
    for call in (timerstore.read, lambda path: timerstore.open(path, read_only=True)):
        with pytest.raises(InvalidArgumentError, match="timerstore restore s3://bucket/timers"):
            call(Path(place))  # they take an address, which is no path
    with pytest.raises(InvalidArgumentError, match="folder itself"):
        timerstore.open(f"file://{tmp_path}/store")
    for command in (("info", place), ("get", place, "x"), ("validate", place)):
        assert "timerstore restore" in run(*command, exits=2).output
    assert list(tmp_path.iterdir()) == []
