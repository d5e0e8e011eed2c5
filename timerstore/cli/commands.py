"""The commands."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

import timerstore
from timerstore.cli.app import (
    AsJson,
    ConfigFile,
    StorePath,
    answering,
    app,
    open_store,
    refuse_in_use,
)
from timerstore.cli.exporting import export_to, format_of
from timerstore.cli.output import (
    Output,
    body_field,
    shown_body,
    shown_bytes,
    shown_delay,
    shown_time,
    whole_text,
)
from timerstore.cli.status import DAMAGED
from timerstore.cli.times import parse_delay, parse_time, parse_time_ms
from timerstore.consuming.dead_letters import redrive
from timerstore.consuming.group import Delivery
from timerstore.errors import InvalidArgumentError
from timerstore.ids import parse_id
from timerstore.offline.export import Format
from timerstore.pending.timers import Timer
from timerstore.stats import Stats
from timerstore.tables.exported import Table

__all__ = ["app"]

LINES_AT_ONCE = 10_000
"""Lines of standard input that `put --lines` puts together."""
PULL_COUNT = 512
ROWS_ON_TERMINAL = 50
"""Rows that `pending` shows on a terminal where no limit is given."""

TopicOption = Annotated[str, typer.Option("--topic", "-t", help="The topic.")]


# --- info


@app.command()
def info(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Show what a store holds.

    It opens the store, so what is overdue is fired into the log, to be consumed later. One process
    at a time can do that: of a store that is in use it tells who has it.
    """
    with answering(as_json=as_json) as out, open_store(path, config) as store:
        stats, topics = store.stats(), pending_by_topic(store)
        if as_json:
            out.json({"path": str(path), "topics": topics} | stats.to_dict())
            return
        out.table(["what", "value"], info_rows(path, stats))
        if not out.on_terminal:
            out.table(["", "", ""], [("pending in", *each) for each in topics.items()])
        elif topics:
            out.say()
            out.table(["topic", ">pending"], [(name, f"{n:,}") for name, n in topics.items()])
        show_levels(out, stats)


def show_levels(out: Output, stats: Stats) -> None:
    """Show what each delay level does, where any was ever used."""
    if not any(each.end for each in stats.levels):
        return
    rows = [
        (
            *(f"level {each.level}", shown_delay(each.delay_ms), each.offset, each.end),
            *(each.lag_count, f"{each.overdue_ms / 1000:.3f} s"),
        )
        for each in stats.levels
    ]
    if out.on_terminal:
        out.say()
    out.table(["", ">delay", ">offset", ">end", ">lag", ">overdue"], rows)


def pending_by_topic(store: timerstore.TimerStore) -> dict[str, int]:
    """Return how many timers each topic has pending, for those that have any."""
    names = sorted({topic.decode("utf-8", "replace") for topic in store.core.engine.queues.topics})
    counts = {name: store.count(name) for name in names}
    return {name: count for name, count in counts.items() if count}


def info_rows(path: Path, stats: Stats) -> list[tuple[str, str]]:
    """Return what a person wants to know of a store, as names and values."""
    recovery = stats.recovery
    found = "closed cleanly"
    if not recovery["clean"]:
        found = f"not closed cleanly; {recovery['scanned_count']:,} messages were read again"
    return [
        ("path", str(path)),
        ("pending", str(stats.pending_count)),
        ("fired up to", shown_time(stats.read_ms)),
        ("commit log", f"{shown_bytes(stats.commitlog_end - stats.commitlog_start)}"),
        ("timer log", shown_bytes(stats.timerlog_end)),
        *space_rows(stats),
        ("unreadable", str(stats.unreadable_count)),
        ("last time", found),
        ("opened in", f"{stats.open_s:.3f} s"),
    ]


def space_rows(stats: Stats) -> list[tuple[str, str]]:
    """Return how much disk a store takes, with what keeps it."""
    rows = [
        ("on disk", shown_bytes(stats.disk_bytes)),
        ("pending take", shown_bytes(stats.cleaning.pending_bytes)),
    ]
    if stats.cleaning.kept_by != "nothing":
        rows.append(("the rest is kept by", stats.cleaning.kept_by))
    return rows


# --- put


@app.command()
def put(
    path: StorePath,
    body: Annotated[
        str | None, typer.Argument(help="What to put; - or nothing: standard input.")
    ] = None,
    topic: TopicOption = "default",
    delay: Annotated[str | None, typer.Option(help="How long from now, such as 1h30m.")] = None,
    at: Annotated[str | None, typer.Option(help="When: ISO 8601 with a time zone.")] = None,
    at_ms: Annotated[int | None, typer.Option(help="When: UTC epoch milliseconds.")] = None,
    delay_level: Annotated[
        int | None, typer.Option(help="Which of the store's delay levels, counted from 1.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="A key.")] = None,
    tag: Annotated[str | None, typer.Option(help="A tag.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", help="NAME=VALUE; may be repeated.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Put each line of standard input as a timer.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Put a timer, making the store where there is none; write its id."""
    with answering(as_json=as_json) as out:
        pairs = parse_properties(properties or [])
        wait = None if delay is None else parse_delay(delay)
        time = None if at is None else parse_time(at)
        if lines:
            if body not in (None, "-") or key is not None or pairs:
                raise InvalidArgumentError(
                    "--lines reads bodies from standard input. Leave out BODY, --key, --property."
                )
            with open_store(path, config, create=True) as store:
                times = {"delay_level": delay_level}
                if delay_level is None or (wait, time, at_ms) != (None, None, None):
                    times["at_ms"] = resolve_times(store, wait, time, at_ms)
                put_lines(out, store, topic, times, tag)
            return
        data = read_body(body)
        with open_store(path, config, create=True) as store:
            id = store.put(
                data,
                topic=topic,
                delay=wait,
                at=time,
                at_ms=at_ms,
                delay_level=delay_level,
                key=key,
                tag=tag,
                properties=pairs,
            )
            show_ids(out, [id])


def read_body(body: str | None) -> bytes:
    """Return the body that was given, or standard input."""
    if body is not None and body != "-":
        return body.encode("utf-8", "surrogateescape")
    if body is None and sys.stdin.isatty():
        raise InvalidArgumentError("There is no body. Pass one, or - to type it.")
    return sys.stdin.buffer.read()


def parse_properties(pairs: list[str]) -> dict[str, str]:
    """Read NAME=VALUE pairs."""
    properties = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidArgumentError(f"The property {pair!r} has no =. Write NAME=VALUE.")
        properties[name] = value
    return properties


def resolve_times(
    store: timerstore.TimerStore, delay: timedelta | None, at: Any, at_ms: int | None
) -> int:
    """Return one due time for all lines."""
    from timerstore.arguments import resolve_due_ms

    core = store.core
    return resolve_due_ms(core.clock.now_ms, delay, at, at_ms, core.engine.config.max_delay_ms)


def put_lines(
    out: Output,
    store: timerstore.TimerStore,
    topic: str,
    times: dict[str, int | None],
    tag: str | None,
) -> None:
    """Put each line that is not empty, many at once."""
    waiting: list[bytes] = []

    def put_waiting() -> None:
        if waiting:
            show_ids(out, store.put_many(waiting, topic=topic, tag=tag, **times))
            waiting.clear()

    for line in sys.stdin.buffer:
        if body := line.rstrip(b"\r\n"):
            waiting.append(body)
        if len(waiting) == LINES_AT_ONCE:
            put_waiting()
    put_waiting()


def show_ids(out: Output, ids: Any) -> None:
    """Write ids, one a line."""
    for id in ids:
        if out.as_json:
            parsed = parse_id(id)
            out.json({"id": id, "due_ms": parsed.due_ms if parsed else None})
        else:
            out.line(id)


# --- consume


@app.command()
def consume(
    path: StorePath,
    topic: TopicOption = "default",
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.")] = "default",
    timeout: Annotated[
        float | None, typer.Option(help="End after so many seconds of nothing; 0: what is there.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", help="End after so many.")] = None,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Acknowledge what was written, or only look.")
    ] = True,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Write each message of a topic once it is due; in a pipe its body alone."""
    with answering(as_json=as_json) as out, open_store(path, config) as store:
        left = sys.maxsize if count is None else count
        while left > 0:
            batch = store.pull(topic, group=group, max_count=min(left, PULL_COUNT), timeout=timeout)
            if len(batch) == 0:
                return
            for delivery in batch:
                show_delivery(out, delivery)
            sys.stdout.flush()
            if ack:
                batch.ack()
            left -= len(batch)


def show_delivery(out: Output, delivery: Delivery) -> None:
    """Write one message."""
    if out.as_json:
        names = ("id", "topic", "key", "tag", "properties", "due_ms", "fired_ms", "lateness_ms")
        fields = {name: getattr(delivery, name) for name in (*names, "attempt")}
        out.json(fields | body_field(delivery.body))
    elif out.on_terminal:
        due, late = shown_time(delivery.due_ms), f"{delivery.lateness_ms:+d} ms"
        out.line(due, f"{late:>9}", delivery.id, shown_body(delivery.body))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(delivery.body + b"\n")


# --- cancel


@app.command()
def cancel(
    path: StorePath,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="-: from standard input.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Cancel timers by their ids; tell of each whether it worked or was too late."""
    with answering(as_json=as_json) as out:
        if ids == ["-"]:
            ids = sys.stdin.read().split()
        with open_store(path, config) as store:
            verdicts = store.cancel_many(ids).tolist()
            if as_json:
                for id, worked in zip(ids, verdicts, strict=True):
                    out.json({"id": id, "cancelled": worked})
                return
            words = ["cancelled" if worked else "too late" for worked in verdicts]
            out.table(["id", "verdict"], list(zip(ids, words, strict=True)))


# --- redrive


@app.command(name="redrive")
def redrive_dead_letters(
    path: StorePath,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")],
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="So many at most; else all.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Put a group's dead letters back, each at once, with its id, as attempt 0; tell how many."""
    with answering(as_json=as_json) as out, open_store(path, config) as store:
        count = redrive(store.consuming, group, limit)
        if as_json:
            out.json({"group": group, "redriven": count})
        else:
            out.line(count)


# --- pending


@app.command()
def pending(
    path: StorePath,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Of this topic.")] = None,
    start: Annotated[
        str | None, typer.Option(help="Due at or after: ISO 8601, or epoch milliseconds.")
    ] = None,
    end: Annotated[str | None, typer.Option(help="Due before.")] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", help=f"So many; a terminal shows {ROWS_ON_TERMINAL}."),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """List pending timers in the order of their due time."""
    with answering(as_json=as_json) as out:
        start_ms, end_ms = parse_time_ms(start), parse_time_ms(end)
        with open_store(path, config) as store:
            shown_limit = ROWS_ON_TERMINAL if limit is None and out.on_terminal else limit
            timers = store.pending(topic=topic, start_ms=start_ms, end_ms=end_ms, limit=shown_limit)
            if as_json:
                for timer in timers:
                    out.json(timer_fields(timer))
                return
            columns = ["due", "topic", "id", "key", "tag", "body"]
            if not out.on_terminal:
                for timer in timers:
                    out.line(*timer_row(timer, whole_text(timer.body)))
                return
            rows = [timer_row(timer, shown_body(timer.body)) for timer in timers]
            out.table(columns, rows)
            if limit is None and len(rows) == ROWS_ON_TERMINAL:
                out.note(f"The first {len(rows)} of {store.count(topic):,}; --limit shows more.")


def timer_fields(timer: Timer) -> dict[str, Any]:
    """Return a timer for JSON."""
    names = ("id", "topic", "key", "tag", "properties", "due_ms", "put_ms", "roll_count")
    return {name: getattr(timer, name) for name in names} | body_field(timer.body)


def timer_row(timer: Timer, body: str) -> tuple[str, ...]:
    """Return a timer for a table."""
    due = shown_time(timer.due_ms)
    return due, timer.topic, timer.id, timer.key or "", timer.tag or "", body


# --- verify, export, handover


@app.command()
def verify(path: StorePath, as_json: AsJson = False) -> None:
    """Check every byte of a closed store, or of a copy; change nothing."""
    with answering(as_json=as_json) as out:
        refuse_in_use(path)
        with out.progress(f"checking {path}"):
            report = timerstore.verify(path)
        if not report.ok:
            out.status = DAMAGED
        if as_json:
            out.json(report.to_dict())
        else:
            show_report(out, report)


def show_report(out: Output, report: timerstore.Report) -> None:
    """Write what was found, damage first; what the next opening mends is no damage."""
    rows: list[tuple[str, int, str]] = []
    for found, prefix in ((report.problems, ""), (report.warnings, "mended at open: ")):
        rows += [(each.file, each.offset, prefix + each.reason) for each in found]
    out.table(["file", ">offset", "reason"], rows)
    more = report.problem_count + report.warning_count - len(rows)
    if more:
        out.say(f"and {more:,} more")
    verdict = "no damage found" if report.ok else f"{report.problem_count:,} damaged places"
    out.say(
        f"{report.path}: {verdict} in {report.message_count:,} messages, "
        f"{report.entry_count:,} queue entries, {report.unit_count:,} units and "
        f"{report.slot_count:,} slots"
    )


@app.command()
def export(
    path: StorePath,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="-: standard output.")],
    table: Annotated[
        Table, typer.Option("--table", help="Pending timers, fired ones, or all messages.")
    ] = "pending",
    form: Annotated[
        Format | None, typer.Option("--format", "-f", help="Else by the file's ending.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a table of a closed store, or of a copy, to a .jsonl, .parquet or .arrow file.

    It does not open the store, so nothing is fired. An .arrow file is an Arrow stream.
    """
    with answering(as_json=as_json) as out:
        if form is None:
            form = format_of(target)
        refuse_in_use(path)
        with out.progress(f"exporting {path}"):
            count = export_to(path, table, target, form)
        if str(target) == "-":
            return
        if as_json:
            out.json({"file": str(target), "table": table, "format": form, "count": count})
        else:
            out.say(f"{count:,} rows written to {target}")


@app.command()
def clean(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Move what is pending out of old segments, and remove these; it takes some ten seconds.

    An open store does it by itself where it is worth it.
    """
    with answering(as_json=as_json) as out, open_store(path, config) as store:
        with out.progress("cleaning"):
            freed = store.clean()
        stats = store.stats()
        if as_json:
            kept_by, on_disk = stats.cleaning.kept_by, stats.disk_bytes
            out.json({"path": str(path), "freed": freed, "disk_bytes": on_disk, "kept_by": kept_by})
        else:
            out.table(["what", "value"], [("freed", shown_bytes(freed)), *space_rows(stats)])


@app.command()
def handover(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Make a store fit for a RocketMQ broker, and close it."""
    with answering(as_json=as_json) as out, open_store(path, config) as store:
        with out.progress("handing over"):
            store.handover()
        if as_json:
            out.json({"path": str(path), "handed_over": True})
        else:
            out.say(f"{path} can be opened by a RocketMQ broker now, as its storePathRootDir.")


# --- warmup


@app.command()
def warmup() -> None:
    """Compile what stores need, for an image or before tests; else the first opening does."""
    from timerstore.warmup import compile_kernels

    with answering(as_json=False):
        compile_kernels()


# --- demo


@app.command()
def demo(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="A new folder, which is kept.")
    ] = None,
    timers: Annotated[int, typer.Option(min=160, help="How many the child would put.")] = 400_000,
    seconds: Annotated[float, typer.Option(min=2, help="How far ahead they fall due.")] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Kill a process that puts timers; show that none was lost, or fired twice, or early."""
    from timerstore.demo.demo import demonstrate

    with answering(as_json=as_json) as out:
        outcome = demonstrate(out, path, timer_count=timers, span_s=seconds)
        if not outcome.ok:
            out.status = DAMAGED
