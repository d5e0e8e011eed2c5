"""A validation, in two rounds, in one process or on Spark.

In the first round each range of the store is looked at by itself, in any process, which writes its
facts to Parquet files. In the second the facts of all ranges meet: queries over these files say
what does not fit (`timerstore/audit`), with DuckDB or on Spark. So the memory that is needed is
bounded, however large the store.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timerstore.audit import Rule, ask, open_on
from timerstore.audit.asking import (
    COUNTS,
    JOINS,
    MEASURES,
    add_stores,
    check_rules,
    checked_queries,
    places_query,
    read_rules,
)
from timerstore.audit.engines import Engine, import_duckdb, on_workers, write_rows
from timerstore.audit.rule import Example, Finding, of_rows, readable
from timerstore.copies.destination import is_copy
from timerstore.tables.bounds import java_hash
from timerstore.tables.splits import FILES, LOG, UNITS, WHEEL, Range
from timerstore.tables.view import forget
from timerstore.timelog.files.oserrors import telling
from timerstore.validation.entries import last_filler, look_at_entries
from timerstore.validation.facts import SCHEMAS, SOURCES, Evidence, Facts, Findings
from timerstore.validation.files import finish, look_at_files
from timerstore.validation.messages import look_at_messages
from timerstore.validation.plan import SPLIT_BYTES, Plan, Reading, Scope, make_plan
from timerstore.validation.result import Validation
from timerstore.validation.units import look_at_slots, look_at_units
from timerstore.values.config import DELAY_LEVELS
from timerstore.values.kinds import check_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def look_at(scope: Scope, ranges: tuple[Range, ...]) -> tuple[Evidence, Facts]:
    """Look at ranges of a store; return what was found, and the facts that are to meet others."""
    findings = Findings(scope)
    for part, start, stop in ranges:
        if part == LOG:
            look_at_messages(findings, start, stop)
        elif part == UNITS:
            look_at_units(findings, start, stop)
        elif part == WHEEL:
            look_at_slots(findings, start, stop)
        elif part == FILES:
            look_at_files(findings)
        else:
            look_at_entries(findings, part, start, stop)
    reader = scope.view.reader
    for segments in (reader.commitlog, reader.timerlog, *reader.queues.values()):
        segments.unmap()
    return findings.tally, findings.facts()


def source_facts(scope: Scope) -> pa.Table:
    """Return the one row of facts that says where the parts of a store end."""
    view, checkpoint = scope.view, scope.view.checkpoint
    is_ours = checkpoint is not None and not checkpoint.by_broker
    numbers = {
        "read_slot": view.read_slot,
        "read_ms": view.read_slot * view.reader.precision_ms,
        "precision_ms": view.reader.precision_ms,
        "units_start": view.reader.timerlog.start,
        "linked_again": scope.linked_again,
        "slots_anew": scope.slots_anew,
        "floor_at": view.floor,
        "log_start": view.reader.commitlog.start,
        # What became of a message before that may have been lost, and covered.
        "salvaged_to": last_filler(view.reader),
        "checkpoint_floor": checkpoint.floor if is_ours and checkpoint else 0,
        "scan_from": checkpoint.scan_from if is_ours and checkpoint else 0,
        "is_wheel_torn": scope.is_wheel_torn,
        "is_our_store": is_ours,
        "is_handed_over": bool(is_ours and checkpoint and checkpoint.handed_over),
    }
    return pa.Table.from_pylist([numbers], SCHEMAS[SOURCES])


def meet(engine: Engine, scope: Scope, tally: Evidence) -> None:
    """Judge what all facts of a store say together; the engine has them as tables."""
    joins, checked = dict(JOINS), checked_queries()
    if not tally.counts["nameless_copies"]:
        joins["matched"] = "SELECT * FROM named WHERE FALSE"
    measures = MEASURES if scope.measures else {}
    rules = {"rules": places_query(tally.named_max), **checked, "counts": COUNTS}
    queries = {**joins, **rules, **measures}
    if measures:
        engine.add("topics", _topics(tally.topics))

    def act(name: str) -> Any:
        began_s, query = time.perf_counter(), queries[name]
        if name in joins:
            found = engine.make(name, query)
        else:
            found = engine.ask(query) if name in measures else engine.rows(query)
        tally.spent[name] = time.perf_counter() - began_s
        return found

    found = engine.each(queries, act)
    places: dict[tuple[str, bool, int], list[Example]] = defaultdict(list)
    for row in found["rules"]:
        place = Example(row["file"], row["place"], row["reason"])
        places[row["rule"], row["is_torn"], row["places"]].append(place)
    for (rule, is_torn, count), named in places.items():
        tally.fail(rule, count, named, torn=is_torn)
    for name in checked:
        tally.checked.update(*found[name])
    tally.counts.update(*found["counts"])
    tally.measures.update({name: found[name] for name in measures})


def _topics(names: Mapping[int, str]) -> pa.Table:
    """Return the names of topics as a table, by their numbers and by what units have of them."""
    return pa.table(
        {
            "topic": pa.array(names, pa.int64()),
            "name": pa.array(map(readable, names.values()), pa.string()),
            "topic_hash": pa.array(
                [java_hash(name) & 0xFFFFFFFF for name in names.values()], pa.int64()
            ),
        }
    )


def _note(plan: Plan, folder: str, number: int) -> Evidence:
    """Look at a split, and write its facts; return what it tells by itself."""
    found, facts = look_at(plan.scope, plan.splits[number])
    for name, rows in facts.items():
        write_rows(rows, f"{folder}/{name}/{number}.parquet", folder)
    return found


def ask_own(
    rules: Sequence[Rule],
    path: str | os.PathLike[str],
    upto: str | None,
    delay_levels: str,
    spark: SparkSession | None = None,
) -> tuple[Finding, ...]:
    """Return how each rule does in a store. Raises InvalidArgumentError."""
    if not rules:
        return ()
    name = os.fspath(path)
    with open_on(spark)({}) as engine:
        add_stores(engine, rules, {name: name}, upto, delay_levels)
        asked = [(rule, ask(engine, rule, rule.limits).get(name, [])) for rule in rules]
    return tuple(of_rows(rule, rule.limits, rows) for rule, rows in asked)


def run(
    plan: Plan,
    step: Callable[[tuple[Range, ...]], None] = lambda _: None,
    *,
    spark: SparkSession | None = None,
    within: str | None = None,
) -> Evidence:
    """Do both rounds; return what was found.

    `step`: is told the ranges that were looked at in this process, none when their facts have met.
    `within`: where facts wait; TMPDIR, if None. If only bytes are asked for, nothing meets. Raises
    ImportError.
    """
    scope, tally = plan.scope, Evidence.of(plan.scope)
    if scope.only_bytes:
        for ranges in plan.splits:
            tally.merge(look_at(scope, ranges)[0])
            step(ranges)
        return tally
    with tempfile.TemporaryDirectory(prefix="timerstore-facts-", dir=within) as folder:
        note = partial(_note, plan, folder)
        if spark is None:
            for number, ranges in enumerate(plan.splits):
                tally.merge(note(number))
                step(ranges)
        else:
            for found in on_workers(spark, len(plan.splits), note):
                tally.merge(found)
        with open_on(spark)({SOURCES: source_facts(scope)}) as engine:
            for name, schema in SCHEMAS.items():
                if name != SOURCES:
                    engine.read(name, schema, f"{folder}/{name}")
            meet(engine, scope, tally)
    step(())
    return tally


@telling
def validate(
    path: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    upto: str | None = None,
    delay_levels: str = DELAY_LEVELS,
    roll_window_slots: int | None = None,
    split_bytes: int = SPLIT_BYTES,
    rules: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Check that the parts of a store agree with each other; change nothing.

    Reads a closed store or a copy to its end, one that is open to its last checkpoint, a broker's
    too. `spark`: a session, whose workers must see the files under the same path; None, or for a
    copy: this process, which needs the extra `audit`. `upto`: "checkpoint" or "end", if it is not
    to choose itself. `delay_levels`: those of the store; `roll_window_slots`: of a broker's, which
    its files do not say. `rules`: a folder of rules of your own (docs/howto/own-rules.md).
    `progress`: is told how many steps are done in this process, of how many. Raises
    NotAStoreError, ImportError; damage is in the result. O(bytes). What is to meet goes to
    files below TMPDIR, which workers share too; some 40 bytes for each timer.

    >>> timerstore.validation.validate("timers/").ok
    True
    """
    path = check_path(path)
    spark = None if is_copy(path) else spark
    if spark is None:
        import_duckdb()  # before hours of reading
    else:
        path = path.absolute()
    own = read_rules(rules)
    check_rules(own, {}, open_on(spark))
    plan = make_plan(path, Reading(upto, delay_levels, roll_window_slots, split_bytes))
    done = 0

    def step(_: tuple[Range, ...]) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, plan.step_count)

    try:
        tally = run(plan, step, spark=spark)
        finish(plan.scope, tally)
        return Validation.make(plan.scope, tally, ask_own(own, path, upto, delay_levels, spark))
    finally:
        forget(plan.scope.cut)
