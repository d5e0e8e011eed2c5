"""The command `move`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from timerstore.cli.app import CHECK, AsJson, ConfigFile, OfTopic, StorePath, answering, app
from timerstore.cli.open_store import open_still
from timerstore.cli.output import Output
from timerstore.cli.times import now_ms, parse_delay
from timerstore.values.amounts import shown_time

if TYPE_CHECKING:
    from timerstore.rocketmq.moving import Row


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
        from timerstore.rocketmq.moving import Judge, doubted_of, move_pending

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
