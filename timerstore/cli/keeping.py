"""Commands that keep copies of a store: backup, follow, standby, promote, restore, salvage.

And those that tidy one, or let it go: clean, handover, move.
"""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from timerstore.cli.app import (
    CHECK,
    AsJson,
    ConfigFile,
    OfTopic,
    StorePath,
    answering,
    app,
    read_instant,
    settings,
)
from timerstore.cli.open_store import changing, held_by, open_still, open_to_change
from timerstore.cli.output import DAMAGED, Output, told_to_end
from timerstore.errors import InvalidArgumentError, StoreLockedError
from timerstore.values.amounts import shown_bytes, shown_time
from timerstore.values.times import now_ms, parse_delay
from timerstore.watching.sections import Fact, Page, disk_facts

if TYPE_CHECKING:
    from timerstore.copies.report import BackupPoint, BackupReport
    from timerstore.copies.restore import RestoreReport
    from timerstore.offline.salvage import SalvageReport
    from timerstore.rocketmq.sending import Row


_NICE: Final = 10
"""Beside a busy program it still gets a tenth of a core, about what it needs."""

BackupPath = Annotated[
    str, typer.Argument(metavar="BACKUP", help="A folder, or s3://…, gs://…, file://….")
]


@app.command(rich_help_panel=CHECK)
def backup(
    path: StorePath,
    dest: BackupPath,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="How many of the newest points to keep. Default: all."),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Add a point to a backup, also while the store is open. Only what is new is copied.

    Run it on a schedule, and copy BACKUP elsewhere with any tool: see docs/backup.md.
    Exit status 1: the store has damage, which is now in its backup too.

    Example: timerstore backup timers/ backup/ --keep 48
    """
    with answering(as_json=as_json) as out:
        from timerstore.copies.backup import backup as run

        with out.progress(f"backing up {path}", "bytes") as update:
            report = run(path, dest, keep=keep, config=settings(config), progress=update)
        finish(out, report)


@app.command(rich_help_panel=CHECK)
def follow(
    path: StorePath,
    dest: BackupPath,
    every: Annotated[str, typer.Option(help="How often, such as 1s or 250ms.")] = "1s",
    keep: Annotated[
        str, typer.Option(help="How far back a restore can go, such as 48h; or all.")
    ] = "48h",
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help=("Do not follow. Stop warning that nobody follows into DEST.")
        ),
    ] = False,
    config: ConfigFile = None,
) -> None:
    """Keep a copy of a store elsewhere, up to date to the second, until it is stopped.

    It does not ask the program that has the store open. After an error it tries again, with waits
    that grow up to a minute; `timerstore health` shows the error. SIGTERM and Ctrl-C end it once
    what is new is shipped; a second one ends it at once.
    Exit status 3: another store has taken over, so this one may not write there.

    Example: timerstore follow timers/ s3://bucket/timers --every 1s
    """
    with answering(as_json=False) as out:
        from timerstore.copies.destination import find_destination
        from timerstore.copies.follow_status import forget_status
        from timerstore.copies.follower import Follower

        if forget:
            known = forget_status(path, find_destination(dest).key)
            out.say(f"{path} is {'no longer' if known else 'not'} followed into {dest}")
            return
        follower = Follower(
            path,
            lambda: find_destination(dest),
            every_s=max(parse_delay(every).total_seconds(), 0.01),
            keep_ms=None if keep == "all" else parse_delay(keep) // timedelta(milliseconds=1),
            config=settings(config),
        )
        with suppress(OSError):
            os.nice(_NICE)  # the program whose puts it reads goes first
        out.say(f"following {path} into {follower.dest}")
        sys.stdout.flush()
        with told_to_end(hurries=True) as stop:
            follower.run(stop)


@app.command(rich_help_panel=CHECK)
def standby(
    dest: BackupPath,
    local: Annotated[
        Path, typer.Argument(metavar="LOCAL", help="A folder on this machine.", readable=False)
    ],
    every: Annotated[str, typer.Option(help="How often, such as 10s.")] = "10s",
    once: Annotated[bool, typer.Option("--once", help="Fetch what there is, then end.")] = False,
) -> None:
    """Keep the last point of a followed store in a folder, which can become the store.

    Nothing fires there. You can look at it and verify it. After an error it says so and tries
    again. SIGTERM and Ctrl-C end it. `timerstore promote LOCAL` makes it the store.

    Example: timerstore standby s3://bucket/timers local/
    """
    with answering(as_json=False) as out:
        from timerstore.copies.destination import find_destination
        from timerstore.copies.standby import Standby

        waiting_s = max(parse_delay(every).total_seconds(), 0.01)
        keeper = Standby(local, find_destination(dest), dest)
        try:
            if once:
                step = keeper.step()
                when = shown_time(step.point.time_ms)
                out.say(
                    f"{local} holds what the store held at {when}; "
                    f"{shown_bytes(step.copied_bytes)} were new"
                )
                return
            out.say(f"keeping {local} up to date with {keeper.dest}")
            sys.stdout.flush()
            with told_to_end(hurries=True) as stop:
                keeper.run(stop, waiting_s)
        finally:
            keeper.close()


@app.command(rich_help_panel=CHECK)
def promote(
    local: Annotated[
        Path, typer.Argument(metavar="LOCAL", help="The standby's folder.", readable=False)
    ],
    no_fence: Annotated[
        bool,
        typer.Option("--no-fence", help="Promote even if the destination cannot be reached."),
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Make a standby the store; the earlier store cannot write to the destination any more.

    If the program of the earlier store still runs, stop it: pending timers would fire in both.
    Nothing fires in LOCAL before somebody opens it. If a promotion was killed, run the same command
    again: it goes on where it stopped.

    Example: timerstore promote local/
    """
    with answering(as_json=as_json) as out:
        from timerstore.copies.promote import promote as run

        with out.progress(f"promoting {local}"):
            report = run(local, fenced=not no_fence, config=settings(config))
        out.tell(report.to_dict(), report)


@app.command(rich_help_panel=CHECK)
def restore(
    path: BackupPath,
    dest: Annotated[
        Path | None,
        typer.Argument(
            metavar="DEST", help=("A new folder. If it is left out, the points are listed.")
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            help=(
                "Restore what the store held at this time, which may lie between two points. "
                "Default: the last point."
            )
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Make a store from a backup, as it was at a time, and check it. Or list the backup's points.

    Nothing fires until somebody opens the store. Then everything fires that is due by then.

    Example: timerstore restore backup/ restored/ --at "yesterday 15:00"
    """
    with answering(as_json=as_json) as out:
        from timerstore.copies.restore import backup_points
        from timerstore.copies.restore import restore as run

        at_ms = read_instant(out, at, "--at")
        if dest is None:
            if at is not None:
                raise InvalidArgumentError("DEST is missing. Pass the folder to restore to.")
            show_points(out, backup_points(path))
            return
        with out.progress(f"restoring {path}", "bytes") as update:
            report = run(path, dest, at_ms=at_ms, config=settings(config), progress=update)
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
        from timerstore.copies.destination import is_address

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
    out.tell(report.to_dict(), report)


def show_points(out: Output, points: list[BackupPoint]) -> None:
    """Write a row for each point."""
    out.records(
        points,
        lambda point: point.to_dict(),
        {
            ">point": lambda point: point.number,
            "time": lambda point: shown_time(point.time_ms),
            ">log": lambda point: shown_bytes(point.bytes_count),
        },
    )


@app.command(rich_help_panel=CHECK)
def clean(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Copy pending timers out of old files, and remove those files. It takes some ten seconds.

    An open store does this by itself when it is worth it.

    Example: timerstore clean timers/
    """
    with answering(as_json=as_json) as out, changing(path, config) as store:
        with out.progress("cleaning"):
            freed = store.clean()
        stats = store.stats().to_dict()
        kept_by, on_disk = stats["cleaning"]["kept_by"], stats["disk_bytes"]
        told = {"path": str(path), "freed": freed, "disk_bytes": on_disk, "kept_by": kept_by}
        if as_json:
            out.json(told)
        else:
            out.page(Page([[Fact("freed", freed, "bytes")], *disk_facts(stats)], []))


@app.command(rich_help_panel=CHECK)
def handover(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Prepare a store for a RocketMQ broker, and close it.

    Example: timerstore handover timers/
    """
    with answering(as_json=as_json) as out, open_to_change(path, config) as store:
        with out.progress("handing over"):
            until_ms = store.handover()
        from timerstore.store.handover import CONFIG_FILE

        settings = str(path / CONFIG_FILE)
        commands = _commands(path / CONFIG_FILE)
        if as_json:
            found = {"path": str(path), "handed_over": True, "commands": commands}
            out.json(found | {"broker_conf": settings, "open_before_ms": until_ms})
            return
        out.say(f"A RocketMQ broker can open {path} now, with the settings in {settings}.")
        out.say("Type these in RocketMQ's folder, each in a terminal of its own. The last one is")
        out.say("for clients that speak gRPC:")
        for command in commands:
            out.say(f"  {command}")
        if until_ms is not None:
            until = shown_time(until_ms)
            out.say(
                f"Start the broker before {until}. If it opens the store later, it skips the "
                "first timers."
            )


def _commands(settings: Path) -> list[str]:
    """Return what starts RocketMQ: a name server, the broker, a proxy."""
    names = "localhost:9876"
    return [
        "sh bin/mqnamesrv",
        f"sh bin/mqbroker -n {names} -c {shlex.quote(str(settings.absolute()))}",
        f"sh bin/mqproxy -n {names}",
    ]


# --- the command `move`


@app.command(rich_help_panel=CHECK)
def move(
    path: StorePath,
    address: Annotated[
        str,
        typer.Argument(
            metavar="rocketmq://HOST:PORT", help="A RocketMQ proxy that listens for gRPC."
        ),
    ],
    topic: OfTopic = None,
    max_delay: Annotated[
        str, typer.Option(help="How far ahead the cluster takes timers, such as 3d.")
    ] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    partly: Annotated[
        bool, typer.Option("--partly", help="Go on even if some timers cannot go.")
    ] = False,
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS with the proxy.")] = False,
    access_key: Annotated[
        str, typer.Option(envvar="ROCKETMQ_ACCESS_KEY", help="A user of the cluster.")
    ] = "",
    secret_key: Annotated[
        str,
        typer.Option(
            envvar="ROCKETMQ_SECRET_KEY",
            help="Its secret. Others can see what you type: rather set the variable.",
        ),
    ] = "",
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Send what is pending to a RocketMQ cluster, and cancel it here.

    First it shows what can go, and what cannot. If some cannot, it sends nothing, unless --partly
    is given: then those stay pending here. Due times are rounded up to a whole second; ids stay the
    same. If it was killed, run it again: it sends the rest. At most 64 timers may then be in the
    cluster twice, with the same id; it says which. What has fired already stays: let the store's
    consumers read it. No other program may have the store open.

    Example: timerstore move timers/ rocketmq://localhost:8081 --dry-run
    """
    with answering(as_json=as_json) as out:
        from timerstore.rocketmq.cluster import connect
        from timerstore.rocketmq.sending import Judge, doubted_of, move_pending

        delay_max_ms = int(parse_delay(max_delay).total_seconds() * 1_000)
        with (
            connect(address, tls=tls, access_key=access_key, secret_key=secret_key) as cluster,
            open_still(path, config) as store,
        ):
            judge = Judge(cluster.sender, now_ms(), delay_max_ms)
            rows = judge.table(store.pending(topic=topic))
            doubted = doubted_of(store, path)
            staying = sum(row.count for row in rows if row.why)
            if not as_json:
                _show(out, rows, doubted)
            count, refused = 0, dict[str, str]()
            is_done = not dry_run and (not staying or partly)
            if is_done:
                going = sum(row.count for row in rows if not row.why)
                with out.progress("moving", "timers") as update:
                    moved = move_pending(
                        store,
                        cluster.sender,
                        judge,
                        path,
                        topic=topic,
                        update=lambda done: update(done, going),
                    )
                count, refused = moved.count, moved.stays
        if as_json:
            told = {"path": str(path), "address": address, "moved": count, "maybe_twice": doubted}
            out.json(told | {"refused": refused, "table": [asdict(row) for row in rows]})
            return
        if is_done:
            out.say(f"{count:,} timers moved, {staying + len(refused):,} stay.")
            for id, why in refused.items():
                out.say(f"  {id}: {why}")
        elif dry_run:
            out.say("Nothing was sent: --dry-run.")
        else:
            out.say("Nothing was sent, because some timers cannot go. --partly sends the others.")


def _show(out: Output, rows: list[Row], doubted: list[str]) -> None:
    columns = ["topic", ">timers", "first due", "last due", "goes", "for example"]
    out.table(
        columns,
        [
            (
                *(row.topic, row.count, shown_time(row.first_due_ms), shown_time(row.last_due_ms)),
                *(f"no: {row.why}" if row.why else "yes", row.example if row.why else ""),
            )
            for row in rows
        ],
    )
    if doubted:
        out.note(
            f"An earlier move was broken off. These {len(doubted)} may come twice, each time with "
            f"the same id: {', '.join(doubted)}"
        )
