"""Wrong values in a store's JSON files, or a standby's: errors of ours, or a report.

Each value of each file is replaced in turn by something of another type, too large, or a name that
leads elsewhere; checksums are made anew, for anyone can compute them. Whatever is read then raises
nothing but errors of ours, and nothing is touched outside the folders that were named.
"""

import json
import random
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.small_store import SMALL
from tests.sparse_copy import copy_tree
from tests.test_wrong_files import START_MS, look
from tests.tiers import PROVING
from timerstore.cli.import_rows import Progress, read_progress, write_progress
from timerstore.copies.catalog import point_object, read_catalog
from timerstore.copies.destination import find_destination
from timerstore.copies.promote import promote
from timerstore.copies.standby import Standby
from timerstore.timelog.files.jsonfile import sealed
from timerstore.timelog.files.names import is_small_file, number_of, segment_offset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

WRONG: list[Any] = [
    *(None, True, -1, 0, 1.5, float("inf"), 1 << 62, 1 << 80, "", "7", "../evil", "a\0b", "\ud800"),
    *([], [1], [[]], {}, {"a": 1}, {"../evil": {"count": 0}}, {"../evil@g": {"0": 1}}, ["x", -5]),
]
SHARE = 0.12 if PROVING else 0.04
"""So much of all pairs of a value and a place is tried in a run; all of them by hand."""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has every JSON file, closed in order."""
    path, clock = tmp_path_factory.mktemp("store") / "s", timerstore.ManualClock(START_MS)
    with timerstore.TimerStore(path, config=SMALL, clock=clock) as store:
        store.put_many([b"a"] * 3, topic="t")
        store.put(b"e", topic="u", delay_level=1)
        store.put(b"e", topic="t", delay_level=17)
        store.put(b"f", topic="t", delay=timedelta(hours=1), key="k")
        clock.advance(timedelta(seconds=5))
        assert len(store.pull("u", timeout=10)) == 1
        next(iter(store.pull("t", group="g", timeout=0))).ack()
        store.pause("consuming", group="g", keep=True, duration=timedelta(days=1))
        store.get_key("t", "k")
    (path / "config" / "restored.json").write_text('{"restores": [{"log_end": 5, "name": "x"}]}')
    (path / "config" / "rebuild.json").write_text('{"rebuild": []}')
    return path


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in an object, and of each key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in pairs:
        yield (*at, name)
        if isinstance(value, dict):
            yield (*at, name, None)  # the key
        if isinstance(each, dict | list):
            yield from places(each, (*at, name))


def planted(value: Any, at: tuple[Any, ...], wrong: Any) -> Any:
    """Return an object with something else in a place."""
    if len(at) == 1:
        name, put = at[0], wrong
    elif len(at) == 2 and at[1] is None:
        name, put = None, wrong
    else:
        name, put = at[0], planted(value[at[0]], at[1:], wrong)
    if isinstance(value, list):
        return [put if i == name else each for i, each in enumerate(value)]
    if name is None:
        return {str(wrong) if k == at[0] else k: each for k, each in value.items()}
    return {k: put if k == name else each for k, each in value.items()}


def variants(content: dict[str, Any], seed: int, share: float) -> Iterator[dict[str, Any]]:
    chance = random.Random(seed)
    for at in list(places(content)):
        if at[0] == "checksum":
            continue
        for wrong in WRONG:
            if chance.random() < share:
                made = planted(content, at, wrong)
                yield sealed(made) if "checksum" in content else made


def use(path: Path) -> None:
    clock = timerstore.ManualClock(START_MS + 6_000)
    with timerstore.open(path, clock=clock) as store:
        store.get_key("t", "k")
        store.put(b"x", topic="t", key="other")
        store.pull("t", group="h", timeout=0).ack()
        assert store.stats().groups and store.health()


def read_only(path: Path) -> None:
    clock = timerstore.ManualClock(START_MS + 6_000)
    with timerstore.open(path, clock=clock, read_only=True) as store:
        assert len(list(store.pending())) == store.count()
        store.stats()


def names(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*")}


FILES = (
    *("timerstore.json", "config/consumerOffset.json", "config/delayOffset.json"),
    *("config/timermetrics", "config/timerstoreGroups.json", "config/switches.json"),
    *("config/restored.json", "config/rebuild.json"),
)
CALLS: list[Callable[[Path, Path], object]] = [
    lambda path, other: timerstore.verify(path),
    lambda path, other: read_only(path),
    lambda path, other: timerstore.backup(path, other / "b"),
    lambda path, other: timerstore.salvage(path, other / "v"),
    lambda path, other: use(path),
]


@pytest.mark.parametrize("name", FILES)
def test_whatever_a_file_says(closed: Path, tmp_path: Path, name: str) -> None:
    content = json.loads((closed / name).read_text())
    for number, wrong in enumerate(variants(content, zlib.crc32(name.encode()), SHARE)):
        folder = tmp_path / str(number)
        path = copy_tree(closed, folder / "s")
        (path / name).write_text(json.dumps(wrong))
        call = CALLS[number % len(CALLS)]
        look(path, lambda: call(path, folder))  # noqa: B023, called at once
        assert {each.name for each in folder.iterdir()} <= {"s", "b", "v", ".v.building"}, wrong
        assert not {each for each in names(folder) if "evil" in each}, wrong


@pytest.fixture
def kept(closed: Path, tmp_path: Path) -> Path:
    timerstore.backup(closed, tmp_path / "backup")
    timerstore.backup(closed, tmp_path / "backup")
    return tmp_path / "backup"


def test_whatever_a_standby_says(kept: Path, tmp_path: Path) -> None:
    standby = Standby(tmp_path / "standby", find_destination(kept), str(kept))
    standby.step()
    standby.close()
    content = json.loads((tmp_path / "standby" / "standby.json").read_text())
    for number, wrong in enumerate(variants(content, 1, 0.1)):
        path = copy_tree(tmp_path / "standby", tmp_path / str(number) / "standby")
        (path / "standby.json").write_text(json.dumps(wrong))
        look(path, lambda: timerstore.verify(path))  # noqa: B023
        look(path, lambda: promote(path, fenced=False))  # noqa: B023
        assert {each.name for each in (tmp_path / str(number)).iterdir()} == {"standby"}, wrong


@pytest.mark.parametrize("name", ["../evil", "config/../../evil", "x/y", "config", "config/", ".."])
def test_a_backup_names_no_file_outside(kept: Path, tmp_path: Path, name: str) -> None:
    refused(kept, tmp_path, name)


def test_a_backup_names_no_absolute_file(kept: Path, tmp_path: Path) -> None:
    refused(kept, tmp_path, str(tmp_path / "precious"))


def refused(kept: Path, tmp_path: Path, name: str) -> None:
    """Restore from a point that names a file, whose checksum is right."""
    catalog = read_catalog(find_destination(kept))
    point, chain = catalog.points[-1], catalog.chain
    assert chain is not None
    files = catalog.read_files(point) | {name: b"evil"}
    catalog.remove(point)
    catalog.dest.put(*point_object(point, files, chain.seed))
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    with pytest.raises(timerstore.CorruptStoreError, match="a store has no file"):
        timerstore.restore(kept, tmp_path / "restored")
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before


def test_names_that_only_look_like_numbers(closed: Path, tmp_path: Path) -> None:
    """`str.isdigit` is true of digits that `int` does not take, and of others than ours."""
    assert [number_of(each) for each in ("0", "12", "²", "٣", "012", "-1", "", "9" * 10)] == [
        *(0, 12, None, None, None, None, None, None)
    ]
    assert segment_offset("²" * 20) is None and segment_offset("9" * 20) is None
    assert not is_small_file("config/" + "x" * 256) and not is_small_file("config/a\0")
    for folder in (
        "commitlog",
        "timerlog",
        "consumequeue/t",
        "consumequeue/t/0",
        "config",
        "index",
    ):
        path = copy_tree(closed, tmp_path / folder.replace("/", "_"))
        (path / folder / ("²" * 20)).touch()
        (path / folder / "٣").mkdir()
        for call in CALLS:
            look(path, lambda: call(path, path.parent / folder))  # noqa: B023


def test_whatever_an_imports_progress_says(tmp_path: Path) -> None:
    file, path = tmp_path / "in.csv", tmp_path / "progress"
    file.touch()
    sha256 = "0" * 64
    new = Progress(sha256, {"topic": "t", "columns": {"due": "a"}}, START_MS, 0)
    write_progress(path, new)
    content, refused = json.loads(path.read_text()), 0
    for wrong in variants(content, 1, 1):
        path.write_text(json.dumps(wrong))
        try:
            found = read_progress(path, new, file)
            assert 0 <= found.done_count and 0 <= found.row_count and found.log_end >= -1
        except timerstore.InvalidArgumentError:
            refused += 1
    assert refused > 100
    path.write_text(json.dumps(content))
    assert read_progress(path, new, file) == new
