"""Segments that are missing, cut short, or too many: whoever reads a store comes to an end."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests import table_stores
from tests.sparse_copy import copy_tree
from tests.table_stores import exported_rows
from tests.tiers import some
from timerstore import CorruptStoreError, ManualClock, TimerStore, TimerStoreError, verify
from timerstore.tables import TABLES, read_table
from timerstore.testing.disk import QuietDisk
from timerstore.validation import validate

pytestmark = pytest.mark.slow

START_MS = 1_800_000_000_000
CONFIG = table_stores.SMALL
LOGS = {
    "commitlog": 4_096,
    "timerlog": 520,
    "consumequeue/rmq_sys_wheel_timer/0": 200,
    "consumequeue/default/0": 200,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store with several segments of each log, closed and as a kill leaves it."""
    paths = {}
    for end in ("closed", "killed"):
        path = paths[end] = tmp_path_factory.mktemp("made") / end
        clock = ManualClock(START_MS)
        store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
        delays = [(i % 20) * 500 for i in range(90)]
        ids = store.put_many([b"body %d" % i for i in range(90)], delay_ms=delays)
        store.put(b"far", delay=timedelta(seconds=25))
        store.cancel_many(ids[13::20])
        clock.advance(timedelta(seconds=4))
        store.close() if end == "closed" else store.abandon()
    return paths


def remove(file: Path, segment_bytes: int) -> None:
    file.unlink()


def cut_in_half(file: Path, segment_bytes: int) -> None:
    file.write_bytes(file.read_bytes()[: segment_bytes // 2])


def empty(file: Path, segment_bytes: int) -> None:
    file.write_bytes(b"")


def add_far_behind(file: Path, segment_bytes: int) -> None:
    """One more, with a gap before it."""
    last = max(int(each.name) for each in file.parent.iterdir())
    shutil.copy(file, file.parent / f"{last + 3 * segment_bytes:020d}")


def come_to_an_end(look: Callable[[], object]) -> object:
    """Whatever is found: it returns, or says what is wrong."""
    try:
        return look()
    except TimerStoreError as e:
        return e


@pytest.mark.timeout(60, method="signal")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("log", "which", "change", "end"),
    some(
        (
            (log, which, *change)
            for log in LOGS
            for which in ("first", "middle", "last used")
            for change in (
                (remove, "closed"),
                (remove, "killed"),
                (cut_in_half, "closed"),
                (empty, "killed"),
                (add_far_behind, "closed"),
            )
        ),
        7,
    ),
)
def test_every_reader_comes_to_an_end(
    made: dict[str, Path],
    log: str,
    which: str,
    change: Callable[[Path, int], None],
    end: str,
    tmp_path: Path,
) -> None:
    path = copy_tree(made[end], tmp_path / "s")
    files = sorted(each for each in (path / log).iterdir() if any(each.read_bytes()))
    assert len(files) >= 3, files
    file = files[{"first": 0, "middle": len(files) // 2, "last used": -1}[which]]
    change(file, LOGS[log])
    come_to_an_end(lambda: verify(path, config=CONFIG))
    come_to_an_end(lambda: validate(path))
    come_to_an_end(lambda: exported_rows(path, "messages", config=CONFIG))
    come_to_an_end(lambda: exported_rows(path, "pending", config=CONFIG))
    for table in TABLES:
        come_to_an_end(lambda name=table: list(read_table(path, name, upto="end")))
    for read_only in (True, False):
        come_to_an_end(lambda only=read_only: open_and_fire(path, read_only=only))


def open_and_fire(path: Path, *, read_only: bool) -> None:
    clock = ManualClock(START_MS + 4_000)
    with timerstore.open(path, read_only=read_only, config=CONFIG, clock=clock) as store:
        list(store.pending())
        if not read_only:
            clock.advance(timedelta(seconds=60))
            while store.pull("default", timeout=0):
                pass


@pytest.mark.timeout(60, method="signal")
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("count", [1, 2, None])
def test_what_is_missing_before_the_first_is_found(
    made: dict[str, Path], count: int | None, end: str, tmp_path: Path
) -> None:
    """None of it could go, for nobody has consumed it; `None`: all but what was made ahead."""
    path, aside = copy_tree(made[end], tmp_path / "s"), tmp_path / "aside"
    used = sorted(each for each in (path / "commitlog").iterdir() if any(each.read_bytes()))
    shutil.copy(used[-1], ahead := used[-1].parent / f"{int(used[-1].name) + 4_096:020d}")
    ahead.write_bytes(bytes(4_096))
    aside.mkdir()
    for file in used[:count]:
        file.rename(aside / file.name)
    clock = ManualClock(START_MS + 4_000)
    for read_only in (False, True) if end == "closed" else (False,):
        with pytest.raises(CorruptStoreError, match="this segment is missing") as caught:
            timerstore.open(path, read_only=read_only, config=CONFIG, clock=clock)
        assert caught.value.offset == 0
    assert not verify(path, config=CONFIG).ok
    rest = timerstore.salvage(path, tmp_path / "rest", config=CONFIG)
    assert (rest.lost[0].offset, rest.lost_bytes >= 4_096) == (0, True)
    with timerstore.open(tmp_path / "rest", read_only=True, config=CONFIG) as store:
        assert store.count() == rest.pending_count
    for file in aside.iterdir():
        file.rename(path / "commitlog" / file.name)
    with timerstore.open(path, config=CONFIG, clock=clock) as store:
        offsets = [int(timer.id[12:24], 16) for timer in store.pending()]
    assert verify(path, config=CONFIG).ok
    # Where a timer has hopped its message lies in the log where it was put.
    behind = [each for each in offsets if each >= 4_096 * (count or len(used))]
    assert rest.pending_count == len(behind) < len(offsets)
