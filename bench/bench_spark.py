"""Spark reading a store, beside Spark reading the same rows from Parquet.

Every figure is a whole query as a user writes it, planning and all, the best of some rounds.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import machine
import numpy as np

import timerstore
import timerstore.spark
from timerstore import Config

DAY_MS = 86_400_000
DAYS = 14
CHUNK = 500_000
BODY_BYTES = 40


def make_store(path: Path, count: int) -> int:
    """Make a store of timers over 14 days; return when they begin."""
    random = np.random.default_rng(1)
    start_ms = int(time.time() * 1_000) + 3_600_000
    with timerstore.open(path, config=Config(durability="process")) as store:
        for at in range(0, count, CHUNK):
            size = min(CHUNK, count - at)
            bodies = random.integers(97, 123, (size, BODY_BYTES), dtype=np.uint8)
            due_ms = start_ms + random.integers(0, DAYS * DAY_MS, size)
            store.put_many(bodies, topic=f"topic-{at // CHUNK % 4}", at_ms=due_ms)
    return start_ms


def best(query: Callable[[], int], rounds: int) -> float:
    """Return a query's shortest time in seconds."""
    query()  # workers start, Java compiles
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        query()
        times.append(time.perf_counter() - begin)
    return min(times)


class Queries:
    """The queries that are measured."""

    def __init__(self, spark: Any, path: Path, parquet: Path, start_ms: int) -> None:
        self.spark, self.path, self.parquet, self.start_ms = spark, path, parquet, start_ms

    def load(self, table: str, **options: str) -> Any:
        """Load a table of the store, anew."""
        reader = self.spark.read.format("timerstore").option("table", table)
        return reader.options(**options).load(str(self.path))

    def write_parquet(self) -> None:
        """Write the same rows to Parquet."""
        for table in ("units", "messages", "timers"):
            self.load(table).write.mode("overwrite").parquet(str(self.parquet / table))

    def read_parquet(self, table: str) -> Any:
        """Read what was written."""
        return self.spark.read.parquet(str(self.parquet / table))

    def all(self) -> Iterator[tuple[str, Callable[[], int]]]:
        """Yield what is measured: its name, the query."""
        low, high = self.start_ms + 5 * DAY_MS, self.start_ms + 6 * DAY_MS
        day = f"due_ms >= {low} and due_ms < {high}"

        def whole(table: str) -> int:
            return every(self.load(table))

        def whole_parquet(table: str) -> int:
            return every(self.read_parquet(table))

        def counted(table: str) -> int:
            return int(self.load(table).count())

        def some(table: str, columns: str) -> int:
            return every(self.load(table, columns=columns))

        for table in ("units", "messages", "timers"):
            yield f"{table}, store, every column", partial(whole, table)
            yield f"{table}, Parquet, every column", partial(whole_parquet, table)
            yield f"{table}, store, count()", partial(counted, table)
        for table, columns in (("units", "due_ms,magic"), ("messages", "offset,topic,stored_ms")):
            yield f"{table}, store, {columns}", partial(some, table, columns)
        yield (
            "timers of one day, store, filter() pushed",
            lambda: self.load("timers", push_filters="true").where(day).count(),
        )
        yield (
            "timers of one day, store, option where",
            lambda: self.load("timers", where=day, columns="due_ms").count(),
        )
        yield (
            "timers of one day, store, option where, no message is read",
            lambda: self.load("timers", where=day, columns="unit_offset").count(),
        )
        yield "timers of one day, store, not pushed", lambda: self.load("timers").where(day).count()
        yield "timers of one day, Parquet", lambda: self.read_parquet("timers").where(day).count()


def every(frame: Any) -> int:
    """Read every column of every row into nothing."""
    frame.write.format("noop").mode("overwrite").save()
    return 0


def main() -> None:
    """Make a store, and measure."""
    parser = argparse.ArgumentParser(prog="./run bench --spark", description=__doc__)
    parser.add_argument("--timers", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="make the store here, and leave it")
    arguments = parser.parse_args()
    with machine.scratch_folder(None) as scratch:
        folder = arguments.keep or scratch
        start_ms = make_store(folder / "store", arguments.timers)
        spark = timerstore.spark.session()
        spark.sparkContext.setLogLevel("ERROR")
        queries = Queries(spark, folder / "store", folder / "parquet", start_ms)
        queries.write_parquet()
        print(f"| query | seconds | rows/s, of {arguments.timers:,} |\n|---|---|---|", flush=True)
        for name, query in queries.all():
            seconds = best(query, arguments.rounds)
            rate = arguments.timers / seconds
            print(f"| {name} | {seconds:.2f} | {rate:,.0f} |", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
