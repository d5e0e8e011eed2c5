"""Export to a file that appears under its name once it is whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from timerstore.cli.app import CHECK, AsJson, ConfigFile, StorePath, answering, app, settings
from timerstore.cli.checking import tell_live
from timerstore.errors import InvalidArgumentError
from timerstore.values.durably import appearing

# As in tables/exported.py and offline/export.py, which --help need not load.
TableName = Literal["pending", "fired", "messages"]
FormatName = Literal["jsonl", "csv", "arrow", "parquet"]
ENDINGS: Final[dict[str, FormatName]] = {
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".arrow": "arrow",
    ".parquet": "parquet",
}


@app.command(rich_help_panel=CHECK)
def export(
    path: StorePath,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="-: standard output.")],
    table: Annotated[
        TableName, typer.Option("--table", help="Pending timers, fired ones, or all messages.")
    ] = "pending",
    form: Annotated[
        FormatName | None, typer.Option("--format", "-f", help="Default: by the file's ending.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Write a table of a store to a .jsonl, .csv, .parquet or .arrow file, which import can read.

    Nothing is fired. If a process has the store open, the file shows it as of its last checkpoint.
    An .arrow file is an Arrow stream.

    Example: timerstore export timers/ pending.parquet
    """
    with answering(as_json=as_json) as out:
        if form is None:
            form = format_of(target)
        as_of_ms = tell_live(out, path)
        upto = None if as_of_ms is None else "checkpoint"
        with out.progress(f"exporting {path}", "rows") as update:
            options = {"config": settings(config), "upto": upto, "progress": update}
            count = export_to(path, table, target, form, **options)
        if str(target) == "-":
            return
        told = {"file": str(target), "table": table, "format": form, "count": count}
        out.tell(told | {"as_of_ms": as_of_ms}, f"{count:,} rows written to {target}")


def format_of(target: Path) -> FormatName:
    """Return the format that a file's ending names; JSON for standard output."""
    if str(target) == "-":
        return "jsonl"
    if target.suffix not in ENDINGS:
        raise InvalidArgumentError(
            f"{target} ends in none of {', '.join(ENDINGS)}. Rename it, or pass --format."
        )
    return ENDINGS[target.suffix]


def export_to(path: Path, table: TableName, target: Path, form: FormatName, **options: Any) -> int:
    """Write a table of the store at `path`; return how many rows."""
    from timerstore.offline.export import export as run

    if str(target) == "-":
        return run(path, table, sys.stdout.buffer, form, **options)
    with appearing(target) as file:
        return run(path, table, file, form, **options)
