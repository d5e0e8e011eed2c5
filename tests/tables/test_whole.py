"""`timerstore.read`: the rows of Spark's reader, of a store that nobody opens or changes."""

import re
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import timerstore
from tests.table_stores import EVENTFUL, Folder, eventful, live, pending, rows
from timerstore.tables import TABLES
from timerstore.tables.schema import default_columns


def everything(table: str) -> list[str]:
    return [column.name for column in TABLES[table].columns]


def by_spark(path: Any, table: str, **options: str) -> list[tuple[Any, ...]]:
    """What the Spark source reads, split by split, without a Spark that runs."""
    from timerstore.spark.options import read_options, spark_schema
    from timerstore.spark.partitions import TableReader

    given = {"path": str(path), "table": table, "columns": ",".join(everything(table)), **options}
    asked = read_options(given)
    reader = TableReader(asked, spark_schema(table, asked.column_names()))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return rows(pa.Table.from_batches(batches)) if batches else []


def snapshot(path: Path) -> dict[str, tuple[int, int]]:
    found = ((each, each.stat()) for each in sorted(path.rglob("*")))
    return {str(each): (stat.st_size, stat.st_mtime_ns) for each, stat in found}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_a_brokers_store_as_spark_reads_it(
    name: str, golden_unpacked: Callable[[str], Path]
) -> None:
    path = golden_unpacked(name)
    before, count = snapshot(path), 0
    for table in TABLES:
        read = timerstore.read(path, table, everything(table))
        assert read.schema.names == everything(table)
        assert rows(read) == by_spark(path, table)
        count += read.num_rows
    assert count > 1_000 and snapshot(path) == before


@pytest.mark.parametrize("end", ["open", "killed", "closed"])
def test_a_store_of_ours_as_spark_reads_it(tmp_path: Path, end: str) -> None:
    path = tmp_path / "s"
    store = live(path, EVENTFUL)
    store.flush()
    expected = pending(store)
    if end == "killed":
        store.abandon()
    elif end == "closed":
        store.close()
    before = snapshot(path)
    for table in TABLES:
        where = None if table in ("problems", "checkpoint") else f"store = '{path}'"
        read = timerstore.read(path, table, everything(table), where)
        assert rows(read) == by_spark(path, table), table
    read = timerstore.read(path, body=True)
    columns = ("id", "topic", "key", "put_ms", "due_ms", "roll_count", "tag", "body")
    assert sorted(rows(read, *columns)) == expected
    assert snapshot(path) == before
    store.close()


def test_the_payload(tmp_path: Path) -> None:
    properties = {"attempt": "1", "who": "me"}
    last = {"key": "k", "tag": "t", "properties": properties, "topic": "mail"}
    store, _ = eventful(tmp_path / "s", body=b"last", delay=timedelta(hours=1), **last)
    store.put(b"now", **last)
    store.core.clock.advance(timedelta(seconds=1))  # type: ignore[union-attr]
    store.flush()
    assert timerstore.read(store.path).column_names == list(default_columns("timers"))
    columns = ["topic", "key", "tag", "properties", "body"]
    for table, body in (("timers", b"last"), ("fired", b"now")):
        read = timerstore.read(store.path, table, where="topic = 'mail'", body=True)
        (row,) = read.select(columns).to_pylist()
        row["properties"] = dict(row["properties"])
        assert row == {**last, "body": body}
    assert "body" not in timerstore.read(store.path, "slots", body=True).column_names
    store.close()


def test_times_are_utc(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    read = timerstore.read(str(tmp_path / "s"), "fired", ["due", "due_ms", "fired", "fired_ms"])
    for name in ("due", "fired"):
        assert read.schema.field(name).type == pa.timestamp("us", tz="UTC")
        in_ms = [round(each.timestamp() * 1_000) for each in read[name].to_pylist()]
        assert in_ms == read[f"{name}_ms"].to_pylist()


def test_several_stores(tmp_path: Path) -> None:
    for name in ("night-1", "night-2"):
        live(tmp_path / name, EVENTFUL).close()
    one = timerstore.read(tmp_path / "night-1", "fired")
    for path in (tmp_path, f"{tmp_path}/night-*", [tmp_path / "night-1", tmp_path / "night-2"]):
        both = timerstore.read(path, "fired")
        assert both.column_names == ["store", *one.column_names]
        assert both.num_rows == 2 * one.num_rows
    two = timerstore.read(tmp_path / "night-2", "fired")
    second = timerstore.read(tmp_path, "fired", where=f"store = '{tmp_path}/night-2'")
    assert second.drop_columns("store").equals(two)


def test_nothing_stays_mapped(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    for table in TABLES:
        timerstore.read(tmp_path / "s", table)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "s"
    live(path, EVENTFUL).close()
    whole = timerstore.read(path, "timers")
    offset = whole["message_offset"][0].as_py()
    Folder(path / "commitlog").write(offset + 4, b"\0\0\0\0")
    assert timerstore.read(path, "timers").num_rows == whole.num_rows - 1
    assert timerstore.read(path, "problems", mode="permissive")["file"][0].as_py() == "commitlog"
    with pytest.raises(timerstore.CorruptStoreError, match="commitlog is damaged at offset"):
        timerstore.read(path, "timers", mode="failfast")


@pytest.mark.parametrize(
    ("gone", "file", "words"),
    [
        ("commitlog", "commitlog", "it ends at this offset, and"),
        ("commitlog/00000000000000000000", "commitlog", "bytes before that are needed"),
        ("timerlog", "timerlog", "it ends at this offset, and"),
        ("timerlog/00000000000000000000", "timerlog", "units before that are needed"),
        ("timerwheel", "timerwheel", "there is no wheel"),
        ("consumequeue", "consumequeue/rmq_sys_wheel_timer/0", "it ends at this offset, and"),
    ],
)
def test_what_is_missing_at_the_ends_is_no_empty_table(
    tmp_path: Path, gone: str, file: str, words: str
) -> None:
    """A segment before the first, or behind the last, leaves no gap that would show."""
    path = tmp_path / "s"
    sizes = {"commitlog_segment_bytes": 1 << 16, "timerlog_segment_bytes": 1 << 12}
    with timerstore.open(path, config=timerstore.Config.from_mapping(sizes, "the test")) as store:
        store.put_many([b"x" * 500] * 200, delay_ms=3_600_000)
    timerstore.open(path).close()  # now each has its unit
    assert timerstore.read(path, "problems").num_rows == 0
    assert timerstore.read(path, mode="failfast").num_rows == 200
    left = path / gone
    shutil.rmtree(left) if left.is_dir() else left.unlink()
    with pytest.raises(timerstore.CorruptStoreError, match=f"{file} .*{words}"):
        timerstore.read(path, mode="failfast")
    (row, *_) = timerstore.read(path, "problems").to_pylist() or [None]
    assert row is not None and row["file"] == file and words in row["reason"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "timer"}, "There is no table 'timer'. Did you mean timers? Use messages, queue"),
        ({"table": 5}, "There is no table 5. Use messages"),
        ({"columns": ["topic", "Due"]}, "has no column 'Due'. Did you mean due? Use id, topic"),
        ({"columns": "due"}, "columns is 'due'. Pass a list of names"),
        ({"columns": ["due", "due"]}, "columns names 'due' twice"),
        ({"columns": []}, "columns is empty. Name a column"),
        ({"where": "tpic = 'a'"}, "has no column 'tpic'. Did you mean topic?"),
        ({"where": "key = 'a'"}, "Filter the rows after reading them, or use numbers, times"),
        ({"where": "due > yesterday"}, "where is not understood at 'due > yesterday'"),
        ({"where": ["due_ms > 5"]}, "Pass a str"),
        ({"body": 1}, "body is 1. Pass True or False"),
        ({"mode": "strict"}, "mode is 'strict'. Use permissive, failfast"),
        ({"upto": "now"}, 'upto is \'now\'. Use "checkpoint" or "end"'),
        ({"delay_levels": 5}, "delay_levels is 5. Pass a str"),
        ({"path": 5}, "path is 5. Pass a str, a Path, or a list of them"),
    ],
)
def test_refusals(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    timerstore.open(tmp_path / "s", clock=timerstore.ManualClock()).close()
    with pytest.raises(timerstore.InvalidArgumentError, match=re.escape(words)):
        timerstore.read(**{"path": tmp_path / "s", **options})


def test_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for path, words in (("s", "holds no commit log"), ("t", "is not there"), ("t*", "is not ther")):
        with pytest.raises(timerstore.NotAStoreError, match=f"{re.escape(path)} {words}"):
            timerstore.read(tmp_path / path)


def test_rows_of_several_stores_keep_their_store_in_spark(tmp_path: Path) -> None:
    from timerstore.spark.options import read_options

    for name in "ab":
        timerstore.open(tmp_path / name).close()
    several = {"path": str(tmp_path), "table": "timers", "columns": "id,due_ms"}
    assert read_options(several).column_names() == ("id", "due_ms", "store")
    assert read_options(several | {"columns": "store,id"}).column_names() == ("store", "id")
    one = several | {"path": str(tmp_path / "a")}
    assert read_options(one).column_names() == ("id", "due_ms")
