"""A validation on Spark: its workers look at ranges of the store, queries join what they say.

All facts are rows of one DataFrame, so that each range is read once: the number of the table, its
flags as bits, its other columns as numbers. A view of each table is what the queries read.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from timerstore.audit.engines import OnSpark
from timerstore.validation.evidence import Evidence
from timerstore.validation.facts import SCHEMAS, SOURCES
from timerstore.validation.plan import Plan
from timerstore.validation.work import look_at, meet, source_facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLES: Final = [name for name in SCHEMAS if name != SOURCES]
_FOUND: Final = -1
"""Instead of a table's number: what a range tells by itself, or the error that it raised."""


def _divided(name: str) -> tuple[list[str], list[str]]:
    """Return a table's columns of numbers, and its flags."""
    flags = [each.name for each in SCHEMAS[name] if each.type == pa.bool_()]
    return [each for each in SCHEMAS[name].names if each not in flags], flags


_NUMBERS: Final = [f"n{i}" for i in range(max(len(_divided(name)[0]) for name in _TABLES))]
_ROWS: Final = (
    f"kind int, flags int, {', '.join(f'{each} bigint' for each in _NUMBERS)}, found binary"
)


def run_on_spark(spark: SparkSession, plan: Plan) -> Evidence:
    """Do both rounds; return what was found."""
    tally, count = plan.scope.new_tally(), len(plan.splits)
    told = spark.range(0, count, 1, count).mapInArrow(_looker(plan), _ROWS).persist()
    try:
        for row in told.where(f"kind = {_FOUND}").select("found").collect():
            found = pickle.loads(row["found"])
            if isinstance(found, Exception):
                raise found
            tally.merge(found)
        tables = {SOURCES: spark.createDataFrame(source_facts(plan.scope))}
        for kind, name in enumerate(_TABLES):
            numbers, flags = _divided(name)
            columns = [f"{at} AS {each}" for at, each in zip(_NUMBERS, numbers, strict=False)]
            columns += [f"(flags & {1 << bit}) <> 0 AS {each}" for bit, each in enumerate(flags)]
            tables[name] = told.where(f"kind = {kind}").selectExpr(*columns)
        with OnSpark(spark, tables) as engine:
            meet(engine, plan.scope, tally)
    finally:
        told.unpersist()
    return tally


def _looker(plan: Plan) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the first round: from numbers of splits to what was found there, and its facts."""

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    found, facts = look_at(plan.scope, plan.splits[number])
                except Exception as e:
                    yield _batch(_FOUND, 1, found=pickle.dumps(e))
                    continue
                yield _batch(_FOUND, 1, found=pickle.dumps(found))
                for name, rows in facts.items():
                    numbers, flags = ([rows.column(each) for each in of] for of in _divided(name))
                    yield _batch(_TABLES.index(name), rows.num_rows, numbers, flags)

    return look


def _batch(
    kind: int, count: int, numbers: Iterable[Any] = (), flags: Iterable[Any] = (), found: Any = None
) -> Any:
    """Return rows as Spark takes them."""
    bits = np.zeros(count, np.int32)
    for bit, flag in enumerate(flags):
        bits |= np.asarray(flag).astype(np.int32) << bit
    columns = [pa.repeat(pa.scalar(kind, pa.int32()), count), pa.array(bits)]
    columns += [each.combine_chunks() for each in numbers]
    columns += [pa.nulls(count, pa.int64())] * (2 + len(_NUMBERS) - len(columns))
    columns.append(pa.array([found] * count, pa.binary()))
    return pa.record_batch(columns, ["kind", "flags", *_NUMBERS, "found"])
