"""Backups and standbys read where they lie: the rows are those of the store."""

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.copies.kept import AHEAD_MS
from tests.copies.test_standby import Pair
from tests.sparse_copy import copy_tree
from timerstore import CorruptStoreError, NotAStoreError
from timerstore.copies.promote import promote
from timerstore.offline.export import export
from timerstore.pipeline import run as run_pipeline
from timerstore.tables import TABLES, find_stores
from timerstore.testing.damage import flip_bit
from timerstore.validation import validate

pytestmark = pytest.mark.timeout(120)

COUNT = 351
"""Timers that are pending in the store of `pair`."""
SAME = ("timers", "messages", "fired", "queues", "problems")
"""Tables that have the same rows; the indexes of a copy are made anew, so units lie elsewhere."""


@pytest.fixture(autouse=True)
def laid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder below which copies are laid down."""
    folder = tmp_path / "tmpdir"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def pair(place: str, tmp_path: Path) -> Pair:
    """A closed store, with its backup and a standby: pending, fired, cancelled timers."""
    made = Pair(tmp_path, place)
    store, clock = made.kept.store, made.kept.clock
    store.put_many([b"%d" % i for i in range(300)], topic="t", delay_ms=range(1, 301))
    clock.advance(timedelta(milliseconds=150))
    assert len(list(store.consume("t", group="g", timeout=0))) == 150
    made.ship(200)
    made.fetch()
    store.cancel(store.put(b"no", topic="t", delay_ms=AHEAD_MS))
    store.put(b"level", topic="u", delay_level=5)
    store.put(b"late", topic="u", delay=timedelta(days=30))
    made.kept.follower.close()
    store.close()
    timerstore.backup(made.kept.path, place)
    made.fetch()
    return made


def rows(table: Any) -> list[Any]:
    return sorted(map(repr, table.to_pylist()))


def where(pair: Pair, copy: str) -> Any:
    return pair.local if copy == "standby" else pair.place


@pytest.mark.parametrize("copy", ["backup", "standby"])
def test_every_table(pair: Pair, copy: str, laid: Path) -> None:
    place, pending = where(pair, copy), timerstore.read(pair.kept.path).num_rows
    assert pending == COUNT
    for table in TABLES:
        found = timerstore.read(place, table, body=table == "messages")
        assert found.num_rows or table == "problems"
        columns = [name for name in found.column_names if "unit_" not in name and name != "store"]
        columns = [name for name in columns if not name.startswith("slot_")]
        if table in SAME:
            expected = timerstore.read(pair.kept.path, table, columns)
            assert rows(found.select(columns)) == rows(expected), table
    assert timerstore.read(place, where="topic = 'u'").num_rows == 2
    with timerstore.open(place, read_only=True) as view:
        assert view.count() == COUNT
    assert not any(laid.iterdir())


@pytest.mark.parametrize("copy", ["backup", "standby"])
def test_who_else_reads_tables(pair: Pair, copy: str, tmp_path: Path, laid: Path) -> None:
    place = Path(str(where(pair, copy)).removeprefix("file://"))
    if not place.exists():
        pytest.skip("these take folders")
    assert validate(place).ok
    for row in run_pipeline({"a": place}, tmp_path / "out").stores:
        assert row.state == "sound", row
    export(place, "pending", tmp_path / "rows.jsonl")
    assert len((tmp_path / "rows.jsonl").read_bytes().splitlines()) == COUNT
    assert not any(laid.iterdir())


def test_several_at_once(pair: Pair, tmp_path: Path) -> None:
    """A pattern may lead to stores, backups, standbys; a row says which it is of."""
    folder = tmp_path / "several"
    folder.mkdir()
    copy_tree(pair.kept.path, folder / "a")
    copy_tree(pair.local, folder / "b")
    paths = [str(folder), str(folder / "*")]
    if not pair.place.startswith("s3"):
        copy_tree(Path(pair.place.removeprefix("file://")), folder / "c")
    names = [str(each) for each in sorted(folder.iterdir())]
    for path in paths:
        counts = timerstore.read(path, columns=["store", "id"])["store"].value_counts().to_pylist()
        assert {each["values"]: each["counts"] for each in counts} == dict.fromkeys(names, COUNT)
    both = timerstore.read([pair.place, str(pair.kept.path)], columns=["store"])
    assert both.num_rows == 2 * COUNT


def test_a_store_that_is_named_as_a_part_of_a_backup(pair: Pair, tmp_path: Path) -> None:
    folder = tmp_path / "stores"
    folder.mkdir()
    for name in ("chains", "log", "points"):
        copy_tree(pair.kept.path, folder / name)
    assert len(find_stores(folder).paths) == 3
    with pytest.raises(NotAStoreError, match="belong to no store"):
        timerstore.open(folder)


@pytest.mark.parametrize("act", [timerstore.read, validate])
def test_what_is_damaged(tmp_path: Path, laid: Path, act: Callable[[Any], object]) -> None:
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    pair.ship(40)
    pair.close()
    for file in sorted((tmp_path / "objects").rglob("*.zst")):
        copy = copy_tree(tmp_path / "objects", tmp_path / file.name)
        spoilt = copy / file.relative_to(tmp_path / "objects")
        flip_bit(spoilt, spoilt.stat().st_size // 2, 2)
        with pytest.raises(CorruptStoreError):
            act(copy)
    (tmp_path / "local" / "commitlog").mkdir(parents=True)
    (tmp_path / "local" / "standby.json").write_text("[]")
    with pytest.raises(CorruptStoreError):
        act(tmp_path / "local")
    assert not any(laid.iterdir())


def test_a_standby_is_read_while_it_is_fed(tmp_path: Path) -> None:
    """What is read is one of its points, whatever comes meanwhile."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    seen = list[int]()
    for number in range(1, 8):
        pair.ship(50)
        pair.fetch()
        seen.append(timerstore.read(pair.local).num_rows)
        assert seen[-1] == 50 * number
    pair.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pending", "crashed", "fired"])
def test_a_broker_s_store(
    tmp_path: Path, name: str, golden_unpacked: Callable[[str], Path]
) -> None:
    """Its files do not say how it was made; the backup does, and so does a standby."""
    path, place = golden_unpacked(name), str(tmp_path / "objects")
    timerstore.backup(path, place)
    with timerstore.open(path, read_only=True) as view:
        expected = sorted(timer.body for timer in view.pending())
    pair = Pair.__new__(Pair)
    pair.place, pair.local = place, tmp_path / "local"
    pair.fetch()
    for copy in (place, pair.local):
        found = timerstore.read(copy, columns=["body"])["body"].to_pylist()
        assert sorted(found) == expected
    report = promote(pair.local, fenced=False)
    assert report.pending_count == len(expected)


@pytest.mark.slow
@pytest.mark.timeout(400)  # a session begins
def test_spark(pair: Pair, spark: Any, tmp_path: Path) -> None:
    """A task lays a copy down and reads it; a stream is refused, since nothing is appended."""
    if pair.place.startswith("s3"):
        pytest.skip("the session was begun before there was a server")
    for place, table in ((pair.place, "timers"), (pair.local, "messages")):
        frame = spark.read.format("timerstore").option("table", table).load(str(place))
        assert frame.count() == timerstore.read(pair.kept.path, table).num_rows
    assert validate(pair.local, spark=spark).ok
    several = spark.read.format("timerstore").load([str(pair.place), str(pair.kept.path)])
    assert several.groupBy("store").count().count() == 2 and several.count() == 2 * COUNT
    stream = spark.readStream.format("timerstore").option("table", "messages")
    query = stream.load(str(pair.local)).writeStream.format("noop")
    with pytest.raises(Exception, match="is a copy"):
        query.option("checkpointLocation", str(tmp_path / "at")).start().awaitTermination(60)
