"""A run: stores are read once, the result tables written, each store gets a verdict."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timerstore.audit import DISTRIBUTION_RULES
from timerstore.audit.asking import read_rules
from timerstore.audit.engines import import_duckdb, on_workers
from timerstore.errors import InvalidArgumentError
from timerstore.pipeline.fleet import Member, find_members, size_of
from timerstore.pipeline.judging import (
    UNREADABLE,
    Looked,
    RunOptions,
    check_own,
    judge_all,
    tables_of,
    unreadable,
)
from timerstore.pipeline.results import RunResult
from timerstore.pipeline.resulttables import TABLES, VERSION
from timerstore.pipeline.tablefiles import (
    RUNS,
    TableFiles,
    baseline_of,
    check_run,
    find_day,
    finished_runs,
    history_of,
)
from timerstore.pipeline.thresholds import Thresholds
from timerstore.tables.view import forget
from timerstore.timelog.files.oserrors import told_of
from timerstore.validation.files import finish
from timerstore.validation.findings import Evidence
from timerstore.validation.plan import SPLIT_BYTES, Plan, Scope, check_options, make_plan
from timerstore.validation.result import Validation
from timerstore.validation.rounds import run as look_at_all
from timerstore.values.amounts import LAST_MS, moment
from timerstore.values.config import DELAY_LEVELS
from timerstore.values.kinds import check_int, check_place
from timerstore.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def plan_store(member: Member, options: RunOptions) -> Plan:
    """Plan a validation that measures as well. Raises NotAStoreError."""
    return make_plan(
        member.path,
        upto=options.upto,
        delay_levels=options.delay_levels,
        roll_window_slots=options.roll_window_slots,
        split_bytes=options.split_bytes,
        measures=True,
    )


def do_store(member: Member, options: RunOptions, spark: SparkSession | None = None) -> Looked:
    """Do all of a store.

    One that cannot be read is a row: its error must not keep the others from being looked at.
    """
    began_s = time.perf_counter()
    try:
        plan = plan_store(member, options)
        try:
            # Workers see the folder of tables, and need not see TMPDIR.
            within = None if spark is None else options.files.make_unfinished()
            tally = look_at_all(plan, spark=spark, within=within)
            looked = _finish(member, plan.scope, tally, options)
            return looked._replace(seconds=time.perf_counter() - began_s)
        finally:
            forget(plan.scope.cut)
    except Exception as e:
        row = unreadable(member.path, e, options.now_ms)
    gc.collect()  # frames of the failed one may still map its segments
    return Looked(member.name, row)


def _baseline(member: Member, options: RunOptions) -> dict[str, Any] | None:
    run, day = options.thresholds.baseline, options.baseline_day
    return baseline_of(options.files.out, member.name, run, day) if run and day else None


def _finish(member: Member, scope: Scope, tally: Evidence, options: RunOptions) -> Looked:
    """Write the tables of what both rounds found."""
    finish(scope, tally)
    found = Validation.make(scope, tally)
    row, tables = tables_of(scope, tally, found, options.now_ms)
    files = options.files
    written = [files.write(name, rows, member.name) for name, rows in tables.items()]
    return Looked(
        name=member.name,
        row=row,
        history=history_of(files.out, member.name, files.run, files.day),
        baseline=_baseline(member, options),
        consistency=found.rules,
        files=tuple(written),
        spent=dict(tally.spent),
    )


_TASKS_OF_A_CORE: Final = 4
_TASKS_UNKNOWN: Final = 32
"""Tasks for small stores if Spark does not say how many cores it has, as over Connect."""


def do_on_spark(spark: SparkSession, members: list[Member], options: RunOptions) -> list[Looked]:
    """Look at all stores; return what was seen of each, in their order.

    A small store is done in its task, from its bytes to its files; so workers need DuckDB. A large
    one is cut into splits, and queries of Spark join what its tasks say.
    """
    sizes = [size_of(member.path) for member in members]
    order = sorted(range(len(members)), key=lambda number: -sizes[number])
    large = [number for number in order if sizes[number] > options.split_bytes]
    small = order[len(large) :]
    # The largest come first, each to another task.
    count = min(len(small), _task_count(spark))
    tasks = [[members[number] for number in small[first::count]] for first in range(count)]
    found = dict[str, Looked]()
    for done in on_workers(spark, count, partial(_do_task, tasks, options)) if small else ():
        found |= {each.name: each for each in done}
    for number in large:
        found[members[number].name] = do_store(members[number], options, spark)
    return [found[member.name] for member in members]


def _task_count(spark: SparkSession) -> int:
    try:
        return _TASKS_OF_A_CORE * spark.sparkContext.defaultParallelism
    except Exception:  # a session of Spark Connect has no context
        return _TASKS_UNKNOWN


def _do_task(tasks: list[list[Member]], options: RunOptions, number: int) -> list[Looked]:
    import_duckdb()  # its lack is no fault of a store
    return [do_store(member, options) for member in tasks[number]]


def run(
    stores: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    spark: SparkSession | None = None,
    run: str | None = None,
    thresholds: Thresholds | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    rules: str | os.PathLike[str] | None = None,
    now_ms: int | None = None,
    upto: str | None = None,
    delay_levels: str = DELAY_LEVELS,
    roll_window_slots: int | None = None,
    split_bytes: int = SPLIT_BYTES,
) -> RunResult:
    """Read stores once, write the result tables below `out`, judge all rules; change no store.

    `out`: a folder; None: one for temporary files, which goes with the result that is returned. So
    it has no history; `RunResult.read` returns its tables.

    `stores`: a path, a folder of stores, a pattern; a list of these; a mapping from names to paths,
    or a table with the columns name and path. Without names a store has that of its folder. One
    that is damaged, gone or refused is a row, with the verdict "fail". `spark`: a session, whose
    workers must see the stores and `out` under the same paths; None: all in this process, with the
    same tables; that needs the extra `audit`. `run`: its name; the same name again replaces what it
    wrote, under the day on which it first did. None: the time. `thresholds`: a TOML file, or its
    content; docs/pipeline.md. `rules`: a folder of rules of your own, asked beside the others;
    docs/howto/own-rules.md. `now_ms`: as of when, for what is open. The others are those of
    `timerstore.validation.validate`. What was written counts once its row is in the table `runs`,
    which comes last. Raises InvalidArgumentError, NotAStoreError for a pattern that matches
    nothing, StoreAccessError for `out`, ImportError. O(bytes).

    >>> timerstore.pipeline.run("timers/", "tables/").verdict
    'ok'
    """
    began_s, now = time.perf_counter(), time.time_ns() // 1_000_000
    now_ms = now if now_ms is None else check_int(now_ms, "now_ms", 0, LAST_MS)
    roll_window_slots, split_bytes = check_options(
        upto, delay_levels, roll_window_slots, split_bytes
    )
    own = read_rules(rules)
    if spark is None:
        import_duckdb()  # before hours of reading
    check_own(own, spark)
    members = find_members(stores)
    name = check_run(f"{moment(now_ms):%Y%m%dT%H%M%SZ}" if run is None else run)
    kept = None if out is not None else _Kept()
    place = Path(check_place(out) if kept is None else kept.folder)
    day = find_day(place, name) or f"{moment(now_ms):%Y-%m-%d}"
    limits = Thresholds.of(thresholds, (*DISTRIBUTION_RULES, *own))
    options = RunOptions(
        files=TableFiles(place, name, day),
        thresholds=limits,
        now_ms=now_ms,
        upto=upto,
        delay_levels=delay_levels,
        roll_window_slots=roll_window_slots,
        split_bytes=split_bytes,
        own_rules=own,
        baseline_day=_day_of(limits.baseline, place),
    )
    with told_of(place):
        options.files.begin()
    looked = _look_at_all(members, options, spark)
    found = judge_all(looked, options, spark)
    options.files.remove_others([file for each in found for file in each.files])
    result = RunResult(
        name, day, options.files.out, time.perf_counter() - began_s, tuple(found), kept
    )
    _write_row(result, options, now)
    return result


def _day_of(baseline: str | None, place: Path) -> str | None:
    """Return on which day the baseline ran. Raises InvalidArgumentError if it has not."""
    if baseline is None:
        return None
    day = finished_runs(place).get(baseline)
    if day is None:
        raise InvalidArgumentError(
            f"The baseline is {baseline!r}, and {place} has no finished run of that name. Name one "
            "that it has."
        )
    return day


class _Kept:
    """A folder that is there until nobody asks for it any more."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="timerstore-run-")
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


def _look_at_all(
    members: list[Member], options: RunOptions, spark: SparkSession | None
) -> list[Looked]:
    if spark is None:
        return [do_store(member, options) for member in members]
    return do_on_spark(spark, members, options)


def _write_row(result: RunResult, options: RunOptions, began_ms: int) -> None:
    row = {
        "run": result.run,
        "version": VERSION,
        "timerstore": __version__,
        "began": datetime.fromtimestamp(began_ms / 1_000, UTC),
        "ended": datetime.now(UTC),
        "seconds": result.seconds,
        "verdict": result.verdict,
        "stores": len(result.stores),
        "unreadable": sum(each.state == UNREADABLE for each in result.stores),
        "messages": sum(each.messages for each in result.stores),
        "units": sum(each.units for each in result.stores),
        "thresholds": options.thresholds.to_json(),
    }
    options.files.write(RUNS, TABLES[RUNS].rows([row]))
