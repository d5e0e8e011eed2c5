"""A run: stores are read once, the result tables written, each store gets a verdict."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from timerstore.audit import DISTRIBUTION_RULES
from timerstore.audit.asking import read_rules
from timerstore.audit.engines import import_duckdb, on_workers
from timerstore.audit.rule import readable
from timerstore.copies.destination import is_copy
from timerstore.errors import InvalidArgumentError, NotAStoreError
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
    FIRST,
    RUNS,
    TableFiles,
    baseline_of,
    check_run,
    find_day,
    finished_runs,
    history_of,
    quote_store,
)
from timerstore.pipeline.thresholds import Thresholds
from timerstore.tables.stores import find_stores
from timerstore.tables.view import forget
from timerstore.timelog.files.oserrors import told_of
from timerstore.validation.facts import Evidence
from timerstore.validation.files import finish
from timerstore.validation.plan import SPLIT_BYTES, Reading, Scope, make_plan
from timerstore.validation.result import Validation
from timerstore.validation.rounds import run as look_at_all
from timerstore.values.amounts import LAST_MS, moment
from timerstore.values.config import DELAY_LEVELS
from timerstore.values.kinds import check_int, check_kind, check_list, check_path, check_place
from timerstore.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATTERN: Final = frozenset("*?[")
_LOGS: Final = ("commitlog", "timerlog")
_NAME_BYTES_MAX: Final = 240
"""As the tables' folders quote it; a file system takes 255 with what stands before."""


class Member(NamedTuple):
    """One store of a run."""

    name: str
    path: str


def find_members(stores: Any) -> list[Member]:
    """Return the stores that are meant, by name; a path that leads to none is one too.

    `stores`: a path, a folder of stores, a pattern; a list of these; a mapping from names to paths;
    rows of (name, path), or a table with these columns, Arrow's, pandas' or Spark's. Else a store's
    name is its folder's, or its whole path if two have that. Raises InvalidArgumentError if
    two have a name, or one is too long for a folder's, NotAStoreError if a pattern matches
    nothing.
    """
    named = _named(stores)
    if named is None:
        paths = [path for each in _as_list(stores) for path in _expanded(each)]
        paths = list(dict.fromkeys(paths))
        counts = Counter(map(_last, paths))
        named = [
            Member(_last(path) if counts[_last(path)] == 1 else readable(path), path)
            for path in paths
        ]
    twice = [name for name, count in Counter(each.name for each in named).items() if count > 1]
    if twice:
        raise InvalidArgumentError(
            f"Two stores are named {twice[0]!r}. Give each store its own name."
        )
    for each in named:
        _check_name(each.name)
    if not named:
        raise InvalidArgumentError("No store was named. Pass a path, a pattern, or a list of them.")
    return named


def _named(stores: Any) -> list[Member] | None:
    """Return the stores of a mapping or of a table of names and paths; None: it is neither."""
    if hasattr(stores, "toArrow"):  # Spark's
        stores = stores.select("name", "path").toArrow()
    if isinstance(stores, Mapping):
        rows: Iterable[Any] = stores.items()
    elif hasattr(stores, "itertuples"):  # pandas: Arrow would take all its columns
        rows = zip(stores["name"], stores["path"], strict=True)
    elif hasattr(stores, "__arrow_c_stream__"):
        columns = pa.table(stores).select(["name", "path"]).itercolumns()
        rows = zip(*(each.to_pylist() for each in columns), strict=True)
    elif isinstance(stores, list | tuple) and stores and isinstance(stores[0], list | tuple):
        rows = stores
    else:
        return None
    found = []
    for row in rows:
        if len(row) != 2:
            raise InvalidArgumentError(f"stores contains {row!r}. Pass pairs of a name and a path.")
        name, path = row
        check_kind(name, str, "a store's name")
        found.append(Member(name, os.path.abspath(check_path(path))))
    return found


def _as_list(stores: Any) -> list[Any]:
    if isinstance(stores, str | bytes | os.PathLike):
        return [stores]
    return check_list(stores, "stores", "Pass a path, or a list of them.")


def _expanded(path: Any) -> list[str]:
    """Return the stores that a path means; itself, if it is none and no pattern either."""
    text = os.fspath(check_path(path))
    try:
        found = find_stores(text, refused_too=True).paths
    except NotAStoreError:
        if _PATTERN & set(text):
            raise
        found = (text,)
    return [os.path.abspath(each) for each in found]


def _last(path: str) -> str:
    return readable(Path(path).name or path)


def _check_name(name: str) -> None:
    """Check that a folder of the tables can have the name of a store."""
    if readable(name) != name:
        raise InvalidArgumentError(f"A store's name is {name!r}. Pass a str.")
    if len(os.fsencode(quote_store(name))) > _NAME_BYTES_MAX:
        raise InvalidArgumentError(
            f"{name!r} is too long for the name of a store. Pass a shorter one with its path."
        )


def size_of(path: str) -> int:
    """Return how many bytes of disk the logs of a store take; 0 of a copy, or if nobody knows."""
    total = 0
    if is_copy(path):
        return total  # one task reads it
    for folder in _LOGS:
        try:
            with os.scandir(Path(path) / folder) as files:
                total += sum(each.stat(follow_symlinks=False).st_blocks * 512 for each in files)
        except OSError:
            continue
    return total


def do_store(member: Member, options: RunOptions, spark: SparkSession | None = None) -> Looked:
    """Do all of a store.

    One that cannot be read is a row: its error must not keep the others from being looked at.
    """
    began_s = time.perf_counter()
    try:
        plan = make_plan(member.path, options.reading, measures=True)
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


def _finish(member: Member, scope: Scope, tally: Evidence, options: RunOptions) -> Looked:
    """Write the tables of what both rounds found."""
    finish(scope, tally)
    found = Validation.make(scope, tally)
    row, tables = tables_of(scope, tally, found, options.now_ms)
    files, run, day = options.files, options.thresholds.baseline, options.baseline_day
    ordered = {FIRST: tables[FIRST]} | tables
    written = [files.write(name, rows, member.name) for name, rows in ordered.items()]
    return Looked(
        name=member.name,
        row=row,
        history=history_of(files.out, member.name, files.run, files.day),
        baseline=baseline_of(files.out, member.name, run, day) if run and day else None,
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
    large = [number for number in order if sizes[number] > options.reading.split_bytes]
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
    how = Reading(upto, delay_levels, roll_window_slots, split_bytes).checked()
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
        reading=how,
        own_rules=own,
        baseline_day=_day_of(limits.baseline, place),
    )
    with told_of(place):
        options.files.begin()
    if spark is None:
        looked = [do_store(member, options) for member in members]
    else:
        looked = do_on_spark(spark, members, options)
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
