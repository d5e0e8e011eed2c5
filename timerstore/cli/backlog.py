"""Commands about what was fired, to be handled by groups: groups, dead, redrive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from timerstore.cli.app import CHANGE, LOOK, AsJson, ConfigFile, StorePath, answering, app
from timerstore.cli.opening import looking
from timerstore.cli.owner import changing
from timerstore.cli.texts import (
    body_field,
    shown_body,
    shown_from,
    shown_span,
    shown_time,
    whole_text,
)

NOBODY = "(nobody)"
"""In place of a group's name: no group has ever read the topic."""
_COUNTS = (
    *("lag_count", "in_flight_count", "dead_letter_count", "handled_count"),
    *("failed_count", "retried_count", "dead_count"),
)
GROUP_COLUMNS = [
    *("topic", "group", ">waiting", ">oldest", ">in flight", ">dead"),
    *(">handled", ">failed", ">retried"),
]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


@app.command(rich_help_panel=LOOK)
def groups(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Show who is behind: for each group and topic what waits, since when, what failed.

    Example: timerstore groups timers/
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        found = look.stats()["groups"]
        if as_json:
            for each in found:
                out.json(each | {"as_of_ms": look.as_of_ms})
        elif out.on_terminal:
            out.table(GROUP_COLUMNS, list(group_rows(found)))
        else:
            for each in found:
                oldest_ms = each["oldest_fired_ms"]
                since = "" if oldest_ms is None else shown_time(oldest_ms)
                counts = (each[name] for name in _COUNTS)
                out.line(each["topic"], each["group"] or NOBODY, since, *counts)


def group_rows(found: Iterable[dict[str, Any]]) -> Iterable[tuple[str, ...]]:
    """Yield groups for a table; what is 0 is left empty, so that a column of zeros goes."""
    for each in found:
        oldest = "" if each["oldest_fired_ms"] is None else shown_span(each["oldest_age_ms"])
        counts = {name: f"{each[name]:,}" if each[name] else "" for name in _COUNTS}
        yield (
            *(each["topic"], each["group"] or NOBODY, f"{each['lag_count']:,}", oldest),
            *(counts["in_flight_count"], counts["dead_letter_count"], counts["handled_count"]),
            *(counts["failed_count"], counts["retried_count"]),
        )


# --- dead letters


@app.command(rich_help_panel=LOOK)
def dead(
    path: StorePath,
    group: GroupName,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=0, help="So many; else all, or what fits a terminal."),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """List a group's dead letters, the oldest first: what it gave up, and nobody has put back.

    Example: timerstore dead timers/ mailer
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        letters = look.dead_letters(group, out.rows_max if limit is None else limit)
        if as_json:
            for each in letters:
                names = ("id", "topic", "key", "tag", "properties", "attempts", "died_ms")
                out.json({name: each[name] for name in names} | body_field(each["body"]))
        elif out.on_terminal:
            columns = ["died", "topic", "id", "key", "tag", ">attempts", "body"]
            width = out.console.width
            out.table(
                columns,
                [
                    letter_row(
                        e, shown_from(e["died_ms"], look.as_of_ms), shown_body(e["body"], width)
                    )
                    for e in letters
                ],
            )
        else:
            for each in letters:
                out.line(*letter_row(each, shown_time(each["died_ms"]), whole_text(each["body"])))


def letter_row(letter: dict[str, Any], died: str, body: str) -> tuple[object, ...]:
    """Return a dead letter for a table."""
    names = ("topic", "id", "key", "tag", "attempts")
    return died, *(letter[name] or "" for name in names), body


@app.command(rich_help_panel=CHANGE)
def redrive(
    path: StorePath,
    group: GroupName,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="These alone; else all.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="So many at most.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Put a group's dead letters back, each at once, with its id, as attempt 0; write how many.

    Example: timerstore redrive timers/ mailer --limit 10
    """
    with answering(as_json=as_json) as out, changing(path, config) as changer:
        count = changer.redrive(group, limit, ids or None)
        if as_json:
            out.json({"group": group, "redriven": count})
        else:
            out.line(count)
