"""The rules of distribution, asked of all stores of a run at once, and what they say.

They read the run's tables as they were written, and the rows of `stores` of this run and of earlier
ones: on Spark if that made the tables, else with DuckDB.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from timerstore.audit import DISTRIBUTION_RULES, DuckDB, Limits, OnSpark, Rule, ask, open_on
from timerstore.audit.asking import add_stores, check_rules
from timerstore.audit.engines import frame_of, kept
from timerstore.audit.rule import Finding, of_rows, worst, worst_first
from timerstore.jit.record import Words
from timerstore.pipeline.results import StoreResult
from timerstore.pipeline.resulttables import TABLES
from timerstore.pipeline.tablefiles import TableFiles, frame
from timerstore.pipeline.thresholds import Thresholds
from timerstore.validation.facts import Evidence
from timerstore.validation.plan import USUAL, Reading, Scope
from timerstore.validation.result import Validation
from timerstore.values.amounts import DAY_MS, HOUR_MS, MINUTE_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RunOptions:
    """What was asked for, and where it is written."""

    files: TableFiles
    thresholds: Thresholds
    now_ms: int
    reading: Reading = USUAL
    own_rules: tuple[Rule, ...] = ()
    baseline_day: str | None = None
    """The day of the run that was set as the baseline."""


HOURS: Final = 24
DAYS: Final = 30
DUE_BINS: Final = HOURS + DAYS + 2
LATE_BINS: Final = 32
LOAD_BINS: Final = 25
UNREADABLE: Final = "unreadable"


def unreadable(path: str, error: BaseException, now_ms: int) -> dict[str, Any]:
    """Return the row of `stores` of one that could not be read."""
    row: dict[str, Any] = dict.fromkeys(TABLES["stores"].schema.names)
    reason = f"{type(error).__name__}: {error}"
    return row | {
        "path": path,
        "state": UNREADABLE,
        "error": reason,
        "verdict": "fail",
        "at_ms": now_ms,
    }


def tables_of(
    scope: Scope, tally: Evidence, found: Validation, now_ms: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row of `stores` of a store that was looked at, and its other tables by name."""
    (rolling,) = tally.measures["stores"].to_pylist()
    tables = {
        name: TABLES[name].completed(rows)
        for name, rows in tally.measures.items()
        if name != "stores"
    }
    tables["groups"] = TABLES["groups"].rows(tally.groups)
    row = _row(scope, found, now_ms) | {name: int(each) for name, each in rolling.items()}
    row |= {
        "due_profile": _due_profile(tables["due"], row["at_ms"]),
        "late_profile": _late_profile(tables["lateness"]),
        "load_profile": _binned(_column(tables["slot_load"], "fires"), LOAD_BINS),
    }
    return row, tables


def _row(scope: Scope, found: Validation, now_ms: int) -> dict[str, Any]:
    view = scope.view
    reader = view.reader
    stands_ms = view.read_slot * reader.precision_ms
    row: dict[str, Any] = dict.fromkeys(TABLES["stores"].schema.names)
    row |= {name: found.counts[name] for name in found.counts if name in row}
    return row | {
        "at_ms": now_ms if view.cut.is_open or not stands_ms else stands_ms,
        "path": found.path,
        "state": "sound" if found.ok else "damaged",
        "by_broker": found.by_broker,
        "was_open": found.was_open,
        "is_copy": view.cut.is_laid,
        "stands_ms": stands_ms,
        "precision_ms": reader.precision_ms,
        "ring_slots": 2 * reader.sizes.wheel_slot_count,
        "window_slots": reader.sizes.roll_window_slots,
        "log_bytes": view.log_stop - reader.commitlog.start,
        "unit_bytes": max(0, scope.units_stop - reader.timerlog.start),
    }


# --- profiles, which runs are compared by


def _column(table: Any, name: str) -> Words:
    found: Words = table.column(name).to_numpy()
    return found


def _binned(values: Words, bins: int, weights: Words | None = None) -> list[int]:
    """Count values by their highest bit: 1, 2–3, 4–7, …; 0 is left out."""
    chosen = values > 0
    bits = np.frexp(values[chosen].astype(np.float64))[1] - 1
    weight = None if weights is None else weights[chosen]
    found = np.bincount(np.minimum(bits, bins - 1), weight, minlength=bins)
    return [int(each) for each in found]


def _due_profile(due: Any, at_ms: int) -> list[int]:
    """Count pending timers: those of the next day by the hour of the day, others by days ahead.

    So what is due is the same whenever the run is.
    """
    minute_ms, timers = _column(due, "minute_ms"), _column(due, "timers")
    left_ms = minute_ms - at_ms // MINUTE_MS * MINUTE_MS
    days = HOURS + np.minimum(left_ms // DAY_MS - 1, DAYS)
    place = np.where(left_ms < DAY_MS, minute_ms // HOUR_MS % HOURS, days)
    place[left_ms < 0] = DUE_BINS - 1
    return [int(each) for each in np.bincount(place, timers, minlength=DUE_BINS)]


def _late_profile(lateness: Any) -> list[int]:
    """Count what fired within the last day of the store by its lateness."""
    hour_ms = _column(lateness, "hour_ms")
    chosen = hour_ms > hour_ms.max(initial=0) - DAY_MS
    fired, late_ms = (_column(lateness, name)[chosen] for name in ("fired", "late_ms"))
    on_time = int(fired[late_ms == 0].sum())
    return [on_time, *_binned(late_ms, LATE_BINS - 1, fired)]


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
            how = options.reading
            add_stores(engine, options.own_rules, paths, how.upto, how.delay_levels)
            rules = {rule.name: rule for rule in (*DISTRIBUTION_RULES, *options.own_rules)}

            def act(name: str) -> tuple[dict[str, list[dict[str, Any]]], float]:
                began_s = time.perf_counter()
                rows = ask(engine, rules[name], options.thresholds.limits[name])
                return rows, time.perf_counter() - began_s

            queries = {name: rule.text for name, rule in rules.items()}
            for name, (rows, took_s) in engine.each(queries, act).items():
                metrics.append(_metric("rule", name, took_s, sum(map(len, rows.values()))))
                for each in read:
                    of_store = rows.get(each.name, [])
                    limits = options.thresholds.limits[name]
                    found[each.name].append(of_rows(rules[name], limits, of_store))
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
        findings=tuple(worst_first(found or ())),
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
        engine = DuckDB(few)
        for name in _READ:  # a run has a file for each store; so they are opened once
            engine.add(name, files.dataset(name, written))
        return engine
    frames = {name: frame_of(spark, table) for name, table in few.items()}
    for name in _READ:  # a run has a file for each store; so they are opened once
        frames[name] = kept(frame(spark, files, TABLES[name]).drop("day"))
    return OnSpark(spark, frames)


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
