"""Commands that need no store: warmup, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from timerstore.cli.app import OTHER, AsJson, answering, app
from timerstore.cli.status import DAMAGED


@app.command(rich_help_panel=OTHER)
def warmup(
    spark: Annotated[
        bool, typer.Option("--spark", help="Prepare Java's classes too. That takes half a minute.")
    ] = False,
    zip_file: Annotated[
        Path | None,
        typer.Option(
            "--zip",
            help="Write the package and the compiled code as a zip file, for Spark's workers.",
        ),
    ] = None,
) -> None:
    """Compile what stores need, for an image or before tests. Otherwise the first opening does it.

    Example: timerstore warmup
    """
    from timerstore.warmup import compile_kernels, pack

    with answering(as_json=False):
        if zip_file is None:
            compile_kernels()
        else:
            pack(zip_file)
        if spark:
            from timerstore.spark.javaclasses import make_classes
            from timerstore.spark.sessions import JAVA_OPTIONS

            make_classes(JAVA_OPTIONS)


@app.command(rich_help_panel=OTHER)
def demo(
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="A new folder. It is kept afterwards.")
    ] = None,
    timers: Annotated[
        int, typer.Option(min=160, help="How many timers the child puts if it is not killed.")
    ] = 400_000,
    seconds: Annotated[float, typer.Option(min=2, help="How far ahead they are due.")] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Kill a process that puts timers, then show that none was lost, fired twice or early.

    Example: timerstore demo --timers 100000 --seconds 5
    """
    from timerstore.cli.demo import demonstrate

    with answering(as_json=as_json) as out:
        outcome = demonstrate(out, path, timer_count=timers, span_s=seconds)
        if not outcome.ok:
            out.status = DAMAGED
