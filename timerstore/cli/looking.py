"""Commands that only look at a store: info, pending, search, get, count, horizon, find."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from timerstore.cli.app import (
    LOOK,
    AnyPath,
    AsJson,
    ConfigFile,
    End,
    Limit,
    OfTopic,
    Start,
    StorePath,
    answering,
    app,
    read_instant,
)
from timerstore.cli.open_store import Look, looking
from timerstore.cli.output import TOO_LATE, Columns, Output, body_field, shown_here
from timerstore.errors import InvalidArgumentError
from timerstore.share.wire import to_json
from timerstore.values.amounts import shown_body, shown_from, shown_time, whole_text
from timerstore.values.times import parse_delay
from timerstore.watching.sections import Fact, found_rows, parts_of, sections

if TYPE_CHECKING:
    from timerstore.calls.pending.timers import Timer


_BAR_WIDTH = 30
_AHEAD = {
    1_000: "1 s",
    10_000: "10 s",
    60_000: "a minute",
    600_000: "10 minutes",
    3_600_000: "an hour",
    86_400_000: "a day",
    7 * 86_400_000: "a week",
}
"""The spans of `Upcoming.within`."""


# --- info


@app.command(rich_help_panel=LOOK)
def info(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Show what a store holds: pending timers by topic, disk space and what keeps it, levels.

    Example: timerstore info timers/
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        stats = look.stats().to_dict()
        if as_json:
            out.json({"path": str(path), "as_of_ms": look.as_of_ms} | stats)
            return
        page = sections(stats, look.as_of_ms)
        of = [Fact("path", str(path), "text"), Fact("as of", look.as_of_ms, "time")]
        out.page(replace(page, facts=[of, *page.facts]))


# --- pending


@app.command(rich_help_panel=LOOK)
def pending(
    path: AnyPath,
    topic: OfTopic = None,
    start: Start = None,
    end: End = None,
    key: Annotated[
        str | None, typer.Option(help="Only this key. It is fast if --topic is given too.")
    ] = None,
    limit: Limit = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """List pending timers by due time. Overdue timers are pending too.

    Example: timerstore pending timers/ --topic mail --start now --end +1h
    """
    with answering(as_json=as_json) as out:
        start_ms, end_ms = read_instant(out, start, "--start"), read_instant(out, end, "--end")
        with looking(out, path, config) as look:
            shown_limit = out.rows_max if limit is None else limit
            bounds: dict[str, Any] = {"topic": topic, "start_ms": start_ms, "end_ms": end_ms}
            if key is not None and topic is None:
                every = look.pending(**bounds)
                timers: Iterable[Timer] = islice(
                    (each for each in every if each.key == key), shown_limit
                )
            else:
                timers = look.pending(**bounds, limit=shown_limit, key=key)
            count = show_timers(out, look, timers)
            if not count and limit != 0:
                look.check("topic", topic)
            if limit is None and key is None and count == out.rows_max:
                total = count_of(look, topic)
                out.note(
                    f"These are the first {count} of {total:,} pending timers. --limit shows more."
                )


@app.command(rich_help_panel=LOOK)
def search(
    path: StorePath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to look for.")],
    topic: OfTopic = None,
    limit: Limit = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """List pending timers that contain a text in their id, key, tag, properties or body.

    Upper and lower case do not matter. It reads every pending timer. Exit status 1: none was found.

    Example: timerstore search timers/ ann@example.org
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        every = look.pending(topic=topic)
        wanted = text.casefold()
        found = (each for each in every if any(wanted in part for part in parts_of(each)))
        shown_limit = out.rows_max if limit is None else limit
        if show_timers(out, look, islice(found, shown_limit)) or limit == 0:
            return
        look.check("topic", topic)
        out.status = TOO_LATE
        out.note(f"No pending timer contains {text!r}.")


def show_timers(out: Output, look: Look, timers: Iterable[Timer]) -> int:
    """List timers; return how many they were."""
    human: Columns[Timer] = {
        "due": lambda timer: shown_from(timer.due_ms, look.as_of_ms),
        "body": lambda timer: shown_body(timer.body, out.console.width),
    }
    return out.records(timers, timer_fields, _COLUMNS, {**_COLUMNS, **human})


_COLUMNS: Final[Columns[Timer]] = {
    "due": lambda timer: shown_time(timer.due_ms),
    "topic": attrgetter("topic"),
    "id": attrgetter("id"),
    "key": lambda timer: timer.key or "",
    "tag": lambda timer: timer.tag or "",
    "body": lambda timer: whole_text(timer.body),
}


def timer_fields(timer: Timer) -> dict[str, Any]:
    """Return a timer for JSON."""
    names = ("id", "topic", "key", "tag", "properties", "due_ms", "put_ms", "roll_count")
    return {name: getattr(timer, name) for name in names} | body_field(timer.body)


# --- get, count


@app.command(rich_help_panel=LOOK)
def get(
    path: StorePath,
    id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The id that put wrote.", show_default=False),
    ] = None,
    topic: OfTopic = None,
    key: Annotated[str | None, typer.Option(help="Find it by this key instead of an id.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show one pending timer, by its id or its key. Exit status 1: it is not pending.

    Example: timerstore get timers/ 019C0F3A5B7C00000000000051C4D1E0
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        if (id is None) == (key is None) or (topic is not None and key is None):
            raise InvalidArgumentError("Pass an id, or --key. Pass --topic too if you know it.")
        timer = look.get(id=id) if id is not None else get_key(look, topic, key or "")
        id = id or f"A timer of the key {key}"
        if timer is None:
            out.status = TOO_LATE
            if as_json:
                out.json({"id": id, "pending": False})
            else:
                out.note(
                    f"{id} is not pending in this store: it was fired or cancelled, or belongs "
                    f"to another store{', or it is damaged' if look.damage_count else ''}."
                )
            return
        fields = {"pending": True} | timer_fields(timer) | {"offset": offset_of(timer.id)}
        shown = {name: fields[name] for name in ("id", "topic", "key", "tag")}
        for name, ms in (("due", timer.due_ms), ("put", timer.put_ms)):
            shown[name] = out.time(ms, look.as_of_ms)
        shown |= {"rolled": f"{timer.roll_count} times", "offset": fields["offset"]}
        shown |= {f"property {name}": value for name, value in timer.properties.items()}
        out.values(fields, shown | {"body": whole_text(timer.body)})


def get_key(look: Look, topic: str | None, key: str) -> Timer | None:
    """Return the timer that has a key, of a topic or of any; None if there is none."""
    if topic is not None:
        found = look.get_key(topic=topic, key=key)
        if found is None:
            look.check("topic", topic)
        return found
    every = list(islice((each for each in look.pending() if each.key == key), 2))
    if len(every) > 1:
        raise InvalidArgumentError(
            f"Several timers have the key {key!r}. Pass --topic, or an id that "
            "`timerstore pending --key` lists."
        )
    return every[0] if every else None


def offset_of(id: str) -> int | None:
    """Return where in the commit log a timer was put, as its id says; None of a broker's id."""
    from timerstore.values.ids import parse_id

    parsed = parse_id(id)
    return None if parsed is None else parsed.offset


@app.command(rich_help_panel=LOOK)
def count(
    path: AnyPath, topic: OfTopic = None, as_json: AsJson = False, config: ConfigFile = None
) -> None:
    """Write how many timers are pending.

    Example: timerstore count timers/ --topic mail
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        number = count_of(look, topic)
        out.result({"count": number, "topic": topic, "as_of_ms": look.as_of_ms}, number)


def count_of(look: Look, topic: str | None) -> int:
    """Return how many timers are pending; refuse a topic that the store has never seen."""
    number = look.count(topic=topic)
    if not number:
        look.check("topic", topic)
    return number


# --- horizon


@app.command(rich_help_panel=LOOK)
def horizon(
    path: StorePath,
    bucket: Annotated[
        str | None,
        typer.Option(
            help=(
                "Count in steps of this length, such as 10m. Default: steps that grow with the "
                "distance."
            )
        ),
    ] = None,
    topic: OfTopic = None,
    start: Start = None,
    end: End = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show how many timers fall due within the next seconds, minutes, hours, days.

    A program that has the store open answers from its counters, which are exact to a 56th of each
    timer's delay. --bucket, --start, --end, and a store that nobody has open, read each timer.

    Example: timerstore horizon timers/ --bucket 1h --end +1d
    """
    with answering(as_json=as_json) as out:
        start_ms, end_ms = read_instant(out, start, "--start"), read_instant(out, end, "--end")
        bucket_ms = None if bucket is None else round(parse_delay(bucket).total_seconds() * 1_000)
        if bucket_ms is not None and bucket_ms < 1:
            raise InvalidArgumentError(f"--bucket is {bucket}. Use 1ms or more.")
        with looking(out, path, config) as look:
            if topic is not None:
                count_of(look, topic)  # an unknown one is refused
            if (bucket_ms, start_ms, end_ms) == (None, None, None) and look.owner is not None:
                rows = look_ahead(look, topic)
            else:
                bounds: dict[str, Any] = {"topic": topic, "start_ms": start_ms, "end_ms": end_ms}
                due_ms = look.pending_columns(columns=["due_ms"], **bounds)["due_ms"].to_numpy()
                rows = by_distance(due_ms, look.as_of_ms)
        if bucket_ms is not None:
            show_buckets(out, by_bucket(due_ms, bucket_ms))
        elif as_json:
            out.json({"as_of_ms": look.as_of_ms} | rows)
        else:
            out.table(["due", ">timers"], [(name, f"{count:,}") for name, count in rows.items()])


def show_buckets(out: Output, buckets: list[tuple[int, int]]) -> None:
    """Show when each begins and how many it holds; on a terminal as a chart too."""
    most = max((count for _, count in buckets), default=1)
    out.records(
        buckets,
        lambda bucket: {"start_ms": bucket[0], "count": bucket[1]},
        {"from": lambda bucket: shown_time(bucket[0]), "timers": itemgetter(1)},
        {
            "from": lambda bucket: shown_here(bucket[0]),
            ">timers": lambda bucket: f"{bucket[1]:,}",
            "": lambda bucket: "█" * -(-bucket[1] * _BAR_WIDTH // most),
        },
    )


def by_distance(due_ms: Any, from_ms: int) -> dict[str, int]:
    """Return how many are overdue, how many fall due within each span, how many later."""
    ahead_ms = due_ms[due_ms > from_ms] - from_ms
    within = {f"within {name}": int((ahead_ms <= ms).sum()) for ms, name in _AHEAD.items()}
    later = int((ahead_ms > max(_AHEAD)).sum())
    return {"overdue": int((due_ms <= from_ms).sum())} | within | {"later": later}


def look_ahead(look: Look, topic: str | None) -> dict[str, int]:
    """Return the same by the counts that an owner keeps, at once for any number of timers."""
    found = look.upcoming(topic=topic)
    within = {f"within {_AHEAD[ms]}": count for ms, count in found.within}
    return {"overdue": found.overdue_count} | within | {"later": found.later_count}


def by_bucket(due_ms: Any, bucket_ms: int) -> list[tuple[int, int]]:
    """Return the beginning of each bucket that holds any, with how many."""
    import numpy as np

    buckets, counts = np.unique(due_ms // bucket_ms, return_counts=True)
    return list(zip((buckets * bucket_ms).tolist(), counts.tolist(), strict=True))


@app.command(rich_help_panel=LOOK)
def find(
    path: StorePath,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that put wrote.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Say what became of a timer: pending, fired and what each group did, cancelled, or moved.

    It sees as far back as the log is kept. Exit status 1: the timer is unknown.

    Example: timerstore find timers/ 019C0F3A5B7C00000000000051C4D1E0
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        found = look.find(id=id)
        if found.state == "unknown":
            out.status = TOO_LATE
        out.values(to_json(found), dict(found_rows(found)))
