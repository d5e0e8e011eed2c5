"""A validation in one process, without Spark.

Facts wait in DuckDB, which spills them to disk, so the memory that is needed is bounded, however
large the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from timerstore.audit.engines import DuckDB, import_duckdb
from timerstore.audit.own import read_rules
from timerstore.tables.splits import Range
from timerstore.tables.view import forget
from timerstore.timelog.files.oserrors import telling
from timerstore.validation.evidence import Evidence
from timerstore.validation.facts import SCHEMAS, SOURCES
from timerstore.validation.files import finish
from timerstore.validation.ownrules import ask_own, check_own
from timerstore.validation.plan import SPLIT_BYTES, Plan, make_plan
from timerstore.validation.result import Validation
from timerstore.validation.work import look_at, meet, source_facts
from timerstore.values.config import DELAY_LEVELS


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
        meet(engine, tally)
    step(())
    return tally


@telling
def validate(
    path: str | os.PathLike[str],
    *,
    upto: str | None = None,
    delay_levels: str = DELAY_LEVELS,
    roll_window_slots: int | None = None,
    split_bytes: int = SPLIT_BYTES,
    rules: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Check that the parts of a store agree with each other; change nothing.

    Reads a closed store or a copy to its end, one that is open to its last checkpoint, a broker's
    too. `upto`: "checkpoint" or "end", if it is not to choose itself. `delay_levels`: those of
    the store; `roll_window_slots`: of a broker's, which its files do not say. `rules`: a folder of
    rules of your own (docs/howto/own-rules.md). `progress`: is told how many steps are done, of how
    many. Needs the extra `audit`. Raises NotAStoreError, ImportError; damage is in the result.
    O(bytes); 1 GB of memory at most for what is to meet, the rest goes to temporary files.

    >>> timerstore.validation.validate("timers/").ok
    True
    """
    import_duckdb()  # before hours of reading
    own = read_rules(rules)
    check_own(own)
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
        tally = run(plan, step)
        finish(plan.scope, tally)
        return Validation.make(plan.scope, tally, ask_own(own, path, upto, delay_levels))
    finally:
        forget(plan.scope.cut)
