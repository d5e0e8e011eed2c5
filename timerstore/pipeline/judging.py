"""The rules of distribution, asked of all stores of a run at once, and what they say.

They read the run's tables as they were written, and the rows of `stores` of this run and of earlier
ones: on Spark if that made the tables, else with DuckDB.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from timerstore.audit import DISTRIBUTION_RULES, DuckDB, Limits, OnSpark, Rule, ask, open_on
from timerstore.audit.own import add_stores, check_rules
from timerstore.audit.sentences import filled
from timerstore.pipeline.finding import OK, Finding, verdict_of, worst
from timerstore.pipeline.resulttables import TABLES
from timerstore.pipeline.runoptions import RunOptions
from timerstore.pipeline.runresult import StoreResult
from timerstore.pipeline.storetables import UNREADABLE
from timerstore.pipeline.tablefiles import TableFiles
from timerstore.pipeline.thresholds import Thresholds
from timerstore.validation.evidence import Example
from timerstore.values.amounts import DAY_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READ: Final = ("slot_load", "due", "lateness", "groups", "growth")
_HISTORY: Final = pa.schema(
    [("store", pa.string()), *((name, pa.int64()) for name in ("ago", "day", "pending", "runs"))]
)
_MACHINE: Final = pa.schema(
    [
        ("fire_rate_per_s", pa.float64()),
        ("fire_bytes_per_s", pa.float64()),
        ("now_ms", pa.int64()),
        ("in_use", pa.bool_()),
    ]
)
_LIMITS: Final = pa.schema(
    [("rule", pa.string()), *((name, pa.float64()) for name in Limits._fields)]
)
_PROFILES: Final = {"due": "due_profile", "late": "late_profile", "load": "load_profile"}
_DIGITS: Final = 9
"""Of a value that are kept: the last ones depend on the order in which an engine adds."""


class Looked(NamedTuple):
    """What was seen of a store, before the rules of distribution are asked."""

    name: str
    row: dict[str, Any]
    """Its row of `stores`."""
    history: Sequence[dict[str, Any]] = ()
    """Rows of `stores` of earlier runs, the newest first; of each day the last one."""
    baseline: dict[str, Any] | None = None
    """Its row of `stores` in the run that was set as the baseline."""
    consistency: Sequence[Finding] = ()
    files: tuple[str, ...] = ()
    """What was written."""
    seconds: float = 0.0
    spent: Mapping[str, float] = {}
    """Seconds that each query over its facts took."""

    @property
    def is_read(self) -> bool:
        """Whether it could be read."""
        return bool(self.row["state"] != UNREADABLE)


def judge_all(
    looked: Sequence[Looked], options: RunOptions, spark: SparkSession | None
) -> list[StoreResult]:
    """Ask each rule of all stores, and write `stores` and `findings`; return what was found."""
    read, files = [each for each in looked if each.is_read], options.files
    metrics = [*_spent(read)]
    found: dict[str, list[Finding]] = {each.name: list(each.consistency) for each in read}
    if read:
        with open_engine(read, options, spark) as engine:
            paths = {each.name: each.row["path"] for each in read}
            add_stores(engine, options.own_rules, paths, options.upto, options.delay_levels)
            for rule in (*DISTRIBUTION_RULES, *options.own_rules):
                limits = options.thresholds.limits[rule.name]
                began_s = time.perf_counter()
                rows = ask(engine, rule, limits)
                took_s = time.perf_counter() - began_s
                metrics.append(_metric("rule", rule.name, took_s, sum(map(len, rows.values()))))
                for each in read:
                    found[each.name].append(judged(rule, limits, rows.get(each.name, [])))
    files.write("metrics", TABLES["metrics"].rows(metrics))
    return [_write(each, found.get(each.name), files) for each in looked]


def _spent(read: Sequence[Looked]) -> Iterator[dict[str, Any]]:
    """Yield what each store took, then each query over all of them."""
    queries: Counter[str] = Counter()
    for each in read:
        row = each.row
        rows, size = row["messages"] + row["units"] + row["entries"], row["log_bytes"]
        yield _metric("store", each.name, each.seconds, rows, size + row["unit_bytes"])
        queries.update(each.spent)
    for name, seconds in queries.items():
        yield _metric("query", name, seconds)


def _metric(
    part: str, name: str, seconds: float, rows: int | None = None, size: int | None = None
) -> dict[str, Any]:
    return {"part": part, "name": name, "rows": rows, "bytes": size, "seconds": seconds}


def check_own(rules: Sequence[Rule], spark: SparkSession | None) -> None:
    """Try rules of your own before stores are read. Raises InvalidArgumentError."""
    tables = _few([], Thresholds(), 0) | {name: _with_store(name) for name in _READ}
    check_rules(rules, {name: each.schema for name, each in tables.items()}, open_on(spark))


def judged(rule: Rule, limits: Limits, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Return what a rule finds in one store; without a row there is nothing to judge."""
    told: Mapping[str, Any] = rows[0] if rows else {"value": 0.0, "checked": 0}
    value = float(f"{told['value']:.{_DIGITS}g}")
    verdict = verdict_of(value, limits) if rows else OK
    said = limits._asdict() | dict(told)
    return Finding(
        rule=rule.name,
        kind=rule.kind,
        verdict=verdict,
        value=value,
        says=filled(rule.says if rows else rule.none, said),
        advice="" if verdict == OK else f"{rule.means} {rule.do}",
        warn=limits.warn,
        fail=limits.fail_or_none,
        checked=int(told["checked"]),
        places=tuple(
            Example(row["file"], int(row["offset"]), filled(rule.place, row))
            for row in rows
            if row.get("file") is not None
        ),
    )


def _write(looked: Looked, found: list[Finding] | None, files: TableFiles) -> StoreResult:
    row, written = looked.row, [*looked.files]
    if found is not None:
        row = row | {"verdict": worst(each.verdict for each in found)}
        rows = TABLES["findings"].rows([each.to_dict() for each in found])
        written.append(files.write("findings", rows, looked.name))
    written.append(files.write("stores", TABLES["stores"].rows([row]), looked.name))
    return StoreResult(
        name=looked.name,
        path=row["path"],
        state=row["state"],
        verdict=row["verdict"],
        error=row["error"],
        findings=tuple(each for each in found or () if each.verdict != OK),
        messages=row["messages"] or 0,
        units=row["units"] or 0,
        files=tuple(written),
    )


# --- what the rules read


def open_engine(
    read: Sequence[Looked], options: RunOptions, spark: SparkSession | None
) -> DuckDB | OnSpark:
    """Return what runs the rules, with the tables that they read."""
    few, files = _few(read, options.thresholds, options.now_ms), options.files
    if spark is None:
        written = [file for each in read for file in each.files]
        return DuckDB(few | {name: files.dataset(name, written) for name in _READ})
    frames = {name: spark.createDataFrame(table) for name, table in few.items()}
    return OnSpark(spark, frames | {name: files.frame(spark, name) for name in _READ})


def _few(read: Sequence[Looked], thresholds: Thresholds, now_ms: int) -> dict[str, Any]:
    """Return the tables that no file has."""
    limits = [{"rule": name} | each._asdict() for name, each in thresholds.limits.items()]
    history = [row for each in read for row in _history(each)]
    rates = thresholds.fire_rate_per_s, thresholds.fire_bytes_per_s
    machine = *rates, now_ms, thresholds.in_use
    return {
        "stores": _with_store("stores", [each.row for each in read], [each.name for each in read]),
        "history": pa.Table.from_pylist(history, _HISTORY),
        "profiles": _profiles(read),
        "limits": pa.Table.from_pylist(limits, _LIMITS),
        "machine": pa.table([[each] for each in machine], _MACHINE),
    }


def _with_store(table: str, rows: Sequence[dict[str, Any]] = (), names: Sequence[str] = ()) -> Any:
    """Return rows of a result table, with the stores that they are of."""
    return TABLES[table].rows(rows).append_column("store", pa.array(names, pa.string()))


def _runs(looked: Looked) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield this run, as 0, those before it, and the baseline, as −1."""
    yield from enumerate([looked.row, *looked.history])
    if looked.baseline is not None:
        yield -1, looked.baseline


def _history(looked: Looked) -> Iterator[dict[str, Any]]:
    for ago, row in _runs(looked):
        yield {
            "store": looked.name,
            "ago": ago,
            "day": row["at_ms"] // DAY_MS,
            "pending": row["pending"],
            "runs": len(looked.history),
        }


def _profiles(read: Sequence[Looked]) -> Any:
    """Return the profiles of all runs, a row for each of their bins."""
    rows = [
        (each.name, ago, profile, row[column])
        for each in read
        for ago, row in _runs(each)
        for profile, column in _PROFILES.items()
    ]
    lengths = np.array([len(bins) for *_, bins in rows], np.int64)
    at = pa.array(np.repeat(np.arange(len(rows)), lengths))
    bins = [np.arange(each) for each in lengths]
    return pa.table(
        {
            "store": pa.array([each[0] for each in rows], pa.string()).take(at),
            "ago": pa.array([each[1] for each in rows], pa.int64()).take(at),
            "profile": pa.array([each[2] for each in rows], pa.string()).take(at),
            "bin": pa.array(np.concatenate([*bins, np.zeros(0, np.int64)]), pa.int64()),
            "timers": pa.array([count for *_, bins in rows for count in bins], pa.int64()),
        }
    )
