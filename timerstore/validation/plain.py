"""A validation, in one process or on Spark.

In one process facts wait in DuckDB, which spills them to disk, so the memory that is needed is
bounded, however large the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from timerstore.audit.engines import DuckDB, import_duckdb
from timerstore.audit.own import read_rules
from timerstore.copies.destination import is_copy
from timerstore.tables.splits import Range
from timerstore.tables.view import forget
from timerstore.timelog.files.oserrors import telling
from timerstore.validation.evidence import Evidence
from timerstore.validation.facts import SCHEMAS, SOURCES
from timerstore.validation.files import finish
from timerstore.validation.onspark import run_on_spark
from timerstore.validation.ownrules import ask_own, check_own
from timerstore.validation.plan import SPLIT_BYTES, Plan, make_plan
from timerstore.validation.result import Validation
from timerstore.validation.work import look_at, meet, source_facts
from timerstore.values.config import DELAY_LEVELS
from timerstore.values.kinds import check_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(plan: Plan, step: Callable[[tuple[Range, ...]], None] = lambda _: None) -> Evidence:
    """Do both rounds; return what was found.

    `step`: is told the ranges that were looked at, none when their facts have met. If only bytes
    are asked for, nothing meets. Raises ImportError.
    """
    scope, tally = plan.scope, plan.scope.new_tally()
    if scope.only_bytes:
        for ranges in plan.splits:
            tally.merge(look_at(scope, ranges)[0])
            step(ranges)
        return tally
    with DuckDB({}) as engine:
        for name, schema in SCHEMAS.items():
            engine.add(name, schema.empty_table())
        engine.add(SOURCES, source_facts(scope))
        for ranges in plan.splits:
            found, facts = look_at(scope, ranges)
            tally.merge(found)
            for name, rows in facts.items():
                engine.add(name, rows)
            step(ranges)
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
    NotAStoreError, ImportError; damage is in the result. O(bytes); 1 GB of memory at most for what
    is to meet, the rest goes to temporary files; on Spark some 200 bytes for each timer.

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
    check_own(own, spark)
    plan = make_plan(
        path,
        upto=upto,
        delay_levels=delay_levels,
        roll_window_slots=roll_window_slots,
        split_bytes=split_bytes,
    )
    done = 0

    def step(_: tuple[Range, ...]) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, plan.step_count)

    try:
        tally = run(plan, step) if spark is None else run_on_spark(spark, plan)
        finish(plan.scope, tally)
        return Validation.make(plan.scope, tally, ask_own(own, path, upto, delay_levels, spark))
    finally:
        forget(plan.scope.cut)
