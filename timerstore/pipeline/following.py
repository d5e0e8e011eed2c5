"""What fires, appended to tables while the program runs: a stream that goes on where it stopped.

    out/fired/day=2027-01-04/store=shop/0000000017.parquet
    out/fired_lateness/day=2027-01-04/store=shop/0000000017.parquet

A file holds the rows of one batch and day, and its name is the batch's number; `expire` joins files
of past days, and what comes of it has the last one's name. Spark's checkpoint says where a batch
begins and ends. If the stream is killed in the middle of one, it does it again, and replaces the
files that it had written. So no row is lost, and none is there twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from timerstore.errors import InvalidArgumentError
from timerstore.pipeline.resulttables import FIRED, FIRED_LATENESS
from timerstore.pipeline.tablefiles import TableFiles, alone, quote_store, remove_unfinished
from timerstore.tables.stores import is_store
from timerstore.timelog.files.oserrors import told_of
from timerstore.validation.facts import lateness_told
from timerstore.values.amounts import DAY_MS, HOUR_MS
from timerstore.values.kinds import check_bool, check_int, check_kind, check_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_BYTES: Final = 64 << 20
"""Of the commit log, in a batch, whose rows the driver holds."""
EVERY_S: Final = 5
_CHECKPOINTS: Final = "_checkpoints"
_DIGITS: Final = 10


def follow(
    spark: SparkSession,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    name: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every_s: int = EVERY_S,
    until_now: bool = False,
    batch_bytes: int = BATCH_BYTES,
) -> StreamingQuery:
    """Append what a store fires to the tables `fired` and `fired_lateness`; return the query.

    It runs until it is stopped, a batch every few seconds, or with `until_now` up to what has fired
    by now. If it is started again with the same `out` and `name`, it goes on where it stopped, also
    after a kill. `name`: the store's, else its folder's. `checkpoint`: the folder of Spark's, else
    one below `out`. One stream for a name at a time. `batch_bytes`: of the commit log in a batch,
    at most. A store in use is followed to its last checkpoint, half a second behind. Raises
    InvalidArgumentError if `path` is no store.

    >>> query = timerstore.pipeline.follow(spark, "timers/", "tables/", until_now=True)
    >>> query.awaitTermination()
    """
    place = check_place(path)
    if not is_store(place):
        raise InvalidArgumentError(f"{path} holds no commit log. Pass the folder of a store.")
    check_bool(until_now, "until_now")
    every_s = check_int(every_s, "every_s", 0, 86_400)
    batch_bytes = check_int(batch_bytes, "batch_bytes", 1, 1 << 40)
    store = place.name if name is None else name
    check_kind(store, str, "name")
    target = check_place(out)
    at = target / _CHECKPOINTS / quote_store(store)
    if checkpoint is not None:
        at = check_place(checkpoint)
    with told_of(str(target)):
        remove_unfinished(target)
    frame = (
        spark.readStream.format("timerstore")
        .option("table", FIRED)
        .option("max_bytes_per_trigger", str(batch_bytes))
        .load(str(place))
    )

    def write(batch: Any, number: int) -> None:
        write_batch(batch.toArrow(), number, str(target), store)

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(at))
    if until_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()


def write_batch(rows: Any, number: int, out: str, store: str) -> None:
    """Write the rows of one batch, replacing what an earlier try of it wrote."""
    name, written = f"{number:0{_DIGITS}d}", set[str]()
    with alone(out):
        for day, part in _by_day(rows):
            files = TableFiles(out, name, day)
            # The histogram comes first: if the rows are there, it is there too.
            for table, each in ((FIRED_LATENESS.name, lateness_of(part)), (FIRED, part)):
                written.add(files.write_plainly(table, each, store))
        for table in (FIRED_LATENESS.name, FIRED):
            folder = f"day=*/store={quote_store(store)}/{name}.parquet"
            for path in Path(out, table).glob(folder):
                if str(path) not in written:
                    path.unlink(missing_ok=True)


def _by_day(rows: Any) -> Iterator[tuple[str, Any]]:
    """Yield the rows of each day on which something fired, in the order of the log."""
    days = rows.column("fired_ms").to_numpy() // DAY_MS
    for day in np.unique(days).tolist():
        name = str(np.datetime64(day, "D"))
        yield name, rows.filter(pa.array(days == day))


def lateness_of(rows: Any) -> Any:
    """Return histograms of lateness by topic and hour, as the table `lateness` has them."""
    hour_ms = rows.column("fired_ms").to_numpy() // HOUR_MS * HOUR_MS
    late_ms = lateness_told(rows.column("lateness_ms").fill_null(0).to_numpy())
    told = pa.table({"topic": rows.column("topic"), "hour_ms": hour_ms, "late_ms": late_ms})
    counted = told.group_by(told.column_names).aggregate([([], "count_all")])
    return FIRED_LATENESS.completed(counted.rename_columns({"count_all": "fired"}))
