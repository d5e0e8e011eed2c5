"""Commands about what was fired, to be handled by groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from timerstore.cli.app import (
    LOOK,
    OPERATE,
    AsJson,
    ConfigFile,
    OfTopic,
    StorePath,
    answering,
    app,
)
from timerstore.cli.coming import check_known, looking
from timerstore.cli.owner import changing
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
    *(">handled", ">failed", ">retried", ">read"),
]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


@app.command(rich_help_panel=LOOK)
def groups(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Show for each group and topic what waits, since when, what failed, and when it read last.

    Example: timerstore groups timers/
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        found = look.stats()["groups"]
        if as_json:
            for each in found:
                out.json(each | {"as_of_ms": look.as_of_ms})
        elif out.on_terminal:
            out.table(GROUP_COLUMNS, list(group_rows(found, look.as_of_ms)))
        else:
            names = (name.removesuffix("_count").replace("_", " ") for name in _COUNTS)
            out.line("topic", "group", "oldest", *names, "read")
            for each in found:
                oldest_ms = each["oldest_fired_ms"]
                since = "" if oldest_ms is None else shown_time(oldest_ms)
                counts = (each[name] for name in _COUNTS)
                read = "" if each["read_ms"] is None else shown_time(each["read_ms"])
                out.line(each["topic"], each["group"] or NOBODY, since, *counts, read)


@app.command("forget-group", rich_help_panel=OPERATE)
def forget_group(
    path: StorePath,
    group: GroupName,
    topic: OfTopic = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Forget a group that will not read again; write of how many topics. Its messages may go.

    If it reads again, it begins as a new group. It is refused while the group reads.

    Example: timerstore forget-group timers/ web-1234
    """
    with answering(as_json=as_json) as out, changing(path, config) as changer:
        count = changer.call("forget_group", group=group, topic=topic)
        if not count:
            check_known("group", group, changer.call("stats"))
        if as_json:
            out.json({"group": group, "topics": count})
        else:
            out.line(count)


def group_rows(found: Iterable[dict[str, Any]], now_ms: int) -> Iterable[tuple[str, ...]]:
    """Yield groups for a table; what is 0 is left empty, so that a column of zeros goes."""
    for each in found:
        oldest = "" if each["oldest_fired_ms"] is None else shown_span(each["oldest_age_ms"])
        read_ms = each["read_ms"]
        read = "" if read_ms is None else f"{shown_span(max(0, now_ms - read_ms))} ago"
        counts = {name: f"{each[name]:,}" if each[name] else "" for name in _COUNTS}
        yield (
            *(each["topic"], each["group"] or NOBODY, f"{each['lag_count']:,}", oldest),
            *(counts["in_flight_count"], counts["dead_letter_count"], counts["handled_count"]),
            *(counts["failed_count"], counts["retried_count"], read),
        )
