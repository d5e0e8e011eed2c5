"""Streams: what is appended comes once, over restarts, in batches that end between messages."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.table_stores import EVENTFUL, MILLISECOND, SMALL, live
from timerstore.tables import read_table

pytestmark = pytest.mark.slow


def follow(spark: Any, path: Any, out: Path, table: str = "fired", **options: str) -> list[int]:
    """Read what is there, and go on from where the last call ended; return all offsets so far."""
    reader = spark.readStream.format("timerstore").option("table", table).options(**options)
    frame = reader.load(str(path)).select("offset") if table != "timers" else reader.load(str(path))
    writer = frame.writeStream.format("parquet").option("path", str(out / "rows"))
    query = writer.option("checkpointLocation", str(out / "at")).trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.read.schema("offset bigint").parquet(str(out / "rows")).collect()
    return sorted(row["offset"] for row in rows)


def offsets(path: Path, table: str) -> list[int]:
    found: list[int] = read_table(path, table, ["offset"], upto="end")["offset"].to_pylist()
    return found


@pytest.mark.tier("prove", only=("messages",))
@pytest.mark.parametrize("table", ["fired", "messages"])
def test_each_row_once(spark: Any, tmp_path: Path, table: str) -> None:
    store, out = live(tmp_path / "s", EVENTFUL), tmp_path / "out"
    store.flush()
    assert follow(spark, tmp_path / "s", out, table) == offsets(tmp_path / "s", table)
    assert isinstance(store.core.clock, timerstore.ManualClock)
    store.core.clock.advance(3_000 * MILLISECOND)
    store.flush()
    first = offsets(tmp_path / "s", table)
    store.put(b"behind the checkpoint")
    assert follow(spark, tmp_path / "s", out, table) == first
    store.close()
    assert follow(spark, tmp_path / "s", out, table) == offsets(tmp_path / "s", table)


@pytest.mark.prove
def test_small_batches(spark: Any, tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    read = follow(spark, tmp_path / "s", tmp_path / "out", "messages", max_bytes_per_trigger="6000")
    assert read == offsets(tmp_path / "s", "messages")
    assert len(list((tmp_path / "out" / "at" / "commits").glob("[0-9]*"))) > 2


@pytest.mark.prove
def test_from_the_latest(spark: Any, tmp_path: Path) -> None:
    store, out = live(tmp_path / "s", EVENTFUL), tmp_path / "out"
    store.flush()
    before = offsets(tmp_path / "s", "messages")
    assert follow(spark, tmp_path / "s", out, "messages", starting="latest") == []
    store.put(b"new")
    store.flush()
    after = offsets(tmp_path / "s", "messages")
    assert follow(spark, tmp_path / "s", out, "messages") == after[len(before) :]
    store.close()


def test_a_store_that_joins(spark: Any, tmp_path: Path) -> None:
    live(tmp_path / "a", EVENTFUL).close()
    count = len(offsets(tmp_path / "a", "fired"))
    assert len(follow(spark, f"{tmp_path}/[a-b]", tmp_path / "out")) == count
    live(tmp_path / "b", EVENTFUL).close()
    assert len(follow(spark, f"{tmp_path}/[a-b]", tmp_path / "out")) == 2 * count


def test_tables_that_do_not_only_grow(spark: Any, tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    with pytest.raises(Exception, match="The table timers cannot be streamed"):
        follow(spark, tmp_path / "s", tmp_path / "out", "timers")


def fire(path: Path, count: int, clock: timerstore.ManualClock) -> None:
    """Open a store, let so many timers fire, close it."""
    with timerstore.open(path, config=SMALL, clock=clock) as store:
        for i in range(count):
            store.put(b"timer %d" % i, delay_ms=1_000)
        clock.advance(2_000 * MILLISECOND)


def test_a_store_that_was_made_anew(spark: Any, tmp_path: Path) -> None:
    path, out, clock = tmp_path / "s", tmp_path / "out", timerstore.ManualClock()
    fire(path, 20, clock)
    first = follow(spark, path, out)
    assert len(first) == 20
    shutil.rmtree(path)
    fire(path, 30, clock)
    assert follow(spark, path, out) == sorted(first + offsets(path, "fired"))


@pytest.mark.prove
def test_a_store_that_was_restored(spark: Any, tmp_path: Path) -> None:
    path, out, clock = tmp_path / "s", tmp_path / "out", timerstore.ManualClock()
    fire(path, 20, clock)
    timerstore.backup(path, tmp_path / "backup")
    fire(path, 10, clock)
    before = follow(spark, path, out)
    assert len(before) == 30
    shutil.rmtree(path)
    cut = timerstore.restore(tmp_path / "backup", path)
    assert cut.pending_count == 0
    fire(path, 5, clock)
    assert follow(spark, path, out) == sorted(before + offsets(path, "fired")[20:])
    fire(path, 3, clock)
    assert len(follow(spark, path, out)) == 38


def into_stores(spark: Any, rows: Path, path: Path, at: Path, **options: str) -> None:
    """Stream the rows of files into stores, up to what is there."""
    frame = spark.readStream.schema("body string, topic string, due timestamp").parquet(str(rows))
    writer = frame.writeStream.format("timerstore").options(**options)
    writer = writer.option("checkpointLocation", str(at)).trigger(availableNow=True)
    writer.start(str(path)).awaitTermination()


def test_a_stream_into_stores(spark: Any, tmp_path: Path) -> None:
    """Each batch is there once, though Spark forgot that it was done."""
    path, at = tmp_path / "stores", tmp_path / "at"

    def add(first: int, count: int) -> None:
        made = spark.range(first, first + count).selectExpr(
            "concat('b', id) AS body", "'mail' AS topic", "timestamp'2099-01-01' AS due"
        )
        made.write.mode("append").parquet(str(tmp_path / "rows"))
        into_stores(spark, tmp_path / "rows", path, at)

    add(0, 30)
    add(30, 20)
    loads = sorted(each.name for each in path.iterdir())
    assert [each[-11:] for each in loads] == ["-0000000000", "-0000000001"]
    (at / "commits" / "1").unlink()
    (at / "commits" / ".1.crc").unlink()
    into_stores(spark, tmp_path / "rows", path, at)
    assert sorted(each.name for each in path.iterdir()) == loads
    bodies = timerstore.read(path, columns=["body"])["body"].to_pylist()
    assert sorted(bodies) == sorted(b"b%d" % i for i in range(50))
    with pytest.raises(Exception, match="A stream makes new stores"):
        into_stores(spark, tmp_path / "rows", path, tmp_path / "other", into="store")
    timerstore.open(tmp_path / "one").close()
    with pytest.raises(Exception, match="is a store"):
        into_stores(spark, tmp_path / "rows", tmp_path / "one", tmp_path / "third")
