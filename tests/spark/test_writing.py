"""Scheduling the rows of a DataFrame: all of them, or none."""

import re
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import timerstore
from tests.rigs.waiting import wait_until
from tests.table_stores import SECOND, rows
from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.spark import writing
from timerstore.spark.batchrows import check_rows, put_rows, used
from timerstore.spark.writing import AppendWriter, NewStoresWriter, StreamWriter, write_options
from timerstore.tables import find_stores, read_table

pytestmark = pytest.mark.slow

START_MS = int(time.time()) * 1_000 + 3_600_000
COLUMNS = ["body", "at_ms", "topic", "key"]


def frame(spark: Any, count: int = 1_000, partitions: int = 3) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr(
        "cast(concat('body ', id) as binary) as body",
        f"{START_MS} + 7 * id as at_ms",
        "if(id % 3 = 0, null, concat('topic-', id % 3)) as topic",
        "if(id % 2 = 0, null, concat('key-', id)) as key",
    )


def expected(count: int = 1_000) -> list[tuple[Any, ...]]:
    return sorted(
        (
            f"body {i}".encode(),
            START_MS + 7 * i,
            f"topic-{i % 3}" if i % 3 else "default",
            f"key-{i}" if i % 2 else None,
        )
        for i in range(count)
    )


def scheduled(path: Path) -> list[tuple[Any, ...]]:
    table = read_table(path, "timers", ["body", "due_ms", "topic", "key"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def save(frame: Any, path: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("timerstore").mode(mode).options(**options).save(str(path))


def everything(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir()) if path.is_dir() else []


def left(path: Path, names: list[str]) -> list[str]:
    """What stays: tasks that still ran when their job failed remove what they made soon after."""
    wait_until(lambda: everything(path) == names)
    return everything(path)


def test_new_stores(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "loads"
    save(frame(spark), path)
    assert scheduled(path) == expected()
    stores = find_stores(str(path)).paths
    assert [Path(store).name for store in stores] == [f"part-0000{i}" for i in range(3)]
    assert all(timerstore.verify(store).ok for store in stores)
    save(frame(spark, 10, 1), path)
    assert scheduled(path) == sorted(expected() + expected(10))
    assert len(everything(path)) == 2
    save(frame(spark, 20, 2), path, "overwrite")
    assert scheduled(path) == expected(20)
    assert len(everything(path)) == 1 and everything(tmp_path) == ["loads"]
    back = spark.read.format("timerstore").option("body", "true").load(str(path))
    assert back.where("key is null").count() == 10


@pytest.mark.prove
def test_the_stores_are_stores(spark: Any, tmp_path: Path) -> None:
    rows = frame(spark, 50, 1)
    save(rows, tmp_path / "loads", precision_ms="100", commitlog_segment_bytes="65536", topic="t")
    (store,) = find_stores(str(tmp_path / "loads")).paths
    clock = timerstore.ManualClock(START_MS - 1_000, force=True)
    with timerstore.open(store, clock=clock) as opened:
        assert opened.count() == 50 and opened.count("t") == 17
        assert opened.core.engine.config.precision_ms == 100
        clock.advance(2 * SECOND)
        fired = [d for topic in ("t", "topic-1", "topic-2") for d in opened.pull(topic, timeout=0)]
        assert sorted(d.due_ms for d in fired) == [START_MS + 7 * i for i in range(50)]


@pytest.mark.promise
def test_into_one_store(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    save(frame(spark), path, into="store")
    assert scheduled(path) == expected()
    assert timerstore.verify(path).ok
    save(frame(spark, 30), path, into="store")
    assert scheduled(path) == sorted(expected() + expected(30))
    assert everything(tmp_path) == ["store"]


@pytest.mark.prove
def test_timestamps_and_texts(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(3).selectExpr(
        "concat('b', id) as body", f"timestamp_micros({START_MS} * 1000 + id) as at"
    )
    save(rows, tmp_path / "loads")
    assert scheduled(tmp_path / "loads") == [
        (f"b{i}".encode(), START_MS + bool(i), "default", None) for i in range(3)
    ]


PUT = ("topic", "key", "tag", "properties", "due_ms", "body")


def lived(path: Path) -> timerstore.TimerStore:
    """A store with fired and pending timers of every description."""
    clock = timerstore.ManualClock(START_MS)
    store = timerstore.open(path, clock=clock)
    for i in range(48):
        store.put(
            b"body %d" % i,
            topic=f"topic-{i % 2}",
            at_ms=START_MS + 1_000 * i,
            key=f"key-{i}" if i % 3 else None,
            tag=f"tag-{i % 4}" if i % 4 else None,
            properties={"who": "me", "n": str(i % 5)} if i % 5 else None,
        )
    clock.advance(20 * SECOND)
    store.flush()
    return store


@pytest.mark.parametrize("table", ["timers", "fired"])
def test_what_was_read_is_put_again(spark: Any, tmp_path: Path, table: str) -> None:
    lived(tmp_path / "s").close()
    read = spark.read.format("timerstore").option("table", table).option("body", "true")
    save(read.load(str(tmp_path / "s")), tmp_path / "loads")
    before = timerstore.read(tmp_path / "s", table, PUT)
    after = timerstore.read(tmp_path / "loads", "timers", PUT)
    assert after.num_rows > 10 and rows(after) == rows(before)


def test_the_rows_of_a_batch(tmp_path: Path) -> None:
    """Without Spark: what is read of a store, and put into another."""
    store = lived(tmp_path / "s")
    read = timerstore.read(store.path, body=True)
    with timerstore.open(tmp_path / "t", clock=timerstore.ManualClock(START_MS)) as copy:
        for batch in read.to_batches():
            check_rows(from_arrow_schema(batch.schema))
            ids = [id for each in put_rows(copy, used(batch), "none") for id in each]
            assert len(set(ids)) == batch.num_rows
        copy.flush()
        assert rows(timerstore.read(copy.path, "timers", PUT)) == rows(read.select(PUT))
        (batch, *_) = read.to_batches()
        later = pc.add(batch["due"], pa.scalar(1_000_000, pa.duration("us")))
        moved = batch.set_column(batch.schema.get_field_index("due"), "due", later)
        with pytest.raises(timerstore.InvalidArgumentError, match="due and due_ms say different"):
            list(put_rows(copy, moved, "none"))
        times = list(put_rows(copy, moved.drop_columns(["due_ms"]), "none"))
        assert sum(map(len, times)) == batch.num_rows
        reserved = pa.array([[("KEYS", "a")]] * batch.num_rows, batch["properties"].type)
        named = batch.set_column(batch.schema.get_field_index("properties"), "properties", reserved)
        with pytest.raises(timerstore.InvalidArgumentError, match="belongs to the system"):
            list(put_rows(copy, named, "none"))
    store.close()


def test_no_rows(spark: Any, tmp_path: Path) -> None:
    save(frame(spark, 0), tmp_path / "loads")
    assert everything(tmp_path / "loads") == []
    save(frame(spark, 1, 4), tmp_path / "loads")
    assert len(find_stores(str(tmp_path / "loads")).paths) == 1
    save(frame(spark, 0), tmp_path / "store", into="store")
    assert scheduled(tmp_path / "store") == []


@pytest.mark.tier("prove", only=("store",))
@pytest.mark.parametrize("into", ["stores", "store"])
def test_a_failure_leaves_nothing(spark: Any, tmp_path: Path, into: str) -> None:
    path = tmp_path / "target"
    save(frame(spark, 40), path, into=into)
    before, names = scheduled(path), everything(path)
    bad = frame(spark).selectExpr(
        "body", f"if(at_ms > {START_MS + 6_500}, 5, at_ms) as at_ms", "key"
    )
    with pytest.raises(Exception, match="looks like seconds"):
        save(bad, path, into=into)
    nulls = frame(spark).selectExpr("if(at_ms % 2 = 0, body, null) as body", "at_ms")
    with pytest.raises(Exception, match="body contains nulls"):
        save(nulls, path, into=into)
    assert scheduled(path) == before
    assert left(tmp_path, ["target"]) == ["target"]
    if into == "stores":
        assert everything(path) == names


def test_a_task_that_failed_leaves_no_store(spark: Any, tmp_path: Path) -> None:
    bad = frame(spark, 100, 2).selectExpr("body", "if(topic is null, null, at_ms) as at_ms")
    with pytest.raises(Exception, match="at_ms contains nulls"):
        save(bad, tmp_path / "loads", "overwrite")
    assert left(tmp_path, []) == []


@pytest.mark.prove
def test_refusals(spark: Any, tmp_path: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    timerstore.open(store).close()
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    rows = frame(spark, 5)
    for given, path, mode, options, words in (
        (rows, store, "append", {}, "is a store. Write into it with option"),
        (rows, store, "overwrite", {"into": "store"}, "A store cannot be overwritten"),
        (rows, other, "overwrite", {}, "holds notes.txt, which no Spark write made"),
        (rows, other / "notes.txt", "append", {}, "notes.txt is a file, which does not belong in"),
        (rows, store, "append", {"into": "one"}, "Use stores or store"),
        (rows, other, "append", {"precision": "1"}, "There is no option 'precision'"),
        (rows, other, "append", {"precision_ms": "7"}, "Use 100, 200, 500 or 1000"),
        (
            rows.drop("at_ms"),
            other,
            "append",
            {},
            "No column says when the timers are due. Add at_ms or due_ms",
        ),
        (rows.drop("body"), other, "append", {}, "or read with option('body', 'true')"),
        (rows.withColumn("due_ms", rows.at_ms), other, "append", {}, "at and due both say when"),
        (rows.withColumnRenamed("key", "kee"), other, "append", {}, "Did you mean key? Use body"),
        (rows.selectExpr("body", "'x' as at_ms"), other, "append", {}, "at_ms is string"),
    ):
        with pytest.raises(Exception, match=re.escape(words)):
            save(given, path, mode, **options)
    assert everything(other) == ["notes.txt"]


@pytest.mark.prove
def test_a_store_that_is_open_elsewhere(spark: Any, tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "store") as store:
        with pytest.raises(Exception, match="StoreLockedError"):
            save(frame(spark, 5), tmp_path / "store", into="store")
        assert store.count() == 0
    assert everything(tmp_path) == ["store"]


@pytest.mark.parametrize("into", ["stores", "store"])
def test_a_task_that_outlives_its_job_leaves_nothing(tmp_path: Path, into: str) -> None:
    """Spark ends a job while other tasks of it still run, which make what they need again."""
    schema = StructType([StructField("body", BinaryType()), StructField("at_ms", LongType())])
    rows = pa.RecordBatch.from_pylist([{"body": b"x", "at_ms": START_MS}] * 3)
    for ends_after in range(3):
        kind = NewStoresWriter if into == "stores" else AppendWriter
        writer = kind(write_options({"path": str(tmp_path / "loads")}), schema, False)

        def batches(writer: Any = writer, ends_after: int = ends_after) -> Any:
            for i in range(2):
                if i == ends_after:
                    writer.abort([])
                yield rows

        if ends_after == 2:
            writer.abort([])
        with pytest.raises((TimerStoreError, OSError)):
            writer.write(batches())
        assert everything(tmp_path / "loads") == [] and everything(tmp_path) in ([], ["loads"])


def test_a_batch_that_is_done_again_has_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that begins anew counts attempts from 0 again, and knows nothing of a failed one."""
    schema = StructType([StructField("body", BinaryType()), StructField("at_ms", LongType())])
    said = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "0"}
    context = Mock(getLocalProperty=said.__getitem__)
    context.partitionId.return_value = context.taskAttemptId.return_value = 0
    monkeypatch.setattr(writing, "TaskContext", Mock(get=lambda: context))
    rows = pa.RecordBatch.from_pylist([{"body": b"x", "at_ms": START_MS}] * 3)
    writer = StreamWriter(write_options({"path": str(tmp_path / "loads")}), schema, False)

    for fails in (True, False):
        writer.write(iter([rows]))  # the driver is killed before it hears of it
        written = writer.write(iter([rows, rows]))
        if fails:  # the commit is killed behind its first step
            with monkeypatch.context() as patch:
                names = [each.name for each in (tmp_path / "loads").iterdir()]
                patch.setattr(writing, "sync", Mock(side_effect=KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    writer.commit([written], 0)
            assert [each.name for each in (tmp_path / "loads").iterdir()] == names
            continue
        writer.commit([written], 0)
    assert timerstore.read(tmp_path / "loads", columns=["body"]).num_rows == 6


@pytest.mark.parametrize("path", ["s3://bucket/x", "hdfs://host:8020/x", "gs://bucket/x"])
def test_an_address_is_no_folder(path: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is an address"):
        write_options({"path": path})
