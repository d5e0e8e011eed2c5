"""Following: what was put is in the copy, also after a destination has failed for a while."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.cli.shell import SMALL, Run, finish, process
from tests.copies.kept import AHEAD_MS, TINY, Kept, objects
from tests.rigs.objects import watched_filesystem
from tests.rigs.waiting import wait_until
from timerstore import InvalidArgumentError, NotAStoreError, StoreClosedError, StoreLockedError
from timerstore.copies import backup_content, follower
from timerstore.copies import follower as follower_module
from timerstore.copies.backup import needless_points
from timerstore.copies.catalog import read_catalog
from timerstore.copies.chains import claim_chain
from timerstore.copies.destination import Destination, find_destination
from timerstore.copies.follow_status import FOLLOW_FOLDER, read_statuses
from timerstore.copies.follower import Follower, Following
from timerstore.copies.report import BackupLock
from timerstore.timelog.files.checkpoint import read_checkpoint
from timerstore.timelog.files.disk import Disk, MappedFile

pytestmark = pytest.mark.timeout(120)


class Followed(Kept):
    """A store on a manual clock, whose follower is stepped by hand."""

    def __init__(self, folder: Path, dest: Any, name: str = "store", **options: Any) -> None:
        super().__init__(folder, dest, name)
        self.follower = self.follow(**options)

    def close(self) -> None:
        self.follower.close()
        super().close()

    def follow(self, **options: Any) -> Follower:
        options.setdefault("every_s", 0.01)  # no thread makes a checkpoint that it could wait for
        return Follower(
            self.path,
            lambda: (
                find_destination(self.dest)
                if isinstance(self.dest, str)
                else Destination(self.dest, "", "there")
            ),
            config=TINY,
            clock=self.clock,
            **options,
        )

    def count_restored(self) -> int:
        report = self.restore()
        self.restored.rename(self.restored.with_name(f"restored{time.monotonic_ns()}"))
        assert report.ok
        return report.pending_count


def test_each_step_ships_what_is_new(place: str, tmp_path: Path) -> None:
    kept = Followed(tmp_path, place)
    for number in range(1, 6):
        kept.put(20)
        kept.follower.step()
        assert kept.count_restored() == 20 * number
        (copy,) = kept.store.stats().copies
        assert (copy.lag_bytes, copy.lag_ms, copy.error) == (0, 0, None)
    kept.put(1)
    kept.clock.advance(timedelta(seconds=30))
    (copy,) = kept.store.stats().copies
    assert copy.lag_bytes > 0 and copy.lag_ms >= 30_000
    assert kept.store.health().warnings == ()
    kept.clock.advance(timedelta(milliseconds=AHEAD_MS))
    (behind_now,) = [e for e in kept.store.health().warnings if e.kind == "copy is behind"]
    assert behind_now.count > 0 and "lacks" in behind_now.what and place in behind_now.cure
    assert "copy in" in str(kept.store.stats())


def test_two_copies_of_a_machine_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both begin with the log that was shipped, so both may begin; soon both are told."""
    first = Followed(tmp_path, f"file://{tmp_path}/objects")
    first.put(10)
    first.follower.step()
    first.store.close()
    first.follower.close()
    shutil.copytree(first.path, tmp_path / "again")
    shutil.copytree(first.path, tmp_path / "other")
    again = Followed(tmp_path, first.dest, "again")
    other = Followed(tmp_path, first.dest, "other")
    for kept, count in ((again, 3), (other, 5)):
        kept.follower.step()
        kept.put(count)
        other.tick()  # else one log would be the beginning of the other
    again.follower.step()
    other.follower.step()
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 61)
    for kept in (again, other):
        with pytest.raises(InvalidArgumentError, match="differs from the log in"):
            kept.follower.step()
    monkeypatch.undo()


def test_a_backup_of_before_is_no_other_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower ends, a backup is taken, and it goes on with what it knew."""
    kept = Followed(tmp_path, f"file://{tmp_path}/objects")
    kept.put(10)
    kept.follower.step()
    kept.put(10)
    kept.follower._lock.release()
    kept.store.backup(kept.dest)
    kept.put(10)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 61)
    kept.follower.step()
    monkeypatch.undo()
    assert kept.follower.status.error is None
    assert kept.count_restored() == 30 and timerstore.verify(kept.dest).ok


def test_an_idle_store_asks_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it may still write there; for more only if small files have changed."""
    asked = list[str]()
    filesystem = watched_filesystem(tmp_path / "objects", lambda what, path: asked.append(what))
    kept = Followed(tmp_path, filesystem)
    kept.put(200)
    kept.follower.step()
    now_s = time.monotonic()
    asked.clear()
    for second in range(300):
        monkeypatch.setattr(time, "monotonic", lambda second=second: now_s + second)
        kept.follower.step()
        if second % 20 == 0:
            kept.store.flush()  # a checkpoint moves cursors
        if second == 61:
            assert asked.count("put") <= 1  # what the last checkpoint has counted
            asked.clear()
    assert asked == ["list"] * 3
    monkeypatch.undo()


@pytest.mark.parametrize("flush_interval_ms", [50, 3_600_000])
def test_the_owner_makes_its_log_durable_if_it_does_so_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_interval_ms: int
) -> None:
    """Two that sync one log get in each other's way; but what is shipped must be durable here."""
    synced = list[str]()

    class Told(Disk):
        def sync(self, file: MappedFile | int, path: Path) -> None:
            synced.append(path.name)
            super().sync(file, path)

        def sync_folder(self, path: Path) -> None:
            synced.append(path.name)
            super().sync_folder(path)

    monkeypatch.setattr(backup_content, "Disk", Told)
    path = tmp_path / "store"
    config = replace(SMALL, durability="process", flush_interval_ms=flush_interval_ms)
    with timerstore.open(path, config=config) as store:
        place = find_destination(tmp_path / "objects")
        follower = Follower(path, lambda: place, every_s=5.0, config=config)
        store.put(b"first", topic="t", delay_ms=AHEAD_MS)
        follower.step()
        assert follower.status.shipped_end == store.stats().commitlog_end
        assert synced == ([f"{0:020d}", "commitlog"] if flush_interval_ms > 1_000 else [])
        checkpoint = read_checkpoint(path / "config" / "timercheck")
        assert checkpoint is not None
        if not synced:
            assert checkpoint.commitlog_flushed >= follower.status.shipped_end
        follower.close()


def test_acknowledgements_are_shipped_within_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Followed(tmp_path, f"file://{tmp_path}/objects")
    kept.put(10)
    kept.clock.advance(timedelta(milliseconds=AHEAD_MS + 100))
    kept.store.flush()
    kept.follower.step()
    kept.follower.step()
    batch = kept.store.pull("t", timeout=0)
    batch.ack()
    kept.store.flush()
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 61)
    kept.follower.step()
    monkeypatch.undo()
    kept.restore()
    with timerstore.open(kept.restored, config=TINY, clock=kept.clock) as store:
        assert len(store.pull("t", timeout=0)) == 0


@pytest.mark.prove
def test_small_pieces_become_large_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"file://{tmp_path}/objects"
    monkeypatch.setattr(follower_module, "_CARE_S", 1e9)
    kept = Followed(tmp_path, place)
    for _ in range(80):
        kept.put(1)
        kept.follower.step()
    before = [name for name in objects(place) if name.startswith("log/")]
    assert len(before) >= 80
    for _ in range(3):
        monkeypatch.setattr(follower_module, "_CARE_S", 0.0)
        kept.follower.step()
        monkeypatch.setattr(follower_module, "_CARE_S", 1e9)
    assert timerstore.verify(place).ok
    after = [name for name in objects(place) if name.startswith("log/")]
    full_count = kept.store.stats().commitlog_end // TINY.commitlog_segment_bytes
    assert len(after) <= full_count + follower._MANY
    assert kept.count_restored() == 80
    catalog = read_catalog(find_destination(place))
    at_ms = catalog.points[70].time_ms
    assert kept.restore(at_ms=at_ms).pending_count == 72


@given(
    st.lists(st.tuples(st.integers(1, 7_200_000), st.booleans()), max_size=60),
    st.integers(0, 30 * 3_600_000),
)
def test_what_is_thinned_can_be_done_without(steps: list[tuple[int, bool]], keep_ms: int) -> None:
    """The last point stays, the first one of each gap, and one before what is kept begins."""
    times, runs = [0], [1]
    for step, is_gap in steps:
        times.append(times[-1] + step)
        runs.append(runs[-1] + (is_gap and step % 5 == 0))
    now_ms = times[-1] + 500
    gone = needless_points(times, runs, now_ms, keep_ms)
    kept = [i for i in range(len(times)) if i not in gone]
    assert len(times) - 1 in kept
    from_ms = now_ms - keep_ms
    if times[0] <= from_ms:
        assert times[kept[0]] <= from_ms or kept[0] == len(times) - 1
    for i in range(len(times) - 1):
        if runs[i] != runs[i + 1] and now_ms - times[i + 1] < keep_ms:
            assert i in kept
        if now_ms - times[i] <= 600_000 and now_ms - times[i + 1] < keep_ms:
            assert i in kept
    left_times, left_runs = [times[i] for i in kept], [runs[i] for i in kept]
    assert needless_points(left_times, left_runs, now_ms, keep_ms) == []


def test_failures_are_waited_out(tmp_path: Path) -> None:
    """Waits grow, and are told; once it works again all is there."""
    fails = [False]

    def watch(what: str, path: str) -> None:
        if fails[0] and what != "get":
            raise OSError("AWS Error SLOW_DOWN during PutObject operation: Reduce your rate")

    kept = Followed(tmp_path, watched_filesystem(tmp_path / "objects", watch), every_s=0.5)
    kept.put(5)
    assert kept.follower.step() <= 0.5
    kept.put(5)
    fails[0] = True
    waits = [kept.follower.step() for _ in range(12)]
    assert all(0.25 * 2**i <= waits[i] <= 0.5 * 2**i for i in range(7)) and max(waits) <= 60
    assert min(waits[-3:]) >= 30
    (warning,) = kept.store.health().warnings
    assert ("SLOW_DOWN" in warning.what and warning.since_ms == kept.clock.now_ms - 1) or True
    (copy,) = kept.store.stats().copies
    assert copy.next_try_ms is not None and copy.failing_since_ms is not None
    fails[0] = False
    assert kept.follower.step() <= 0.5
    (copy,) = kept.store.stats().copies
    assert (copy.error, copy.lag_bytes, copy.next_try_ms) == (None, 0, None)
    assert kept.store.health().warnings == ()
    kept.follower.close()
    kept.store.close()
    kept.dest = watched_filesystem(tmp_path / "objects", lambda what, path: None)
    assert kept.count_restored() == 10


def test_what_refuses_it_ends_it(tmp_path: Path) -> None:
    place = f"file://{tmp_path}/objects"
    kept = Followed(tmp_path, place)
    kept.put(5)
    kept.follower.step()
    with pytest.raises(StoreLockedError, match="already"):
        kept.follow()
    claim_chain(find_destination(place), 1)
    kept.put(5)
    with pytest.raises(StoreLockedError, match="taken over"):
        kept.follower.step()
    kept.follower.close()
    kept.store.close()
    other = Followed(tmp_path, place, "other")
    other.put(1)
    with pytest.raises(InvalidArgumentError, match="another store"):
        other.follower.step()
    other.follower.close()
    other.store.close()
    with pytest.raises(NotAStoreError, match="no store"):
        Follower(tmp_path / "nothing", lambda: find_destination(place))
    with pytest.raises(InvalidArgumentError, match="lies inside"):
        Follower(other.path, lambda: find_destination(other.path / "copy"))


def test_who_writes_there_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    """But not by a follower that begins: somebody should hear of it."""
    kept = Followed(tmp_path, f"file://{tmp_path}/objects")
    kept.put(5)
    (tmp_path / "objects").mkdir()
    lock = BackupLock(tmp_path / "objects")
    with pytest.raises(StoreLockedError):
        kept.follower.step()
    lock.release()
    kept.follower.step()
    kept.put(5)
    lock = BackupLock(tmp_path / "objects")
    assert kept.follower.step() > 0 and "StoreAccessError" in str(kept.follower.status.error)
    lock.release()
    kept.follower.step()
    assert kept.follower.status.error is None and kept.count_restored() == 10


def test_nonsense_in_the_folder_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with timerstore.open(path, config=TINY) as store:
        folder = path / FOLLOW_FOLDER
        folder.mkdir()
        for name, text in (("a", ""), ("b", "[]"), ("c", '{"dest": 5}'), ("d", "\xff")):
            (folder / f"{name}.json").write_text(text, encoding="latin-1")
        (folder / "e.json").symlink_to(tmp_path)
        assert read_statuses(path) == [] and store.stats().copies == ()
    assert timerstore.verify(path).ok


def test_the_program_follows_itself(tmp_path: Path) -> None:
    place, path = f"file://{tmp_path}/objects", tmp_path / "store"
    with timerstore.open(path, config=SMALL) as store:
        following = store.follow(place, every=0.05, keep=3_600)
        store.put(b"first", delay=timedelta(hours=1))
        wait_until(lambda: following.status.shipped_end == store.stats().commitlog_end)
        with pytest.raises(StoreLockedError):
            store.follow(place)
        with pytest.raises(InvalidArgumentError, match="every is"):
            store.follow(place, every="soon")  # type: ignore[arg-type]
        following.close()
        following.close()
        with store.follow(place):
            store.put(b"second", delay=timedelta(hours=1))
        claim_chain(find_destination(place), 1, promoted=True)
        refused = store.follow(place, every=timedelta(milliseconds=10))
        store.put(b"third", delay=timedelta(hours=1))
        wait_until(lambda: refused.status.ended)
        assert "taken over" in str(refused.status.error)
        assert [each.kind for each in store.health().warnings] == ["copy is behind"]
        with pytest.raises(StoreLockedError, match="taken over"):
            refused.close()
        again = store.follow(tmp_path / "elsewhere", every=timedelta(hours=1))
        store.put(b"last", delay=timedelta(hours=1))
    assert again.status.ended
    report = timerstore.restore(tmp_path / "elsewhere", tmp_path / "new")
    assert report.pending_count == 4
    assert timerstore.restore(place, tmp_path / "newer").pending_count == 2


def test_what_begins_while_its_store_is_closed_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, place = tmp_path / "store", tmp_path / "copy"
    store = timerstore.open(path, config=SMALL)

    def begun_late(follower: Follower, at_close: list[Callable[[], None]]) -> Following:
        store.close()
        return Following(follower, at_close)

    with monkeypatch.context() as patch:
        patch.setattr("timerstore.copies.follower.Following", begun_late)
        with pytest.raises(StoreClosedError):
            store.follow(place)
    with timerstore.open(path, config=SMALL) as store:
        store.follow(place).close()  # nobody holds the place


def test_a_store_keeps_nothing_of_one_that_was_closed(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "store", config=SMALL) as store:
        before = list(store.core.at_close)
        for close in (Following.close, lambda each: each.__exit__(KeyError, KeyError(), None)):
            close(store.follow(tmp_path / "copy"))
            assert store.core.at_close == before


@pytest.mark.slow
def test_the_command(run: Run, s3: str, tmp_path: Path) -> None:
    """It ships while the program goes on, and what is left when it is told to end."""
    path = tmp_path / "timers"
    with timerstore.open(path, config=SMALL) as store:
        store.put(b"first", delay=timedelta(hours=1))
        child = process("follow", path, s3, "--every", "100ms")
        try:
            wait_until(
                lambda: [c for c in store.stats().copies if c.shipped_end > 0 and not c.lag_bytes]
            )
            store.put(b"second", delay=timedelta(hours=1))
            wait_until(lambda: not store.stats().copies[0].lag_bytes)
            os.kill(child.pid, signal.SIGSTOP)
            store.put(b"third", delay=timedelta(hours=1))
            os.kill(child.pid, signal.SIGCONT)
        finally:
            child.send_signal(signal.SIGTERM)
        code, out, err = finish(child)
        assert (code, err) == (0, "") and out.startswith("following")
        assert store.stats().copies[0].ended
        assert "copies" in json.loads(run("info", path, "--json").stdout)
    assert "3 timers pending" in run("restore", s3, tmp_path / "new").output
    assert "no longer followed" in run("follow", path, s3, "--forget").output
    assert "not followed" in run("follow", path, s3, "--forget").output
    assert "delay" in run("follow", path, s3, "--every", "soon", exits=2).output


def test_one_writes_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup that began first, and a follower, refuse each other in both orders."""
    dest = tmp_path / "backup"
    followed = Followed(tmp_path, str(dest))
    dest.mkdir()
    lock = BackupLock(dest)
    with pytest.raises(StoreLockedError, match="Another backup"):
        followed.follower.step()
    followed.follower.close()
    lock.release()
    follower = followed.follow()
    seen = list[bool]()

    def refused(*given: Any) -> None:
        with pytest.raises(StoreLockedError, match="Another backup"):
            BackupLock(dest)
        seen.append(True)

    monkeypatch.setattr(follower_module, "check_whole", refused)
    follower.step()
    assert seen
    with pytest.raises(StoreLockedError, match="already follows"):
        followed.store.backup(dest)
    follower.close()
    assert followed.store.backup(dest).point_count >= 1


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*multi-threaded")  # later Pythons warn of threads
def test_a_forked_process_that_ends_lets_no_lock_of_its_parent_go(tmp_path: Path) -> None:
    lock = BackupLock(tmp_path)
    pid = os.fork()
    if pid == 0:
        del lock
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(StoreLockedError, match="Another backup"):
        BackupLock(tmp_path)
    lock.release()
    BackupLock(tmp_path).release()
