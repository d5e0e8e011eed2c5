"""The command `tail`: what fires, as it fires."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from timerstore.cli.app import LOOK, AsJson, OfTopic, StorePath, answering, app
from timerstore.cli.operating import owner_of
from timerstore.cli.output import Output
from timerstore.cli.texts import body_field, shown_body, shown_time, whole_text
from timerstore.errors import NotAStoreError

LOOK_S = 0.2
ROWS_AT_ONCE = 2_000


@app.command(rich_help_panel=LOOK)
def tail(
    path: StorePath,
    topic: OfTopic = None,
    count: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=10_000, help="Begin with the last so many.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Go on as timers fire.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Follow what fires, without consuming it; ends with Ctrl-C, or with the program.

    Of all topics, or of one, such as %RETRY%group. Where more fires than can be shown it says how
    many were left out.

    Example: timerstore tail timers/ --topic mail
    """
    with answering(as_json=as_json) as out:
        owner = owner_of(path)
        if owner is None:
            raise NotAStoreError(f"No process has {path} open: nothing fires. Use `consume`.")
        found = owner.call("fired", topic=topic, limit=count)
        _show(out, found["messages"])
        while follow:
            time.sleep(LOOK_S)
            after, limit = found["next"], ROWS_AT_ONCE
            found = owner.call("fired", after=after, topic=topic, limit=limit)
            if found["skipped_count"]:
                out.note(f"… {found['skipped_count']:,} more fired in between")
            _show(out, found["messages"])


def _show(out: Output, messages: list[dict[str, Any]]) -> None:
    for each in messages:
        late_ms = each["fired_ms"] - each["due_ms"]
        if out.as_json:
            body = body_field(each.pop("body"))
            out.json(each | {"lateness_ms": late_ms} | body)
            continue
        row = (each["topic"], each["key"] or "", each["id"])
        if out.on_terminal:
            room = max(8, out.console.width - 24 - 9 - sum(map(len, row)) - 4 * 2)
            when, late = shown_time(each["fired_ms"]), f"{late_ms:+d} ms"
            out.line(when, f"{late:>9}", *row, shown_body(each["body"], room))
        else:
            out.line(each["fired_ms"], late_ms, *row, whole_text(each["body"]))
    out.flush()
