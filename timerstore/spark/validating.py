"""A validation on Spark: the two rounds of `timerstore.validation`, shared among its workers.

Ranges of the store become the partitions of a DataFrame. What they note is shuffled by bucket, as
blobs of numbers: a row of Spark's for each note would cost more than all the looking.
"""

from __future__ import annotations

import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from timerstore.backups.destination import is_copy
from timerstore.ground.config import DELAY_LEVELS
from timerstore.jit.record import Words
from timerstore.tables.splits import Range
from timerstore.validation.evidence import Evidence
from timerstore.validation.files import finish
from timerstore.validation.notes import COLUMNS
from timerstore.validation.plain import validate as plainly
from timerstore.validation.plan import SPLIT_BYTES, Scope, make_plan
from timerstore.validation.result import Validation
from timerstore.validation.work import judge_bucket, look_at

_NOTES: Final = "bucket int, kind int, data binary"
_FOUND: Final = "data binary"
_TALLIES: Final = -1
"""The bucket, and the kind, of tallies."""
_SCHEMA: Final = pa.schema([("bucket", pa.int32()), ("kind", pa.int32()), ("data", pa.binary())])
_FOUND_SCHEMA: Final = pa.schema([("data", pa.binary())])
_BATCH_BYTES: Final = 32 << 20
"""Of notes that go to the JVM together."""


def validate(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    upto: str | None = None,
    delay_levels: str = DELAY_LEVELS,
    roll_window_slots: int | None = None,
    split_bytes: int = SPLIT_BYTES,
) -> Validation:
    """Check that the parts of a store agree with each other, on Spark's workers.

    All of them must see the store's files under the same path. The options, and the result, are
    those of `timerstore.validation.validate`; each rule has one definition. Raises NotAStoreError;
    damage is in the result. O(bytes); some 80 bytes for each timer are shuffled, and no process
    holds more than a split, or a bucket.

    >>> timerstore.spark.validate(spark, "timers/").ok
    True
    """
    if is_copy(path):  # one process reads it
        return plainly(
            path,
            upto=upto,
            delay_levels=delay_levels,
            roll_window_slots=roll_window_slots,
            split_bytes=split_bytes,
        )
    plan = make_plan(
        path,
        upto=upto,
        delay_levels=delay_levels,
        roll_window_slots=roll_window_slots,
        split_bytes=split_bytes,
    )
    scope, count = plan.scope, len(plan.splits)
    found = (
        spark.range(0, count, 1, count)
        .mapInArrow(_looker(scope, plan.splits), _NOTES)
        .groupBy("bucket")
        .applyInArrow(_judge_of(scope), _FOUND)
    )
    tally = Evidence()
    for row in found.toLocalIterator():
        tally.merge(pickle.loads(row["data"]))
    finish(scope, tally)
    return Validation.make(scope, tally)


def _looker(
    scope: Scope, splits: tuple[tuple[Range, ...], ...]
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the first round: from numbers of splits to what was found there."""

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _as_batches(*look_at(scope, splits[number]))

    return look


def _as_batches(tally: Evidence, notes: Iterable[tuple[int, int, Words]]) -> Iterator[Any]:
    buckets, kinds, data, size = [_TALLIES], [_TALLIES], [pickle.dumps(tally)], 0
    for bucket, kind, rows in notes:
        buckets.append(bucket)
        kinds.append(kind)
        data.append(np.ascontiguousarray(rows).tobytes())
        size += rows.nbytes
        if size > _BATCH_BYTES:
            yield pa.record_batch([buckets, kinds, data], schema=_SCHEMA)
            buckets, kinds, data, size = [], [], [], 0
    if buckets:
        yield pa.record_batch([buckets, kinds, data], schema=_SCHEMA)


def _judge_of(scope: Scope) -> Callable[[tuple[Any, ...], Any], Any]:
    """Return the second round: from the notes of a bucket, or the tallies so far, to a tally."""

    def judge(key: tuple[Any, ...], table: Any) -> Any:
        bucket = key[0].as_py()
        kinds, data = table.column("kind").to_pylist(), table.column("data")
        blobs = [each.as_buffer() for chunk in data.chunks for each in chunk]
        if bucket == _TALLIES:
            tally = Evidence()
            for blob in blobs:
                tally.merge(pickle.loads(blob))
        else:
            rows: dict[int, list[Words]] = defaultdict(list)
            for kind, blob in zip(kinds, blobs, strict=True):
                rows[kind].append(np.frombuffer(blob, np.int64).reshape(-1, COLUMNS[kind]))
            tally = judge_bucket(scope, bucket, rows)
        return pa.table([[pickle.dumps(tally)]], schema=_FOUND_SCHEMA)

    return judge
