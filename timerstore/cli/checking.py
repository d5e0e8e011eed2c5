"""Commands that check a store: verify, validate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timerstore.cli.app import (
    CHECK,
    AnyPath,
    AsJson,
    ConfigFile,
    StorePath,
    answering,
    app,
    settings,
)
from timerstore.cli.open_store import held_by
from timerstore.cli.output import DAMAGED, Output
from timerstore.errors import InvalidArgumentError
from timerstore.values.amounts import shown_bytes, shown_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from timerstore.copies.report import VerifyReport
    from timerstore.validation import Validation

EXAMPLES_SHOWN = 3
LINES_MAX = 20
"""Damaged places that are shown one by one; all are counted, and `--json` has a thousand."""
Upto = Annotated[
    str | None,
    typer.Option(
        help=(
            "checkpoint or end. Default: up to the checkpoint if the store is open, else up to "
            "the end."
        )
    ),
]
RollWindow = Annotated[
    int | None,
    typer.Option(help="The roll window of a broker, in slots. A broker's store does not say it."),
]
OwnRules = Annotated[
    Path | None,
    typer.Option("--rules", help="A folder of rules of your own, a file of SQL each."),
]
OnSpark = Annotated[bool, typer.Option("--spark", help="Run on Spark, which uses all cores.")]
All = Annotated[bool, typer.Option("--all", help="Show also the rules that passed.")]


def checkpoint_ms(path: Path) -> int | None:
    """Return when the last checkpoint was written, None if there is none."""
    try:
        return (path / "config" / "timercheck").stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


def tell_live(out: Output, path: Path) -> int | None:
    """Say as of when a store is read that a process has open; None if none has."""
    who, as_of_ms = held_by(path), checkpoint_ms(path)
    if who is None or as_of_ms is None:
        return None
    when = shown_time(as_of_ms)
    out.note(
        f"{path} is open in another process{who}. What follows is as of its checkpoint of {when}."
    )
    return as_of_ms


# --- verify


@app.command(rich_help_panel=CHECK)
def verify(
    path: AnyPath, show_all: All = False, as_json: AsJson = False, config: ConfigFile = None
) -> None:
    """Check every byte of a store or a backup. Change nothing. Exit status 1: there is damage.

    If a process has the store open, it is checked as of its last checkpoint. What is being written
    after that does not count as damage.

    Example: timerstore verify timers/
    """
    with answering(as_json=as_json) as out:
        from timerstore.copies.destination import is_address

        as_of_ms = None if is_address(path) else tell_live(out, Path(path))
        from timerstore.offline.verify import verify as run

        with out.progress(f"checking {path}", "bytes") as update:
            report = run(path, config=settings(config), progress=update)
        if not report.ok:
            out.status = DAMAGED
        if as_json:
            out.json(report.to_dict() | {"as_of_ms": as_of_ms})
        else:
            show_report(out, report, live=as_of_ms is not None, show_all=show_all)


def show_report(out: Output, report: VerifyReport, *, live: bool, show_all: bool) -> None:
    """Write the verdict, then damage; with `show_all` also what the next opening mends."""
    verdict = "no damage found" if report.ok else f"{report.problem_count:,} damaged places"
    out.say(
        f"{report.path}: {verdict} in {report.message_count:,} messages, "
        f"{report.entry_count:,} queue entries, {report.unit_count:,} units and "
        f"{report.slot_count:,} slots"
    )
    found = [(each.file, each.offset, each.reason) for each in report.problems]
    show_places(out, found, report.problem_count)
    if live or not report.warning_count:
        return
    if show_all:
        mended = [(a.file, a.offset, f"mended at open: {a.reason}") for a in report.warnings]
        show_places(out, mended, report.warning_count)
    else:
        out.say(f"{report.warning_count:,} places that the next opening mends; --all shows them")


def show_places(out: Output, rows: list[tuple[str, int, str]], count: int) -> None:
    """Show the first places of damage, and how many more there are."""
    if rows:
        out.table(["file", ">offset", "reason"], rows[:LINES_MAX])
    if count > LINES_MAX:
        out.say(f"and {count - min(len(rows), LINES_MAX):,} more")


# --- validate


@app.command(rich_help_panel=CHECK)
def validate(
    path: StorePath,
    spark: OnSpark = False,
    upto: Upto = None,
    roll_window: RollWindow = None,
    rules: OwnRules = None,
    show_all: All = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Check that a store's parts agree. Change nothing.

    It takes no lock. If a process has the store open, it is read up to its last checkpoint.
    docs/validate.md explains each rule. Exit status 1: a rule failed.

    Example: timerstore validate timers/ --all
    """
    options: dict[str, Any] = {"upto": upto, "roll_window_slots": roll_window, "rules": rules}
    with answering(as_json=as_json) as out:
        options["delay_levels"] = settings(config).delay_levels
        if upto != "end":
            tell_live(out, path)
        from timerstore.validation import validate as run

        if spark:
            with out.progress(f"validating {path} on Spark"), on_spark("validate") as running:
                found = run(path, spark=running, **options)
        else:
            with out.progress(f"validating {path}", "steps") as update, lack_is_told():
                found = run(path, progress=update, **options)
        if not found.ok:
            out.status = DAMAGED
        if as_json:
            out.json(found.to_dict())
        else:
            show_validation(out, found, show_all=show_all)


@contextmanager
def lack_is_told() -> Iterator[None]:
    """Tell that an extra is not installed as what it is: no error of ours."""
    try:
        yield
    except ImportError as e:
        raise InvalidArgumentError(str(e)) from e


@contextmanager
def on_spark(command: str, master: str | None = None) -> Iterator[SparkSession]:
    """Yield a session for as long as a command needs it."""
    with lack_is_told():
        from timerstore.spark import session
    running = session(app_name=f"timerstore {command}", master=master or "local[*]")
    try:
        yield running
    finally:
        running.stop()


def show_validation(out: Output, found: Validation, *, show_all: bool) -> None:
    """Write the verdict, a row for each rule that failed, or all, with places; then the counts."""
    out.say(f"{found.path}: {found.verdict}")
    rows = [
        (each.rule.group, each.name, f"{each.checked:,}", f"{each.failed:,}", _word(each))
        for each in found.rules
        if show_all or each.failed
    ]
    places = [
        (each.name, file, offset, reason)
        for each in found.failures
        for file, offset, reason in each.places[:EXAMPLES_SHOWN] or [("", "", each.says)]
    ]
    counts = [("read", f"{shown_bytes(found.bytes_count)} of {_writer(found)}")]
    counts += [(name, f"{count:,}") for name, count in found.counts.items() if count]
    for columns, cells in (
        (["of", "rule", ">checked", ">failed", "verdict"], rows),
        (["rule", "file", ">offset", "reason"], places[:LINES_MAX]),
        (["what", "value"], counts),
    ):
        if cells:
            if out.on_terminal:
                out.say()
            out.table(columns, cells)


def _word(result: Any) -> str:
    if result.ok and result.mended:
        return f"the next opening mends {result.mended:,}"
    if result.ok:
        return "ok" if result.checked else "nothing to check"
    return "FAILED" if result.verdict == "fail" else "warning"


def _writer(found: Validation) -> str:
    writer = "a broker's store" if found.by_broker else "a store"
    return f"{writer}, which is open or was not closed" if found.was_open else writer
