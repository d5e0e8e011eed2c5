"""The command `tail`: what fires, as it fires."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size

from timerstore.cli.app import LOOK, AsJson, OfTopic, StorePath, answering, app
from timerstore.cli.operating import owner_of
from timerstore.cli.output import Output, body_field, shown_body, whole_text
from timerstore.errors import NotAStoreError
from timerstore.values.amounts import shown
from timerstore.values.moments import shown_time

LOOK_S = 0.2
ROWS_AT_ONCE = 2_000
_BODY_WIDTH_MIN = 12


@app.command(rich_help_panel=LOOK)
def tail(
    path: StorePath,
    topic: OfTopic = None,
    count: Annotated[
        int,
        typer.Option(
            "--lines",
            "-n",
            min=0,
            max=10_000,
            help=("Show first this many timers that have fired already."),
        ),
    ] = 10,
    follow: Annotated[
        bool,
        typer.Option("--follow/--no-follow", "-f", help=("Go on and show each timer as it fires.")),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Show what fires, as it fires, without consuming it. Ctrl-C ends it.

    Show all topics, or one, such as %RETRY%group. If more fires than can be shown, it says how many
    were left out.

    Example: timerstore tail timers/ --topic mail
    """
    with answering(as_json=as_json) as out:
        owner = owner_of(path)
        if owner is None:
            raise NotAStoreError(
                f"No process has {path} open, so nothing fires. Use `timerstore consume`, which "
                "opens it."
            )
        found = owner.call("fired", topic=topic, limit=count)
        _show(out, found["messages"])
        while follow:
            time.sleep(LOOK_S)
            after, limit = found["next"], ROWS_AT_ONCE
            found = owner.call("fired", after=after, topic=topic, limit=limit)
            if found["skipped_count"]:
                out.note(f"… {found['skipped_count']:,} more fired in between and are not shown")
            _show(out, found["messages"])


def _show(out: Output, messages: list[dict[str, Any]]) -> None:
    for each in messages:
        late_ms = each["fired_ms"] - each["due_ms"]
        if out.as_json:
            body = body_field(each.pop("body"))
            out.json(each | {"lateness_ms": late_ms} | body)
            continue
        if out.on_terminal:
            out.say(fitting(each, late_ms, out.console.width))
        else:
            row = (each["topic"], each["key"] or "", each["id"])
            out.line(each["fired_ms"], late_ms, *row, whole_text(each["body"]))
    out.flush()


def fitting(fired: dict[str, Any], late_ms: int, width: int) -> str:
    """Return a line of at most `width` cells: when, how late, topic, key, id, body.

    If it is narrow the id goes first, then the key; the rest is cut.
    """
    parts = [
        shown_time(fired["fired_ms"])[11:],
        f"{late_ms:+,d} ms".rjust(8),
        shown(fired["topic"]),
    ]
    left = width - sum(map(cell_len, parts)) - 2 * len(parts) - _BODY_WIDTH_MIN
    for name in ("key", "id"):
        text = shown(fired[name] or "")
        if text and cell_len(text) + 2 <= left:
            parts.append(text)
            left -= cell_len(text) + 2
    parts.append(shown(shown_body(fired["body"], left + _BODY_WIDTH_MIN)))
    line = "  ".join(parts)
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"
