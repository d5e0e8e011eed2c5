"""One store, from its bytes to its tables: looked at, written; `judging.py` does what is left.

Whoever does the two rounds of a validation (`timerstore/validation/work.py`), this does the rest.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from timerstore.pipeline.finding import of_validation
from timerstore.pipeline.fleet import Member
from timerstore.pipeline.judging import Looked
from timerstore.pipeline.runoptions import RunOptions
from timerstore.pipeline.storetables import tables_of, unreadable
from timerstore.pipeline.tablefiles import baseline_of, history_of
from timerstore.tables.view import forget
from timerstore.validation.evidence import Evidence
from timerstore.validation.files import finish
from timerstore.validation.plain import run
from timerstore.validation.plan import Plan, Scope, make_plan
from timerstore.validation.result import Validation


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


def do_store(
    member: Member, options: RunOptions, rounds: Callable[[Plan], Evidence] = run
) -> Looked:
    """Do all of a store; `rounds` does both rounds of a validation.

    One that cannot be read is a row: its error must not keep the others from being looked at.
    """
    began_s = time.perf_counter()
    try:
        plan = plan_store(member, options)
        try:
            looked = _finish(member, plan.scope, rounds(plan), options)
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
        consistency=of_validation(found),
        files=tuple(written),
        spent=dict(tally.spent),
    )
