"""The data source, through Spark: every table, options, filters, several stores, damage."""

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.markdown import ROOT
from tests.rigs.program import python
from tests.table_stores import EVENTFUL, PENDING_COLUMNS, SECOND, Folder, live, pending, rows
from timerstore import Config, InvalidArgumentError
from timerstore.spark.source import TimerStoreDataSource
from timerstore.tables import TABLES, read_table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spark") / "s"
    live(path, EVENTFUL).close()
    return path


def load(spark: Any, path: Any, table: str, **options: Any) -> Any:
    options = {name: str(value) for name, value in options.items()}
    paths = [str(each) for each in path] if isinstance(path, list) else str(path)
    reader = spark.read.format("timerstore").option("table", table).options(**options)
    return reader.load(paths)


def collected(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("partitions", [6])
def test_every_table(spark: Any, closed: Path, table: str, partitions: int) -> None:
    frame = load(spark, closed, table, partitions=partitions)
    expected = read_table(closed, table)
    assert frame.columns == expected.column_names
    exact = [name for name in frame.columns if f"{name}_ms" not in expected.column_names]
    got = [tuple(row) for row in frame.select(exact).collect()]
    plain = [
        tuple(dict(value) if isinstance(value, list) else value for value in row)
        for row in zip(*(expected[name].to_pylist() for name in exact), strict=True)
    ]
    assert sorted(got, key=repr) == sorted(plain, key=repr)
    times = [name for name in expected.column_names if f"{name}_ms" in expected.column_names]
    if times:
        others = [f"{name} != timestamp_millis({name}_ms)" for name in times]
        assert frame.where(" or ".join(others)).count() == 0


@pytest.mark.promise
@pytest.mark.tier("prove", only=("pending", "fired"))  # test_golden_naive.py has them without Spark
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_golden(
    spark: Any,
    name: str,
    golden_unpacked: Callable[[str], Path],
    golden_list: Callable[[str], list[dict[str, Any]]],
) -> None:
    lines = golden_list(name)
    (state,) = [line for line in lines if line["kind"] == "state"]
    frame = load(spark, golden_unpacked(name), "timers", body=True)
    put = {line["unique_key"]: line for line in lines if line["kind"] in ("timer", "level")}
    level_count = sum(line["kind"] == "level" for line in lines)  # of them none was over
    found = frame.collect()
    if name != "crashed":
        assert len(found) == state["pending_all"] + level_count
    for row in found:
        line = put[row["id"]]
        assert (row["topic"], bytes(row["body"]).hex()) == (line["topic"], line["body_hex"])
        if line["kind"] == "timer":
            assert row["due_ms"] == line["due_ms"]
            continue
        level_count -= 1
        stored_ms = row["due_ms"] - Config().delay_levels_ms()[line["level"] - 1]
        assert abs(stored_ms - line["put_ms"]) < 1_000  # the writer looked at its clock afterwards
    assert level_count == 0
    assert load(spark, golden_unpacked(name), "problems").count() == 0


def test_columns_and_schemas(spark: Any, closed: Path) -> None:
    frame = load(spark, closed, "messages", columns="offset, tags_code ,body")
    assert frame.columns == ["offset", "tags_code", "body"]
    assert frame.count() == read_table(closed, "messages").num_rows
    reader = spark.read.format("timerstore").option("table", "messages")
    narrow = reader.schema("stored timestamp, properties map<string,string>").load(str(closed))
    assert narrow.columns == ["stored", "properties"]
    assert narrow.first()["properties"]["UNIQ_KEY"]
    assert "body" in load(spark, closed, "messages", body=True).columns
    assert "body" not in load(spark, closed, "messages").columns


def test_several_stores(spark: Any, closed: Path, tmp_path: Path) -> None:
    count = load(spark, closed, "fired").count()
    for name in ("night-1", "night-2"):
        live(tmp_path / name, EVENTFUL).close()
    for path in (
        f"{tmp_path}/night-*",
        str(tmp_path),
        [tmp_path / "night-1", tmp_path / "night-2"],
    ):
        frame = load(spark, path, "fired")
        assert frame.columns[0] == "store"
        by_store = {row["store"]: row["count"] for row in frame.groupBy("store").count().collect()}
        assert by_store == {f"{tmp_path}/night-{i}": count for i in (1, 2)}
    one = load(spark, str(tmp_path), "fired").where(f"store = '{tmp_path}/night-2'")
    assert one.count() == count


def test_filters(spark: Any, closed: Path) -> None:
    table = read_table(closed, "timers", ["due_ms", "topic", "message_offset"])
    whole = rows(table)
    low = sorted(row[0] for row in whole)[len(whole) // 2]
    at = datetime.fromtimestamp(low / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    columns = ["due_ms", "topic", "message_offset"]
    for condition, wanted in (
        (f"due_ms >= {low}", lambda row: row[0] >= low),
        (f"due_ms > {low} and topic = 'default'", lambda row: row[0] > low and row[1] == "default"),
        (f"due_ms = {low}", lambda row: row[0] == low),
        (f"due_ms in ({low}, 5)", lambda row: row[0] == low),
        ("topic in ('second', 'none')", lambda row: row[1] == "second"),
        ("topic = 'none'", lambda row: False),
        ("topic like 'def%'", lambda row: row[1].startswith("def")),
        (f"not due_ms <= {low}", lambda row: row[0] > low),
        (f"due_ms < {low} or topic = 'second'", lambda row: row[0] < low or row[1] == "second"),
    ):
        timers = load(spark, closed, "timers").select(columns)
        found = collected(timers.where(condition))
        assert found == [row for row in whole if wanted(row)], condition
    full = load(spark, closed, "timers")
    assert full.where(f"due >= timestamp '{at}'").count() == sum(row[0] >= low for row in whole)
    assert full.where(f"due < timestamp '{at}'").count() == sum(row[0] < low for row in whole)
    for where, condition in ((f"due >= '{at}'", "true"), ("topic = 'default'", f"due_ms > {low}")):
        frame = load(spark, closed, "timers", where=where).where(condition)
        assert frame.count() == full.where(f"{where} and {condition}").count() > 0


def test_one_frame_used_twice(spark: Any, closed: Path) -> None:
    """PySpark keeps filters that were pushed for a frame's other uses; so none are."""
    frame = load(spark, closed, "timers")
    low = frame.selectExpr("percentile(due_ms, 0.6)").first()[0]
    late, early = frame.where(f"due_ms > {low}"), frame.where(f"due_ms <= {low}")
    assert late.count() > 0 < early.count()
    assert late.count() + early.count() == frame.count()
    assert late.unionAll(early).count() == frame.count()
    assert frame.where(f"due_ms > {low} or topic = 'second'").count() > late.count()


def test_filters_reach_the_files(spark: Any, tmp_path: Path) -> None:
    """What a filter does not want is damaged, and nobody notices."""
    live(tmp_path / "s", EVENTFUL).close()
    Folder(tmp_path / "s" / "commitlog").write(9_000, b"\xff" * 500)
    options = {"mode": "failfast", "split_bytes": 4_096}
    assert load(spark, tmp_path / "s", "messages", where="offset < 4000", **options).count() > 5
    with pytest.raises(Exception, match="commitlog is damaged at offset"):
        load(spark, tmp_path / "s", "messages", **options).where("offset < 4000").count()


def test_damage(spark: Any, tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    offset = read_table(tmp_path / "s", "messages")["offset"][5].as_py()
    Folder(tmp_path / "s" / "commitlog").flip(offset + 90)
    bad = load(spark, tmp_path / "s", "messages").where("not crc_ok").collect()
    assert [row["offset"] for row in bad] == [offset]
    (problem,) = load(spark, tmp_path / "s", "problems").collect()
    assert tuple(problem) == (
        *(str(tmp_path / "s"), "commitlog", offset, "the checksum does not match"),
    )
    with pytest.raises(Exception, match=f"commitlog is damaged at offset {offset}"):
        load(spark, tmp_path / "s", "messages", mode="FAILFAST").count()


def test_a_live_store(spark: Any, tmp_path: Path) -> None:
    store = live(tmp_path / "s", EVENTFUL)
    store.flush()
    expected = pending(store)
    store.put(b"behind the checkpoint", delay=5 * SECOND)
    frame = load(spark, tmp_path / "s", "timers", columns=",".join(PENDING_COLUMNS))
    assert sorted(tuple(row)[:-1] for row in frame.collect()) == [row[:-1] for row in expected]
    assert load(spark, tmp_path / "s", "timers", upto="end").count() == len(expected) + 1
    store.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "timer"}, "There is no table 'timer'"),
        ({"colums": "offset"}, "There is no option 'colums'"),
        ({"columns": "offset"}, "has no column 'offset'"),
        ({"mode": "strict"}, "Use permissive or failfast"),
        ({"partitions": "many"}, "Use a whole number from 1 on"),
        ({"body": "perhaps"}, "Use true or false"),
        ({"where": "due_ms > x"}, "where is not understood at 'due_ms > x'"),
        ({"where": "key = 'x'"}, "where cannot filter the table timers by key"),
        ({"upto": "now"}, 'Use "checkpoint" or "end"'),
        ({"starting": "now"}, "Use earliest or latest"),
    ],
)
def test_refused_options(closed: Path, options: dict[str, str], words: str) -> None:
    """As Spark asks for a table; that it says so is shown in `test_own_session.py`."""
    source = TimerStoreDataSource({**options, "path": str(closed)})
    with pytest.raises(InvalidArgumentError, match=re.escape(words)):
        source.reader(source.schema()).partitions()


def test_refused_paths_and_schemas(spark: Any, closed: Path) -> None:
    with pytest.raises(Exception, match="Pass the folder of a store"):
        spark.read.format("timerstore").load(f"{closed}-none").count()
    with pytest.raises(Exception, match="Pass the folder of a store"):
        spark.read.format("timerstore").load()
    with pytest.raises(Exception, match="due_ms is bigint in the table timers, not string"):
        spark.read.format("timerstore").schema("due_ms string").load(str(closed)).count()


def test_timerstore_alone_imports_no_spark() -> None:
    code = "import sys, timerstore, timerstore.tables; sys.exit('pyspark' in sys.modules)"
    python("-c", code, cwd=ROOT, PYTHONPATH="")


def test_a_table_of_a_catalog(spark: Any, closed: Path) -> None:
    name = f"timers_{os.getpid()}"
    spark.sql(
        f"CREATE TABLE {name} USING timerstore OPTIONS (table 'units', `columns` 'offset,due_ms') "
        f"LOCATION '{closed}'"
    )
    try:
        expected = read_table(closed, "units", ["offset", "due_ms"])
        assert spark.table(name).columns == expected.column_names
        rows = spark.sql(f"SELECT offset, due_ms FROM {name} WHERE due_ms > 0").collect()
        assert sorted(map(tuple, rows)) == sorted(zip(*expected.to_pydict().values(), strict=True))
        meant = {row.col_name: row.comment for row in spark.sql(f"DESCRIBE {name}").collect()}
        assert meant["offset"] == TABLES["units"].find("offset").meaning
        with pytest.raises(Exception, match="There is no option 'tabel'"):
            spark.sql(f"CREATE TABLE x USING timerstore OPTIONS (tabel 'a') LOCATION '{closed}'")
        columns = f"CREATE TABLE {name}_few (due_ms bigint) USING timerstore"
        spark.sql(f"{columns} LOCATION '{closed}'")
        with pytest.raises(Exception, match="LOCATION and without columns"):
            spark.table(f"{name}_few").collect()
    finally:
        for each in (name, f"{name}_few"):
            spark.sql(f"DROP TABLE IF EXISTS {each}")
    assert (closed / "commitlog").is_dir()


def test_views(spark: Any, closed: Path) -> None:
    """All tables are there for SQL; a condition, or a prefix, is of all of them."""
    import timerstore.spark

    assert timerstore.spark.views(spark, closed) == list(TABLES)
    counts = [f"SELECT '{name}', count(*) FROM {name}" for name in TABLES]
    found = dict(spark.sql(" UNION ALL ".join(counts)).collect())
    assert found == {name: read_table(closed, name).num_rows for name in TABLES}
    names = timerstore.spark.views(spark, [str(closed)], prefix="few_", upto="end")
    assert names == [f"few_{name}" for name in TABLES]
    for each in (*TABLES, *names):
        spark.catalog.dropTempView(each)
