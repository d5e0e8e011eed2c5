"""The commands `backup`, `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import timerstore
from timerstore.cli.app import AsJson, ConfigFile, StorePath, answering
from timerstore.cli.commands import app
from timerstore.cli.output import Output, shown_bytes, shown_time
from timerstore.cli.status import DAMAGED
from timerstore.cli.times import parse_time_ms
from timerstore.config import Config
from timerstore.errors import InvalidArgumentError


@app.command()
def backup(
    path: StorePath,
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="The backup's folder.")],
    keep: Annotated[
        int | None, typer.Option(min=1, help="So many points stay, the newest; else all.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Add a point to a backup, also of a store that is open: what is new alone is copied.

    Run it by a timer; DEST can be shipped by any tool that copies folders. See docs/backup.md.
    """
    with answering(as_json=as_json) as out:
        settings = read_config(config)
        with out.progress(f"backing up {path}", total=1_000) as update:
            report = timerstore.backup(
                *(path, dest),
                keep=keep,
                config=settings,
                progress=lambda done, of: update(done * 1_000 // max(of, 1)),
            )
        finish(out, report)


@app.command()
def restore(
    path: Annotated[Path, typer.Argument(metavar="BACKUP", help="The backup's folder.")],
    dest: Annotated[
        Path | None, typer.Argument(metavar="[DEST]", help="A new folder; without: list points.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="As of then, also between two points; else the last point.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Make a store of a backup as it was at a time, and check it; or list the backup's points.

    Nothing fires before somebody opens the store; then all does that is due.
    """
    with answering(as_json=as_json) as out:
        at_ms, settings = parse_time_ms(at), read_config(config)
        if dest is None:
            if at is not None:
                raise InvalidArgumentError("There is no DEST. Pass the folder to restore to.")
            show_points(out, timerstore.backup_points(path))
            return
        with out.progress(f"restoring {path}", total=1_000) as update:
            report = timerstore.restore(
                *(path, dest),
                at=at_ms,
                config=settings,
                progress=lambda done, of: update(done * 1_000 // max(of, 1)),
            )
        finish(out, report)


def read_config(file: Path | None) -> Config:
    """Return the settings of a file, or of the environment."""
    return Config.from_env() if file is None else Config.from_toml(file)


def finish(out: Output, report: timerstore.BackupReport | timerstore.RestoreReport) -> None:
    """Write what was done; damage that was met is the command's status."""
    if not report.ok:
        out.status = DAMAGED
    if out.as_json:
        out.json(report.to_dict())
    else:
        out.say(str(report))


def show_points(out: Output, points: list[timerstore.BackupPoint]) -> None:
    """Write a row for each point."""
    if out.as_json:
        for point in points:
            out.json(point.to_dict())
        return
    rows = [
        (point.number, shown_time(point.time_ms), shown_bytes(point.bytes_count))
        for point in points
    ]
    out.table([">point", "time", ">log"], rows)
