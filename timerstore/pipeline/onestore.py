"""One store, from its bytes to its tables: looked at, written; `judging.py` does what is left.

A small store is done in one go, in one task. Of a large one many do the two rounds of a
validation (`timerstore/validation/work.py`), and then one does what is left.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

from timerstore.ground.config import DELAY_LEVELS
from timerstore.pipeline.finding import of_validation
from timerstore.pipeline.fleet import Member
from timerstore.pipeline.judging import Looked
from timerstore.pipeline.storetables import reason_of, tables_of, unreadable
from timerstore.pipeline.tablefiles import TableFiles, history_of
from timerstore.pipeline.thresholds import Thresholds
from timerstore.tables.view import forget
from timerstore.validation.evidence import Evidence
from timerstore.validation.files import finish
from timerstore.validation.plain import run as run_plainly
from timerstore.validation.plan import SPLIT_BYTES, Plan, Scope, make_plan


@dataclass(frozen=True)
class RunOptions:
    """What all parts of a run must know."""

    files: TableFiles
    thresholds: Thresholds
    now_ms: int
    upto: str | None = None
    delay_levels: str = DELAY_LEVELS
    roll_window_slots: int | None = None
    split_bytes: int = SPLIT_BYTES


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


def do_store(member: Member, options: RunOptions) -> Looked:
    """Do all of a store in this process; one that cannot be read is a row."""

    def work() -> Looked:
        plan = plan_store(member, options)
        try:
            tally = run_plainly(plan, lambda _: None)
            return finish_store(member, plan.scope, tally, options)
        finally:
            forget(plan.scope.cut)

    return or_unreadable(member, options, work)


def or_unreadable(member: Member, options: RunOptions, work: Callable[[], Looked]) -> Looked:
    """Do something about a store; if that fails, write that it could not be read.

    An error of one store must not keep the others from being looked at. What is wrong
    with `out` is raised, because it concerns all of them.
    """
    try:
        return work()
    except Exception as e:
        reason = reason_of(e)
    gc.collect()  # frames of the failed one may still map its segments
    return give_up(member, options, reason)


def give_up(member: Member, options: RunOptions, reason: str) -> Looked:
    """Return a store that could not be read."""
    return Looked(member.name, unreadable(member.path, reason, options.now_ms))


def finish_store(member: Member, scope: Scope, tally: Evidence, options: RunOptions) -> Looked:
    """Write the tables of what both rounds found."""
    finish(scope, tally)
    seen, found = tables_of(scope, tally, options.now_ms)
    files = options.files
    written = [files.write(name, rows, member.name) for name, rows in seen.tables.items()]
    return Looked(
        name=member.name,
        row=seen.store,
        history=history_of(files.out, member.name, files.run, files.day),
        consistency=of_validation(found),
        files=tuple(written),
    )
