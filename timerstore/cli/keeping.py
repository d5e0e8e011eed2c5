"""Commands that keep copies of a store: backup, restore, salvage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timerstore.cli.app import (
    CHECK,
    AsJson,
    ConfigFile,
    StorePath,
    answering,
    app,
    read_instant,
    settings,
)
from timerstore.cli.coming import held_by
from timerstore.cli.output import Output
from timerstore.cli.status import DAMAGED
from timerstore.cli.texts import shown_time
from timerstore.errors import InvalidArgumentError, StoreLockedError
from timerstore.ground.amounts import shown_bytes

if TYPE_CHECKING:
    from timerstore.backups.points import BackupPoint
    from timerstore.backups.taken import BackupReport
    from timerstore.offline.restore import RestoreReport
    from timerstore.offline.salvage import SalvageReport

BackupPath = Annotated[
    str, typer.Argument(metavar="BACKUP", help="A folder, or s3://…, gs://…, file://….")
]


@app.command(rich_help_panel=CHECK)
def backup(
    path: StorePath,
    dest: BackupPath,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Keep only the newest points, this many. Default: all."),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Add a point to a backup, also while the store is open. Only what is new is copied.

    Run it on a schedule, and copy BACKUP elsewhere with any tool: see docs/backup.md.
    Exit status 1: there is damage in the store, and now in its backup.

    Example: timerstore backup timers/ backup/ --keep 48
    """
    with answering(as_json=as_json) as out:
        from timerstore.backups.backup import backup as run

        with out.progress(f"backing up {path}", "bytes") as update:
            report = run(path, dest, keep=keep, config=settings(config), progress=update)
        finish(out, report)


@app.command(rich_help_panel=CHECK)
def restore(
    path: BackupPath,
    dest: Annotated[
        Path | None,
        typer.Argument(metavar="[DEST]", help="A new folder. Without it, the points are listed."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="As of this time, also between points. Default: the last point."),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Make a store from a backup, as it was at a time, and check it. Or list the backup's points.

    Nothing fires until somebody opens the store. Then everything fires that is due by then.

    Example: timerstore restore backup/ restored/ --at "yesterday 15:00"
    """
    with answering(as_json=as_json) as out:
        from timerstore.offline.restore import backup_points
        from timerstore.offline.restore import restore as run

        at_ms = read_instant(out, at, "--at")
        if dest is None:
            if at is not None:
                raise InvalidArgumentError("There is no DEST. Pass the folder to restore to.")
            show_points(out, backup_points(path))
            return
        with out.progress(f"restoring {path}", "bytes") as update:
            report = run(path, dest, at=at_ms, config=settings(config), progress=update)
        finish(out, report)


@app.command(rich_help_panel=CHECK)
def salvage(
    path: Annotated[str, typer.Argument(metavar="SRC", help="What is left of a store, or s3://….")],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="A new folder.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Make a sound store from what is left of a damaged one: every whole message, with its id.

    SRC is not changed, and no process may have it open. Nothing fires until somebody opens DEST.
    Exit status 1: something was lost, and the report says what.

    Example: timerstore salvage broken/ salvaged/
    """
    with answering(as_json=as_json) as out:
        from timerstore.backups.destination import is_address

        who = None if is_address(path) else held_by(Path(path))
        if who is not None:
            raise StoreLockedError(f"{path} is open in another process{who}. Stop it first.")
        from timerstore.offline.salvage import salvage as run

        with out.progress(f"salvaging {path}", "bytes") as update:
            report = run(path, dest, config=settings(config), progress=update)
        finish(out, report)


def finish(out: Output, report: BackupReport | RestoreReport | SalvageReport) -> None:
    """Write what was done; damage that was met is the command's status."""
    if not report.ok:
        out.status = DAMAGED
    if out.as_json:
        out.json(report.to_dict())
    else:
        out.say(str(report))


def show_points(out: Output, points: list[BackupPoint]) -> None:
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
