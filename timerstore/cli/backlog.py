"""Commands about what was fired, to be handled by groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from timerstore.cli.app import LOOK, AsJson, ConfigFile, StorePath, answering, app
from timerstore.cli.coming import looking
from timerstore.cli.texts import shown_span
from timerstore.ground.moments import shown_time

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
    """Show for each group and topic what waits, since when, and what failed.

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
            names = (name.removesuffix("_count").replace("_", " ") for name in _COUNTS)
            out.line("topic", "group", "oldest", *names)
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
