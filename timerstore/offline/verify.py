"""Verifying: every byte of a closed store, or of a copy, against all the others.

The rules are those of a validation, except the queries over all that a store says
(`timerstore/audit/integrity/`); here they become a short report. Nothing is changed, no lock is
taken, and holes stay holes.

A *problem* is damage: bytes that cannot have been written there. A *warning* is what the next
opening mends by itself, such as a torn tail behind the last checkpoint of a store that was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from timerstore.audit.rule import ABOUT_BYTES, CONSISTENCY_RULES, Example
from timerstore.copies.destination import Place, shown_place
from timerstore.copies.report import PROBLEMS_MAX, Problem, Progress, VerifyReport
from timerstore.copies.restore import as_folder
from timerstore.copies.standby import standby_faults
from timerstore.core.directory import is_standby
from timerstore.tables.splits import LOG, UNITS, WHEEL, Range
from timerstore.tables.timers import count_pending
from timerstore.tables.view import forget
from timerstore.timelog.files.oserrors import telling
from timerstore.timelog.files.refuse_rocksdb import folder_name
from timerstore.timelog.reading.reader import Fault
from timerstore.validation.facts import Evidence, RulePlaces
from timerstore.validation.files import finish
from timerstore.validation.plan import Plan, Reading, Scope, make_plan
from timerstore.validation.rounds import run
from timerstore.values.config import Config
from timerstore.values.kinds import check_kind, check_path

_PARTS: Final = (LOG, "consumequeue", UNITS, WHEEL)
"""In the order in which what is wrong is told, behind the small files."""


@telling
def verify(
    path: Place,
    *,
    config: Config | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check every byte of a closed store, of a copy, or of a backup; change nothing.

    If the store is open, it checks what the last checkpoint made durable; what comes after that is
    a warning at most, because it may be half written. It checks all points of a backup, which
    it copies below TMPDIR first. It reads RocketMQ's own stores, too. `config`: the
    delay levels, if they are not RocketMQ's. `progress`: is told how many bytes are done, of how
    many. Raises NotAStoreError if there is no store; damage is in the report. O(bytes), in bounded
    memory.

    >>> timerstore.verify("timers/").ok
    True
    """
    config = Config() if config is None else config
    check_kind(config, Config, "config")
    faults = list[Fault]()
    with as_folder(path, on_fault=faults.append) as (folder, point):
        is_copy = point is not None
        if not is_copy and is_standby(check_path(path)):
            is_copy, faults = True, standby_faults(check_path(path))
        return _verify(folder, shown_place(path), is_copy, faults, config, progress)


def _verify(
    folder: Path,
    shown: str,
    is_copy: bool,
    faults: list[Fault],
    config: Config,
    progress: Progress | None,
) -> VerifyReport:
    """Check a folder; `is_copy`: without indexes; `faults` were found on the way to it."""
    how = Reading("end", config.delay_levels)
    plan = make_plan(folder, how, only_bytes=True, has_indexes=not is_copy)
    try:
        tally = run(plan, _stepper(plan, progress))
        if is_copy:
            for fault in faults:
                tally.fail("files", 1, [Example(*fault)])
        elif not _failed(tally):
            tally.counts["pending"] = count_pending(plan.scope.view)
        finish(plan.scope, tally)
        return _report(shown, plan.scope, tally)
    finally:
        forget(plan.scope.cut)


def _stepper(plan: Plan, progress: Progress | None) -> Callable[[Iterable[Range]], None]:
    """Return what adds up the bytes of both logs that are done."""

    def bytes_of(ranges: Iterable[Range]) -> int:
        return sum(stop - start for part, start, stop in ranges if part in (LOG, UNITS))

    done, total = 0, sum(map(bytes_of, plan.splits))

    def step(ranges: Iterable[Range]) -> None:
        nonlocal done
        done += bytes_of(ranges)
        if progress is not None:
            progress(done, total)

    return step


def _failed(tally: Evidence) -> bool:
    return any(
        tally.failed[rule.name]
        for rule in CONSISTENCY_RULES
        if rule.name in ABOUT_BYTES and rule.severity == "error"
    )


def _report(path: str, scope: Scope, tally: Evidence) -> VerifyReport:
    reader, checked = scope.view.reader, tally.checked["message_sound"]
    rules = [rule for rule in CONSISTENCY_RULES if rule.name in ABOUT_BYTES]
    errors = [rule.name for rule in rules if rule.severity == "error"]
    lesser = [rule.name for rule in rules if rule.severity == "warning"]
    problems, problem_count = _told([(tally.failed, errors)])
    warnings, warning_count = _told([(tally.failed, lesser), (tally.mended, [*errors, *lesser])])
    sizes = [reader.commitlog.bytes_count, reader.timerlog.bytes_count, reader.slots.nbytes]
    sizes += [queue.bytes_count for queue in reader.queues.values()]
    is_counted = not problems and scope.has_indexes
    return VerifyReport(
        path=path,
        problems=problems,
        warnings=warnings,
        problem_count=problem_count,
        warning_count=warning_count,
        message_count=checked - tally.failed["message_sound"] - tally.mended["message_sound"],
        entry_count=tally.checked["entry_message"],
        unit_count=tally.counts["units"],
        slot_count=tally.counts["slots"],
        pending_count=tally.counts["pending"] if is_counted else None,
        queue_count=len(reader.queues),
        bytes_count=sum(sizes),
        was_open=reader.is_open,
        by_broker=scope.by_broker,
        unread=tuple(folder_name(*each) for each in scope.view.batch_queues),
    )


def _told(found: Iterable[tuple[RulePlaces, list[str]]]) -> tuple[tuple[Problem, ...], int]:
    """Return places, each once though it breaks several rules, and how many there are."""
    count, named = 0, dict[tuple[int, str, int], Problem]()
    for places, rules in found:
        for rule in rules:
            count += places[rule]
            for file, offset, reason in places.examples.get(rule, ()):
                part = file.partition("/")[0]
                rank = _PARTS.index(part) if part in _PARTS else -1
                count -= (rank, file, offset) in named
                named.setdefault((rank, file, offset), Problem(file, offset, reason))
    return tuple(named[place] for place in sorted(named))[:PROBLEMS_MAX], count
