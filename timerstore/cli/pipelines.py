"""Commands about many stores in one run: what they hold as tables, with a verdict."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timerstore.cli.app import CHECK, AsJson, ConfigFile, Group, answering, app, settings
from timerstore.cli.checking import OnSpark, OwnRules, RollWindow, Upto, lack_is_told, on_spark
from timerstore.cli.output import DAMAGED, WARNED, Output, told_to_end
from timerstore.errors import InvalidArgumentError
from timerstore.timelog.files.oserrors import told_of
from timerstore.values.write_file import write_durably

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from timerstore.pipeline import RunResult

_LOOK_S = 0.2
FINDINGS_SHOWN = 5
"""Of one store; all are in the table `findings`, and in `--json`."""

FireRate = Annotated[
    float | None, typer.Option(help="How many timers this machine fires in a second, if you know.")
]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help=(
            "First measure how many timers this machine fires in a second, in TMPDIR. That takes "
            "some seconds."
        ),
    ),
]

pipeline = typer.Typer(cls=Group, no_args_is_help=True)
OutPath = Annotated[Path, typer.Argument(metavar="OUT", help="The folder of the result tables.")]
Master = Annotated[
    str | None, typer.Option(help="Spark's master, such as spark://host:7077. Default: local[*].")
]


@pipeline.callback()
def of_pipeline() -> None:
    """Read many stores in one run, keep the results as tables, and judge how timers are spread.

    Example: timerstore pipeline run tables/ stores/*
    """


@pipeline.command("run")
def run_(
    out: OutPath,
    stores: Annotated[
        list[str] | None,
        typer.Argument(metavar="STORE", help="Stores, folders of stores, or patterns."),
    ] = None,
    list_file: Annotated[
        Path | None,
        typer.Option(
            "--list", help="A CSV file with the columns name and path. Use it instead of STORES."
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(help="The run's name. If a run has this name already, its rows are replaced."),
    ] = None,
    thresholds: Annotated[
        Path | None, typer.Option(help="A TOML file with the limits at which rules warn and fail.")
    ] = None,
    rules: OwnRules = None,
    fire_rate: FireRate = None,
    measure: Measure = False,
    spark: OnSpark = False,
    master: Master = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            help="Also write the run's numbers to this file, as Prometheus's node exporter reads."
        ),
    ] = None,
    upto: Upto = None,
    roll_window: RollWindow = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Read each store once, write the result tables, and judge all rules. Change no store.

    If a store is damaged or gone, the run goes on and the store has a row that says so.
    docs/pipeline.md explains the tables and the rules. Exit status 1: a rule failed, or a store
    could not be read; 5: a rule warns.

    Example: timerstore pipeline run tables/ stores/* --run nightly --thresholds limits.toml
    """
    with answering(as_json=as_json) as out_:
        if measure and fire_rate is not None:
            raise InvalidArgumentError("--measure and --fire-rate exclude each other. Pass one.")
        if bool(stores) == (list_file is not None):
            raise InvalidArgumentError("Pass either stores or --list.")
        options: dict[str, Any] = {"run": run, "upto": upto, "roll_window_slots": roll_window}
        options["delay_levels"] = settings(config).delay_levels
        options["rules"] = rules
        options["thresholds"] = _limits(out_, thresholds, rules, fire_rate, measure)
        named: Any = stores if list_file is None else read_list(list_file)
        found = _run(out_, named, out, options, spark=spark or master is not None, master=master)
        if prometheus is not None:
            _write_prometheus(found, prometheus)
        out_.status = {"ok": out_.status, "warn": WARNED, "fail": DAMAGED}[found.verdict]
        if as_json:
            out_.json(found.to_dict())
        else:
            show_run(out_, found)


@pipeline.command()
def expire(
    out: OutPath,
    keep_days: Annotated[int, typer.Option(help="Remove runs that are older.")] = 400,
    daily_after_days: Annotated[
        int, typer.Option(help="Of each day that is older, keep only the last run.")
    ] = 7,
    as_json: AsJson = False,
) -> None:
    """Remove old runs from the result tables.

    Runs that come later are compared with the last run of each day, so hourly ones only cost time.

    Example: timerstore pipeline expire tables/ --keep-days 100
    """
    with answering(as_json=as_json) as out_:
        from timerstore.pipeline import expire as remove

        gone = remove(out, keep_days=keep_days, daily_after_days=daily_after_days)
        out_.result({"removed": gone}, f"{len(gone):,} runs removed")


@pipeline.command()
def explain(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="The rule's name.")],
    out: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", help="The folder of the result tables, if there are some."),
    ] = None,
    rules: OwnRules = None,
    as_json: AsJson = False,
) -> None:
    """Show a rule: what it measures and means, what to do, its query, what it said last.

    Example: timerstore pipeline explain skew_neighbours tables/
    """
    with answering(as_json=as_json) as out_:
        from timerstore.pipeline import explain as ask

        found = ask(rule, out, rules=rules)
        if as_json:
            out_.json(found.to_dict())
        for line in () if as_json else str(found).splitlines():
            out_.say(line)


@pipeline.command()
def report(
    out: OutPath,
    page: Annotated[
        Path | None,
        typer.Argument(
            metavar="PAGE", help=("The HTML file to write. Default: report.html in OUT.")
        ),
    ] = None,
    run: Annotated[str | None, typer.Option(help="The run. Default: the last one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page about a run: findings, due times, the wheel, lateness, drift.

    The page needs no server and no network. The command writes the page's path.

    Example: timerstore pipeline report tables/ report.html
    """
    with answering(as_json=as_json) as out_:
        from timerstore.pipeline import report as write

        with out_.progress(f"reading {out}"), lack_is_told():
            path = write(out, page, run=run)
        out_.result({"page": str(path)}, path)


@pipeline.command()
def follow(
    out: OutPath,
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store's folder.")],
    name: Annotated[
        str | None, typer.Option(help="The store's name in the tables. Default: the folder's name.")
    ] = None,
    every: Annotated[int, typer.Option(help="Seconds between two batches.")] = 5,
    until_now: Annotated[
        bool,
        typer.Option("--until-now", help="End when everything that has fired by now is written."),
    ] = False,
    master: Master = None,
) -> None:
    """Append what a store fires to the tables fired and fired_lateness, on Spark, until stopped.

    When started again, it goes on where it stopped, even after a kill. No row is lost or written
    twice. SIGTERM or Ctrl-C ends it with status 0.

    Example: timerstore pipeline follow tables/ timers/
    """
    with answering(as_json=False) as out_:
        from timerstore.pipeline import follow as begin

        with on_spark("pipeline", master) as spark:
            query = begin(spark, store, out, name=name, every_s=every, until_now=until_now)
            out_.say(f"following {store}")
            _wait(query)


def _wait(query: StreamingQuery) -> None:
    """Wait until a stream ends, or a signal ends it.

    A signal that ended a call of Spark's would leave its answer to the next call. So none is being
    made while this waits, and the handlers only take note.
    """
    with told_to_end() as asked:
        while query.isActive and not asked.wait(_LOOK_S):
            pass
        query.stop()
    error = query.exception()
    if error is not None and not asked.is_set():
        raise error


app.add_typer(pipeline, name="pipeline", rich_help_panel=CHECK)


def read_list(path: Path) -> list[tuple[str, str]]:
    """Read the names and paths of stores. Raises InvalidArgumentError."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise InvalidArgumentError(f"{path} cannot be read: {e}. Pass a CSV file.") from e
    if not rows or not {"name", "path"} <= rows[0][1].keys():
        raise InvalidArgumentError(f"{path} has no rows with the columns name and path. Add them.")
    lines = dict[str, int]()
    for line, row in rows:
        first = lines.setdefault(row["name"], line)
        if first != line:
            raise InvalidArgumentError(
                f"Lines {first} and {line} of {path} name two stores {row['name']!r}. Give each "
                "store its own name."
            )
    return [(row["name"], row["path"]) for _, row in rows]


def measured(out: Output) -> float:
    """Return what this machine fires, measured now."""
    from timerstore.pipeline import measure_fire_rate

    with out.progress("measuring how many timers this machine fires"):
        return measure_fire_rate()


def _limits(
    out: Output, file: Path | None, own: Path | None, rate: float | None, measure: bool
) -> Any:
    from dataclasses import replace

    from timerstore.audit.asking import read_rules
    from timerstore.pipeline import DISTRIBUTION_RULES, Thresholds

    limits = Thresholds.of(file, (*DISTRIBUTION_RULES, *read_rules(own)))
    if measure:
        rate = measured(out)
    if rate is not None:
        if not rate > 0:
            raise InvalidArgumentError(f"--fire-rate is {rate:g}. Use a number above 0.")
        limits = replace(limits, fire_rate_per_s=rate)
    return limits


def _run(
    out: Output,
    stores: Any,
    tables: Path,
    options: dict[str, Any],
    *,
    spark: bool,
    master: str | None,
) -> RunResult:
    from timerstore.pipeline import run

    if not spark:
        with out.progress("reading stores"), lack_is_told():
            return run(stores, tables, **options)
    with out.progress("reading stores on Spark"), on_spark("pipeline", master) as running:
        return run(stores, tables, spark=running, **options)


def _write_prometheus(found: RunResult, path: Path) -> None:
    """Write the file so that no reader finds half of it."""
    try:
        text = found.to_prometheus()
    except ImportError as e:
        raise InvalidArgumentError(
            "--prometheus needs the extra metrics. Run: pip install 'timerstore[metrics]'"
        ) from e
    with told_of(path):
        write_durably(path, text)


def show_run(out: Output, found: RunResult) -> None:
    """Write the verdict, a row for each store, then what is wrong with those that are not ok."""
    out.say(f"{found.run}: {found.verdict}, {len(found.stores):,} stores in {found.seconds:.1f} s")
    cells = [
        (each.name, each.state, f"{each.messages:,}", f"{each.units:,}", each.verdict)
        for each in found.stores
    ]
    out.table(["store", "state", ">messages", ">units", "verdict"], cells)
    told = []
    for each in found.stores:
        if each.error is not None:
            told.append((each.name, "fail", "", each.error))
        for finding in each.findings[:FINDINGS_SHOWN]:
            told.append((each.name, finding.verdict, finding.name, finding.says))
    if told:
        if out.on_terminal:
            out.say()
        out.table(["store", "verdict", "rule", "says"], told)
