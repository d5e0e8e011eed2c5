"""Rebuilding: which index is to be made anew, said durably, tried until it opens."""

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from timerstore.errors import CorruptStoreError
from timerstore.services.engine.rebuild import (
    MARK_FILE,
    QUEUES,
    TIMERS,
    Place,
    find_missing,
    index_of,
    open_rebuilding,
    read_mark,
    remove_mark,
    write_mark,
)
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.disk import Disk

BOTH = frozenset((TIMERS, QUEUES))


def make(path: Path) -> Path:
    """The files of a store that was in use, as far as rebuilding looks at them."""
    for folder in ("commitlog", "config", "timerlog", "consumequeue/t/0"):
        (path / folder).mkdir(parents=True)
    for name in ("commitlog/0", "config/timercheck", "timerlog/0", "consumequeue/t/0/0"):
        (path / name).write_bytes(b"x")
    (path / "timerwheel").write_bytes(b"x")
    return path


@pytest.mark.parametrize(
    ("file", "index"),
    [
        ("timerlog", TIMERS),
        ("timerwheel", TIMERS),
        ("consumequeue/a/0", QUEUES),
        ("commitlog", None),
        ("config/timercheck", None),
        ("timerlogs", None),
    ],
)
def test_what_can_be_made_anew(file: str, index: str | None) -> None:
    assert index_of(file) == index


def test_marks_join_until_they_are_removed(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    disk = QuietDisk()
    assert read_mark(Disk().read, tmp_path) == frozenset()
    write_mark(disk, tmp_path, frozenset((TIMERS,)))
    write_mark(disk, tmp_path, frozenset((QUEUES,)))
    assert read_mark(Disk().read, tmp_path) == BOTH
    remove_mark(disk, tmp_path)
    remove_mark(disk, tmp_path)
    assert read_mark(Disk().read, tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("{", BOTH),  # damaged: it may have named either
        ('{"rebuild": ["timer index", "what a later version knows"]}', {TIMERS}),
        ('{"rebuild": 5}', set()),
        ("{}", set()),
    ],
)
def test_a_mark_that_is_not_ours(tmp_path: Path, content: str, wanted: set[str]) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / MARK_FILE).write_text(content)
    assert read_mark(Disk().read, tmp_path) == wanted


@pytest.mark.parametrize(
    ("gone", "missing"),
    [
        ([], set()),
        (["timerwheel"], set()),  # its slots are made of the units
        (["timerlog/0", "timerlog"], {TIMERS}),
        (["consumequeue/t/0/0", "consumequeue/t/0", "consumequeue/t", "consumequeue"], {QUEUES}),
        (["timerlog/0", "timerlog", "config/timercheck"], set()),  # it was never in use
        (["timerlog/0", "timerlog", "commitlog/0"], set()),  # nothing can be made from it
    ],
)
def test_what_is_gone_of_a_store_that_was_in_use(
    tmp_path: Path, gone: list[str], missing: set[str]
) -> None:
    path = make(tmp_path)
    for name in gone:
        each = path / name
        each.rmdir() if each.is_dir() else each.unlink()
    assert find_missing(Disk(), path) == missing


def attempts(*damaged: str) -> tuple[list[frozenset[str]], Callable[..., tuple[Place, ...]]]:
    """What each attempt was told, and an attempt that finds this damage, one after the other."""
    told: list[frozenset[str]] = []

    def attempt(wanted: frozenset[str], places: tuple[Place, ...]) -> tuple[Place, ...]:
        told.append(wanted)
        if len(told) <= len(damaged):
            raise CorruptStoreError(damaged[len(told) - 1], 52, "it is damaged")
        return places

    return told, attempt


def test_it_is_tried_again_without_what_is_damaged(tmp_path: Path) -> None:
    path = make(tmp_path)
    told, attempt = attempts("timerlog", "consumequeue/t/0")
    places = open_rebuilding(path, QuietDisk(), attempt)
    assert told == [frozenset(), {TIMERS}, BOTH]
    assert [place.file for place in places] == ["timerlog", "consumequeue/t/0"]
    assert not list(path.glob("timerlog/*")) and not (path / "timerwheel").exists()
    assert not list(path.glob("consumequeue/*/*/*")) and (path / "commitlog/0").exists()
    assert json.loads((path / MARK_FILE).read_text())["rebuild"] == sorted(BOTH)


def test_whoever_was_killed_begins_again(tmp_path: Path) -> None:
    path = make(tmp_path)
    write_mark(QuietDisk(), path, frozenset((QUEUES,)))
    told, attempt = attempts()
    assert open_rebuilding(path, QuietDisk(), attempt) == ()
    assert told == [{QUEUES}]


@pytest.mark.parametrize("damaged", [["commitlog"], ["timerlog", "timerwheel"]])
def test_what_cannot_be_made_anew_is_an_error(tmp_path: Path, damaged: list[str]) -> None:
    """The commit log; or an index that is damaged though it was just made."""
    path = make(tmp_path)
    told, attempt = attempts(*damaged)
    with pytest.raises(CorruptStoreError, match=damaged[-1]):
        open_rebuilding(path, QuietDisk(), attempt)
    assert len(told) == len(damaged) and (path / "commitlog/0").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["crashed", "fired"])
@pytest.mark.parametrize("gone", [("timerlog", "timerwheel"), ("consumequeue",)])
def test_what_a_broker_has_fired_is_known_also_after_a_kill(
    golden: Callable[[str], Path], name: str, gone: tuple[str, ...]
) -> None:
    """Its copies do not name their sources: whoever is killed after a rebuild rebuilds again."""
    path, clock = golden(name), timerstore.ManualClock(1_795_251_296_000, force=True)
    with timerstore.open(path, read_only=True, clock=clock) as view:
        expected = sorted(timer.id for timer in view.pending())
    for each in gone:
        shutil.rmtree(path / each) if (path / each).is_dir() else (path / each).unlink()
    store = timerstore.open(path, clock=clock)
    fired = set(expected) - {timer.id for timer in store.pending()}
    for _ in range(2):
        store.abandon()
        store = timerstore.open(path, clock=clock)
        assert fired | {timer.id for timer in store.pending()} == set(expected)
    assert read_mark(Disk().read, path) == {TIMERS} or "timerlog" not in gone
    clock.advance(timedelta(seconds=2))
    store.flush()
    assert not read_mark(Disk().read, path)
    store.close()
