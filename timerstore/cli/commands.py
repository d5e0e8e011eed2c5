"""All commands, in the order in which `--help` lists them: each file adds its own to `app`.

`warmup`, which has no store, is here.
"""
# ruff: noqa: F401

from pathlib import Path
from typing import Annotated

import typer

from timerstore.cli import (  # isort: skip
    looking,
    operating,
    changes,
    checking,
    importing,
    consume,
    serving,
    pipelines,
    keeping,
)
from timerstore.cli.app import OTHER, Command, answering, app

__all__ = ["app"]


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
            from timerstore.spark.java import make_classes
            from timerstore.spark.sessions import JAVA_OPTIONS

            make_classes(JAVA_OPTIONS)


for group in (app, consume.dead, pipelines.pipeline):
    for command in group.registered_commands:
        command.cls = Command
