"""Commands about what was fired, to be handled by groups."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Annotated, Any, Final

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
from timerstore.cli.open_store import changing, check_known, looking
from timerstore.cli.output import Columns
from timerstore.values.amounts import shown_span
from timerstore.values.moments import shown_time

NOBODY = "(nobody)"
"""In place of a group's name: no group has ever read the topic."""
_COUNTS = (
    *("lag_count", "in_flight_count", "dead_letter_count", "handled_count"),
    *("failed_count", "retried_count", "dead_count"),
)
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


@app.command(rich_help_panel=LOOK)
def groups(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Show for each group and topic what waits, since when, what failed, and when it read last.

    Example: timerstore groups timers/
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        seen = {"as_of_ms": look.as_of_ms}
        found = look.stats().to_dict()["groups"]
        human = _human(look.as_of_ms)
        out.records(found, lambda each: each | seen, _PLAIN, human, has_head=True)


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
    with answering(as_json=as_json) as out, changing(path, config) as store:
        count = store.forget_group(group=group, topic=topic)
        if not count:
            check_known("group", group, store.stats().to_dict())
        out.result({"group": group, "topics": count}, count)


# --- the columns of `groups`


def _time(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda each: "" if each[name] is None else shown_time(each[name])


def _count(name: str) -> Callable[[dict[str, Any]], str]:
    """Leave empty what is 0, so that a column of zeros goes."""
    return lambda each: f"{each[name]:,}" if each[name] else ""


_WHOSE: Final[Columns[dict[str, Any]]] = {
    "topic": itemgetter("topic"),
    "group": lambda each: each["group"] or NOBODY,
}
_PLAIN: Final[Columns[dict[str, Any]]] = {
    **_WHOSE,
    "oldest": _time("oldest_fired_ms"),
    **{name.removesuffix("_count").replace("_", " "): itemgetter(name) for name in _COUNTS},
    "read": _time("read_ms"),
}


def _human(now_ms: int) -> Columns[dict[str, Any]]:
    def oldest(each: dict[str, Any]) -> str:
        return "" if each["oldest_fired_ms"] is None else shown_span(each["oldest_age_ms"])

    def read(each: dict[str, Any]) -> str:
        read_ms = each["read_ms"]
        return "" if read_ms is None else f"{shown_span(max(0, now_ms - read_ms))} ago"

    return {
        **_WHOSE,
        ">waiting": lambda each: f"{each['lag_count']:,}",
        ">oldest": oldest,
        ">in flight": _count("in_flight_count"),
        ">dead": _count("dead_letter_count"),
        ">handled": _count("handled_count"),
        ">failed": _count("failed_count"),
        ">retried": _count("retried_count"),
        ">read": read,
    }
