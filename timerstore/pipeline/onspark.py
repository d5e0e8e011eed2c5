"""All stores of a run on Spark's workers, in one job.

Small stores are put together, so that a task does some of them from their bytes to their files. For
a large one, each task looks at a split. Their notes are shuffled by bucket and judged; what was
found is shuffled by store, and the tables of that store are written. A DataFrame's row is a blob of
numbers, as in `timerstore/spark/validating.py`.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from timerstore.jit.record import Words
from timerstore.pipeline.fleet import Member, size_of
from timerstore.pipeline.judging import Looked
from timerstore.pipeline.onestore import (
    RunOptions,
    do_store,
    finish_store,
    give_up,
    or_unreadable,
    plan_store,
)
from timerstore.pipeline.storetables import reason_of
from timerstore.tables.view import forget
from timerstore.validation.evidence import Evidence
from timerstore.validation.notes import COLUMNS
from timerstore.validation.plan import Plan
from timerstore.validation.work import judge_bucket, look_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS: Final = "store int, bucket int, kind int, data binary"
_SCHEMA: Final = pa.schema(
    [("store", pa.int32()), ("bucket", pa.int32()), ("kind", pa.int32()), ("data", pa.binary())]
)
_NO_BUCKET: Final = -1
# Kinds of rows beside notes, which have those of `notes.py`.
_TALLY: Final = -1
_RESULT: Final = -2
_ERROR: Final = -3
_BATCH_BYTES: Final = 32 << 20
"""Of notes that go to the JVM together."""
_TASKS_OF_A_CORE: Final = 4
_TASKS_UNKNOWN: Final = 32
"""Tasks for small stores if Spark does not say how many cores it has, as over Connect."""

Row = tuple[int, int, int, bytes]


class _Work(NamedTuple):
    """What all tasks know: stores, plans of the large ones, what each task does."""

    members: list[Member]
    plans: dict[int, Plan]
    options: RunOptions
    tasks: list[tuple[int, ...]]
    """A large store with the number of a split; or (−1, small stores …)."""


def do_on_spark(spark: SparkSession, members: list[Member], options: RunOptions) -> list[Looked]:
    """Look at all stores; return what was seen of each, in their order."""
    work, found = _plan(members, options, _task_count(spark))
    try:
        if work.tasks:
            count = len(work.tasks)
            rows = spark.range(0, count, 1, count).mapInArrow(_looker(work), _ROWS)
            if work.plans:
                judged = rows.groupBy("store", "bucket").applyInArrow(_judge_of(work), _ROWS)
                combined = judged.mapInArrow(_combine, _ROWS)
                rows = combined.groupBy("store").applyInArrow(_finisher(work), _ROWS)
            for row in rows.select("store", "data").collect():
                found[row["store"]] = pickle.loads(row["data"])
    finally:
        for plan in work.plans.values():
            forget(plan.scope.cut)
    return [found[number] for number in range(len(members))]


def _task_count(spark: SparkSession) -> int:
    try:
        return _TASKS_OF_A_CORE * spark.sparkContext.defaultParallelism
    except Exception:  # a session of Spark Connect has no context
        return _TASKS_UNKNOWN


def _plan(
    members: list[Member], options: RunOptions, task_count: int
) -> tuple[_Work, dict[int, Looked]]:
    """Plan the large stores; put the small ones together; return also those that failed so soon."""
    work, found = _Work(members, {}, options, []), dict[int, Looked]()
    sizes = [size_of(member.path) for member in members]
    small = sorted(range(len(members)), key=lambda number: -sizes[number])
    for number, member in enumerate(members):
        if sizes[number] <= options.split_bytes:
            continue
        small.remove(number)
        try:
            plan = plan_store(member, options)
        except Exception as e:
            found[number] = give_up(member, options, reason_of(e))
            continue
        work.plans[number] = plan
        work.tasks.extend((number, split) for split in range(len(plan.splits)))
    # The largest come first, each to another task.
    work.tasks.extend(
        (-1, *small[first::task_count]) for first in range(min(len(small), task_count))
    )
    return work, found


# --- the first round


def _looker(work: _Work) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def look(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                first, *rest = work.tasks[number]
                rows = _whole(work, rest) if first < 0 else _split(work, first, rest[0])
                yield from _as_batches(rows)

    return look


def _whole(work: _Work, numbers: Iterable[int]) -> Iterator[Row]:
    for number in numbers:
        result = do_store(work.members[number], work.options)
        yield number, _NO_BUCKET, _RESULT, pickle.dumps(result)


def _split(work: _Work, store: int, split: int) -> Iterator[Row]:
    plan = work.plans[store]
    try:
        tally, notes = look_at(plan.scope, plan.splits[split])
    except Exception as e:
        yield store, _NO_BUCKET, _ERROR, reason_of(e).encode()
        return
    yield store, _NO_BUCKET, _TALLY, pickle.dumps(tally)
    for bucket, kind, rows in notes:
        yield store, bucket, kind, np.ascontiguousarray(rows).tobytes()


def _as_batches(rows: Iterable[Row]) -> Iterator[Any]:
    held, size = list[Row](), 0
    for row in rows:
        held.append(row)
        size += len(row[-1])
        if size > _BATCH_BYTES:
            yield _batch(held)
            held, size = [], 0
    if held:
        yield _batch(held)


def _batch(rows: list[Row]) -> Any:
    return pa.record_batch([list(column) for column in zip(*rows, strict=True)], schema=_SCHEMA)


def _table(rows: list[Row]) -> Any:
    return pa.Table.from_batches([_batch(rows)], _SCHEMA)


# --- the second round


def _judge_of(work: _Work) -> Callable[[tuple[Any, ...], Any], Any]:
    """Return what judges a bucket of a store: its notes become a tally."""

    def judge(key: tuple[Any, ...], table: Any) -> Any:
        store, bucket = key[0].as_py(), key[1].as_py()
        if bucket == _NO_BUCKET:
            return table
        rows: dict[int, list[Words]] = defaultdict(list)
        for kind, blob in _blobs(table):
            rows[kind].append(np.frombuffer(blob, np.int64).reshape(-1, COLUMNS[kind]))
        try:
            tally = judge_bucket(work.plans[store].scope, bucket, rows)
        except Exception as e:
            return _table([(store, _NO_BUCKET, _ERROR, reason_of(e).encode())])
        return _table([(store, _NO_BUCKET, _TALLY, pickle.dumps(tally))])

    return judge


def _blobs(table: Any) -> Iterator[tuple[int, Any]]:
    data = (each.as_buffer() for chunk in table.column("data").chunks for each in chunk)
    yield from zip(table.column("kind").to_pylist(), data, strict=True)


def _combine(batches: Iterable[Any]) -> Iterator[Any]:
    """Merge the tallies of a partition by store, so that less is shuffled, and held at its end."""
    tallies: dict[int, Evidence] = {}
    for batch in batches:
        is_tally = np.asarray(batch.column("kind")) == _TALLY
        others = batch.filter(pa.array(~is_tally))
        if len(others):
            yield others
        stores, data = batch.column("store").to_pylist(), batch.column("data")
        for i in np.flatnonzero(is_tally).tolist():
            tally: Evidence = pickle.loads(data[i].as_buffer())
            if stores[i] in tallies:
                tallies[stores[i]].merge(tally)
            else:
                tallies[stores[i]] = tally
    yield from _as_batches(
        (store, _NO_BUCKET, _TALLY, pickle.dumps(tally)) for store, tally in tallies.items()
    )


# --- the end of a store


def _finisher(work: _Work) -> Callable[[tuple[Any, ...], Any], Any]:
    """Return what writes the tables of a store, and passes on those that are done."""

    def end(key: tuple[Any, ...], table: Any) -> Any:
        store = key[0].as_py()
        found = list(_blobs(table))
        if found[0][0] == _RESULT:
            return table
        member, options = work.members[store], work.options
        errors = [bytes(blob).decode() for kind, blob in found if kind == _ERROR]
        if errors:
            result = give_up(member, options, errors[0])
        else:
            scope = work.plans[store].scope
            tally = scope.new_tally()
            while found:
                tally.merge(pickle.loads(found.pop()[1]))
            result = or_unreadable(
                member, options, lambda: finish_store(member, scope, tally, options)
            )
        return _table([(store, _NO_BUCKET, _RESULT, pickle.dumps(result))])

    return end
