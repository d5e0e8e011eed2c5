"""Commands that only look at a store: info, pending, search, get, count, horizon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from timerstore.cli.app import (
    LOOK,
    AnyPath,
    AsJson,
    ConfigFile,
    End,
    OfTopic,
    Start,
    StorePath,
    answering,
    app,
    read_instant,
)
from timerstore.cli.open_store import Look, looking
from timerstore.cli.output import Columns, Output
from timerstore.cli.status import TOO_LATE
from timerstore.cli.texts import (
    body_field,
    shown_body,
    shown_from,
    shown_here,
    whole_text,
)
from timerstore.cli.times import parse_delay
from timerstore.errors import InvalidArgumentError
from timerstore.ground.amounts import exact_span, shown_bytes
from timerstore.ground.moments import shown_time

if TYPE_CHECKING:
    from timerstore.pending.timers import Timer

Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", "-n", help="How many at most. Default: what fits on a terminal, or all."
    ),
]
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
_LATE = ("p50", "p99", "max")


# --- info


@app.command(rich_help_panel=LOOK)
def info(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Show what a store holds: pending timers by topic, disk space and what keeps it, levels.

    Example: timerstore info timers/
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        stats = look.stats().to_dict()
        told = {"path": str(path), "as_of_ms": look.as_of_ms} | stats
        if not out.on_terminal and not as_json:
            out.line("what", "value")
        out.values(told, info_of(path, look.as_of_ms, stats))
        if as_json:
            return
        show_topics(out, stats["topics"], look.as_of_ms)
        show_levels(out, stats["levels"])
        if look.owner is not None:
            show_services(out, stats["services"])


def show_services(out: Output, services: Iterable[dict[str, Any]]) -> None:
    """Show what each service does, and what waits for it."""
    rows = [
        (f"service {each['name']}", f"{each['busy_share']:.1%}", f"{each['queue_count']:,}")
        for each in services
    ]
    show_section(out, ["", ">busy", ">waiting"], rows, ["service", "busy", "waiting"])


def show_section(
    out: Output, columns: list[str], rows: list[tuple[Any, ...]], names: list[str]
) -> None:
    """Show a table below others; `names`: those of its columns in a pipe."""
    if out.on_terminal:
        out.say()
    else:
        out.line(*names)
    out.table(columns, rows)


def show_topics(out: Output, topics: list[dict[str, Any]], as_of_ms: int) -> None:
    """Show what each topic has pending, and what became of the rest."""
    if not out.on_terminal:
        for each in topics:
            out.table(["", "", ""], topic_lines(each))
        return
    rows = []
    for each in topics:
        next_ms, oldest_ms = each["next_due_ms"], each["oldest_due_ms"]
        rows.append(
            (
                each["topic"],
                f"{each['pending_count']:,}",
                "" if next_ms is None else shown_from(next_ms, as_of_ms),
                "" if oldest_ms is None else shown_from(oldest_ms, as_of_ms),
                shown_bytes(each["pending_bytes"]) if each["pending_bytes"] else "",
                f"{each['fired_count']:,}" if each["fired_count"] else "",
                *(f"{each[f'lateness_{q}_ms']:,}" if each["fired_count"] else "" for q in _LATE),
            )
        )
    if rows:
        out.say()
        columns = (">pending", "next due", "overdue", ">bodies", ">fired", ">late p50", ">p99")
        out.table(["topic", *columns, ">max ms"], rows)


def topic_lines(topic: dict[str, Any]) -> list[tuple[str, str, object]]:
    """Return what a pipe is told of a topic; what is 0 or unknown is left out."""
    name, lines = topic["topic"], [("pending in", topic["topic"], topic["pending_count"])]
    if topic["oldest_due_ms"] is not None:
        lines.append(("overdue in", name, shown_time(topic["oldest_due_ms"])))
    if topic["fired_count"]:
        late = ", ".join(f"{each} {topic[f'lateness_{each}_ms']} ms" for each in _LATE)
        lines.append(("late in", name, late))
    return [line for line in lines if line[2]]


def show_levels(out: Output, levels: Iterable[dict[str, Any]]) -> None:
    """Show what each delay level does that was ever used."""
    rows = [
        (
            *(f"level {each['level']}", exact_span(each["delay_ms"]), each["offset"]),
            *(each["end"], each["lag_count"], f"{each['overdue_ms'] / 1000:.3f} s"),
        )
        for each in levels
        if each["end"]
    ]
    if rows:
        columns = ["", ">delay", ">offset", ">end", ">lag", ">overdue"]
        show_section(out, columns, rows, ["level", *(name[1:] for name in columns[1:])])


def info_of(path: Path, as_of_ms: int, stats: dict[str, Any]) -> dict[str, str]:
    """Return what a person wants to know of a store."""
    recovery = stats["recovery"]
    found = "closed cleanly"
    if not recovery["clean"]:
        found = (
            f"the store had not been closed; {recovery['scanned_count']:,} messages were read again"
        )
    return {
        "path": str(path),
        "as of": shown_time(as_of_ms),
        "pending": str(stats["pending_count"]),
        **waiting_in(stats),
        "fired up to": shown_time(stats["read_ms"]),
        "commit log": shown_bytes(stats["commitlog_end"] - stats["commitlog_start"]),
        "timer log": shown_bytes(stats["timerlog_end"]),
        **space_of(stats),
        "unreadable": str(stats["unreadable_count"]),
        "last time": found,
    }


def waiting_in(stats: dict[str, Any]) -> dict[str, str]:
    """Return what was fired and is not handled; whose it is `groups` shows."""
    waiting = sum(each["lag_count"] for each in stats["groups"])
    dead = {each["group"]: each["dead_letter_count"] for each in stats["groups"]}
    counts = {"fired, not handled": waiting, "dead letters": sum(dead.values())}
    return {name: str(count) for name, count in counts.items() if count}


def space_of(stats: dict[str, Any]) -> dict[str, str]:
    """Return how much disk a store takes, with what keeps it."""
    cleaning = stats["cleaning"]
    told = {"on disk": shown_bytes(stats["disk_bytes"])}
    bodies_bytes = sum(each["pending_bytes"] for each in stats["topics"])
    if cleaning["pending_bytes"] is not None:
        told["pending take"] = shown_bytes(cleaning["pending_bytes"])
    elif bodies_bytes:
        told["pending take"] = f"more than their bodies' {shown_bytes(bodies_bytes)}"
    if cleaning["kept_by"] != "nothing":
        told["the rest is kept by"] = cleaning["kept_by"]
    return told


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


def parts_of(timer: Timer) -> Iterator[str]:
    """Yield the texts of a timer, in which one may look for a part, in lower case."""
    yield timer.id.casefold()
    for each in (timer.key, timer.tag, *timer.properties.values()):
        yield (each or "").casefold()
    yield timer.body.decode("utf-8", "replace").casefold()


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
                    "to another store."
                )
            return
        fields = {"pending": True} | timer_fields(timer) | {"offset": offset_of(timer.id)}
        shown = {name: fields[name] for name in ("id", "topic", "key", "tag")}
        shown |= {"due": shown_time(timer.due_ms), "put": shown_time(timer.put_ms)}
        if out.on_terminal:
            seen = look.as_of_ms
            for name, ms in (("due", timer.due_ms), ("put", timer.put_ms)):
                shown[name] = f"{shown_here(ms)}, {shown_from(ms, seen)}"
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
    from timerstore.ground.ids import parse_id

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
    found = dict.fromkeys(["overdue", *(f"within {name}" for name in _AHEAD.values()), "later"], 0)
    for each in look.stats().to_dict()["topics"]:
        if topic in (None, each["topic"]):
            upcoming = each["upcoming"]
            found["overdue"] += upcoming["overdue_count"]
            found["later"] += upcoming["later_count"]
            for ms, count in upcoming["within"]:
                found[f"within {_AHEAD[ms]}"] += count
    return found


def by_bucket(due_ms: Any, bucket_ms: int) -> list[tuple[int, int]]:
    """Return the beginning of each bucket that holds any, with how many."""
    import numpy as np

    buckets, counts = np.unique(due_ms // bucket_ms, return_counts=True)
    return list(zip((buckets * bucket_ms).tolist(), counts.tolist(), strict=True))
