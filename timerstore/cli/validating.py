"""The command `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from timerstore.cli.app import AsJson, StorePath, answering
from timerstore.cli.commands import app
from timerstore.cli.output import Output, shown_bytes, shown_time
from timerstore.cli.status import DAMAGED
from timerstore.errors import InvalidArgumentError
from timerstore.validation import Spread, Validation
from timerstore.validation.spread import FIRE_RATE_PER_S

EXAMPLES_SHOWN = 3


@app.command()
def validate(
    path: StorePath,
    spark: Annotated[
        bool, typer.Option("--spark", help="On Spark, with all cores; for stores of any size.")
    ] = False,
    upto: Annotated[
        str | None,
        typer.Option(help="checkpoint or end; else a store that is open to its checkpoint."),
    ] = None,
    roll_window: Annotated[
        int | None, typer.Option(help="A broker's roll window in slots: its store does not say.")
    ] = None,
    fire_rate: Annotated[
        float, typer.Option(help="Timers that this machine fires in a second, for the load.")
    ] = FIRE_RATE_PER_S,
    as_json: AsJson = False,
) -> None:
    """Check that the parts of a store agree, and show how its timers are spread; change nothing.

    It takes no lock: a store that is open is read up to its last checkpoint. What each rule means
    stands in docs/validate.md.
    """
    options = {"upto": upto, "roll_window_slots": roll_window, "fire_rate_per_s": fire_rate}
    with answering(as_json=as_json) as out:
        run = _run_on_spark if spark else _run_here
        found = run(out, path, options)
        if not found.ok:
            out.status = DAMAGED
        if as_json:
            out.json(found.to_dict())
        else:
            show_validation(out, found)


def _run_here(out: Output, path: Path, options: dict[str, Any]) -> Validation:
    from timerstore.validation import validate as run

    with out.progress(f"validating {path}", total=1_000) as update:
        return run(path, progress=lambda done, of: update(done * 1_000 // of), **options)


def _run_on_spark(out: Output, path: Path, options: dict[str, Any]) -> Validation:
    try:
        from timerstore import spark
    except ImportError as e:
        raise InvalidArgumentError(str(e)) from e
    with out.progress(f"validating {path} on Spark"):
        session = spark.session()
        try:
            return spark.validate(session, path.absolute(), **options)
        finally:
            session.stop()


def show_validation(out: Output, found: Validation) -> None:
    """Write a row for each rule, the places of failures, how timers are spread."""
    rows = [
        (each.rule.group, each.name, f"{each.checked:,}", f"{each.failed:,}", _word(each))
        for each in found.rules
    ]
    out.table(["of", "rule", ">checked", ">failed", "verdict"], rows)
    places = [
        (each.name, file, offset, reason)
        for each in found.failures
        for file, offset, reason in each.examples[:EXAMPLES_SHOWN]
    ]
    if out.on_terminal:
        out.say()
    if places:
        out.table(["rule", "file", ">offset", "reason"], places)
        if out.on_terminal:
            out.say()
    out.table(["what", "value"], spread_rows(found, found.spread))
    out.say(f"{found.path}: {found.verdict}")


def _word(result: Any) -> str:
    if result.ok:
        return "ok" if result.checked else "nothing to check"
    return "FAILED" if result.severity == "error" else "warning"


def spread_rows(found: Validation, spread: Spread) -> list[tuple[str, str]]:
    """Return what a person wants to know of how timers are spread, as names and values."""
    hour, pending = spread.next_hour, max(1, spread.pending_count)
    rows = [
        ("read", f"{shown_bytes(found.bytes_count)} of {_writer(found)}"),
        ("pending", f"{spread.pending_count:,} timers in {spread.slot_count:,} slots"),
        ("rolled", f"{spread.rolled_count / pending:.1%} once or more"),
        ("waits to roll", f"{spread.roll_unit_count / pending:.1%}"),
        (
            "next hour",
            f"{hour['timers']:,.0f} timers, in its heaviest minute {hour['peak_per_s']:,.1f} a "
            f"second: {hour['peak_share']:.3%} of {spread.fire_rate_per_s:,.0f}",
        ),
    ]
    if spread.heaviest:
        begin_ms, count = spread.heaviest[0]
        rows.append(("heaviest slot", f"{count:,} units at {shown_time(begin_ms)}"))
        skew = f"{spread.skew:.1f} × the mean, Gini {spread.slot_gini:.2f}"
        rows.append(("skew of slots", skew))
    rows += [(f"topic {name}", f"{count:,}") for name, count in [*spread.topics.items()][:10]]
    if spread.fired_count:
        late = ", ".join(f"{name} {ms:,}" for name, ms in spread.lateness_quantiles.items())
        rows.append(("lateness, ms", f"{late}, of {spread.fired_count:,} fired"))
    return rows


def _writer(found: Validation) -> str:
    writer = "a broker's store" if found.by_broker else "a store"
    return f"{writer} that is open, or was not closed" if found.was_open else writer
