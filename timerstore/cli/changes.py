"""Commands that change what is pending: put, cancel, reschedule."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timerstore.cli.app import (
    CHANGE,
    TIME,
    AsJson,
    ATopic,
    ConfigFile,
    OfTopic,
    StorePath,
    answering,
    app,
    read_instant,
    tell_instant,
)
from timerstore.cli.open_store import OwnersStore, changing, check_is_there, check_known
from timerstore.cli.output import TOO_LATE, Output
from timerstore.errors import InvalidArgumentError
from timerstore.values.amounts import shown_time
from timerstore.values.times import Instant, now_ms, parse_delay

if TYPE_CHECKING:
    from timerstore.watching.any_store import AnyStore

_VERDICTS = {True: "cancelled", False: "too late"}
AT_ONCE = 10_000
"""Lines of standard input that `put --lines` puts together; timers that are cancelled together."""
_BYTES_AT_ONCE = 16 << 20
NOTHING_FIRES = (
    "Nothing fires until a process has the store open: your program, or timerstore consume."
)
Delay = Annotated[str | None, typer.Option(help="How long from now, such as 1h30m.")]
At = Annotated[str | None, typer.Option(help=f"When it is due: {TIME}.")]
AtMs = Annotated[int | None, typer.Option(help="When it is due, in epoch milliseconds.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only write how many there are.")]


# --- put


@app.command(rich_help_panel=CHANGE)
def put(
    path: StorePath,
    body: Annotated[
        str | None,
        typer.Argument(help=("The body. If it is - or left out, it is read from standard input.")),
    ] = None,
    topic: ATopic = "default",
    delay: Delay = None,
    at: At = None,
    at_ms: AtMs = None,
    delay_level: Annotated[
        int | None, typer.Option(help="A delay level of the store, counted from 1.")
    ] = None,
    jitter: Annotated[
        str | None, typer.Option(help="How much later it may be due, such as 5m.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="How long from now it may be handed out, such as 2h.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="A key.")] = None,
    tag: Annotated[str | None, typer.Option(help="A tag.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", help=("NAME=VALUE. May be given several times.")),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Put each line of standard input as a timer.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Put a timer and write its id. The store is created if it does not exist.

    Example: timerstore put timers/ 'order:42' --topic reminders --at 'tomorrow 09:00'
    """
    with answering(as_json=as_json) as out:
        check_one_time(delay, at, at_ms, delay_level)
        due_ms = read_due(out, delay, at, at_ms)
        times: dict[str, Any] = {"at_ms": due_ms, "delay_level": delay_level}
        if jitter is not None:
            times["jitter"] = parse_delay(jitter)
        if expires is not None:
            times["expires"] = parse_delay(expires)
        pairs = parse_properties(properties or [])
        if lines:
            if body not in (None, "-") or key is not None or pairs:
                raise InvalidArgumentError(
                    "--lines reads bodies from standard input. Leave out BODY, --key, --property."
                )
        else:
            data = read_body(body)
        is_new = not path.exists()
        with changing(path, config, create=True) as store:
            check_level(store, delay_level)
            if lines:
                if delay_level is None and due_ms is None:
                    times["at_ms"] = now_ms()
                put_lines(out, store, {"topic": topic, "tag": tag} | times)
            else:
                described: dict[str, Any] = {"key": key, "tag": tag, "properties": pairs or None}
                show_ids(out, [store.put(body=data, topic=topic, **described, **times)])
        tell_made(out, path, store, is_new=is_new)


def tell_made(out: Output, path: Path, store: AnyStore, *, is_new: bool) -> None:
    """Say on standard error what somebody who put something may not expect."""
    if out.as_json:
        return
    if is_new:
        out.note(f"There was no store in {path}: a new one was made.")
    if not isinstance(store, OwnersStore):
        out.note(NOTHING_FIRES)


def check_one_time(*given: object) -> None:
    """Refuse more than one way to say when."""
    if sum(each is not None for each in given) > 1:
        raise InvalidArgumentError("Pass one of --delay, --at, --at-ms and --delay-level.")


def read_due(out: Output, delay: str | None, at: str | None, at_ms: int | None) -> int | None:
    """Return the due time that was typed, as epoch ms; say which instant was understood."""
    if delay is None:
        return at_ms if at is None else read_instant(out, at, "due")
    delay_us = round(parse_delay(delay).total_seconds() * 1_000_000)
    due_ms = now_ms() - (-delay_us // 1_000)
    if out.on_terminal:
        tell_instant(out, Instant(due_ms, False), "due")
    return due_ms


def check_level(store: AnyStore, level: int | None) -> None:
    """Refuse a delay level that the store does not have; its own call would take the highest."""
    if level is None:
        return
    count = len(store.stats().levels)
    if not 1 <= level <= count:
        raise InvalidArgumentError(f"--delay-level is {level}. This store has 1 to {count}.")


def read_body(body: str | None) -> bytes:
    """Return the body that was given, or standard input."""
    if body is not None and body != "-":
        return body.encode("utf-8", "surrogateescape")
    if body is None and sys.stdin.isatty():
        raise InvalidArgumentError("No body was given. Pass one, or - to type it.")
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


def put_lines(out: Output, store: AnyStore, options: dict[str, Any]) -> None:
    """Put each line that is not empty, many at once."""
    waiting, waiting_bytes = list[bytes](), 0
    for line in chain(sys.stdin.buffer, [None]):
        if line and (body := line.rstrip(b"\r\n")):
            waiting.append(body)
            waiting_bytes += len(body)
        if waiting and (line is None or len(waiting) == AT_ONCE or waiting_bytes >= _BYTES_AT_ONCE):
            show_ids(out, store.put_many(bodies=waiting, **options))
            waiting, waiting_bytes = [], 0


def show_ids(out: Output, ids: Iterable[str]) -> None:
    """Write ids, one a line."""
    from timerstore.values.ids import parse_id

    for id in ids:
        if out.as_json:
            parsed = parse_id(id)
            due_ms = parsed.due_ms if parsed else None
            out.json({"id": id, "due_ms": due_ms, "due": due_ms and shown_time(due_ms)})
        else:
            out.line(id)


# --- cancel, reschedule


@app.command(rich_help_panel=CHANGE)
def cancel(
    path: StorePath,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID", help=("The ids. If - is given, they are read from standard input.")
        ),
    ] = None,
    topic: OfTopic = None,
    key: Annotated[
        str | None, typer.Option(help="All timers with this key. Needs --topic.")
    ] = None,
    key_prefix: Annotated[
        str | None, typer.Option(help="All timers whose key begins with this. Needs --topic.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All timers of the topic. Needs --topic.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Cancel timers by id, by key, or all of a topic. Exit status 1: one had fired, or none is.

    Example: timerstore cancel timers/ --topic billing --key user:7
    """
    with answering(as_json=as_json) as out:
        if sum((bool(ids), key is not None, key_prefix is not None, everything)) != 1:
            raise InvalidArgumentError("Pass ids, or --key, or --key-prefix, or --all.")
        if (topic is None) != bool(ids) or (dry_run and topic is None):
            raise InvalidArgumentError(
                "--topic goes with --key, --key-prefix or --all, --dry-run with --topic. Pass both."
            )
        if key_prefix == "":
            raise InvalidArgumentError("--key-prefix is empty. Pass --all to cancel all.")
        if topic is not None:
            count = cancel_found(path, config, topic, key, key_prefix, dry_run=dry_run)
            out.status = out.status if count else TOO_LATE
            told = {"topic": topic, "key": key, "prefix": key_prefix, "cancelled": count}
            told |= {"dry_run": True} if dry_run else {}
            out.result(told, count)
            return
        ids = sys.stdin.read().split() if ids == ["-"] else ids or []
        with changing(path, config) as store:
            verdicts = [bool(each) for each in store.cancel_many(ids=ids)]
        if not all(verdicts):
            out.status = TOO_LATE
        out.records(
            zip(ids, verdicts, strict=True),
            lambda each: {"id": each[0], "cancelled": each[1]},
            {"id": itemgetter(0), "verdict": lambda each: _VERDICTS[each[1]]},
        )


def cancel_found(
    path: Path,
    config: Path | None,
    topic: str,
    key: str | None,
    prefix: str | None,
    *,
    dry_run: bool,
) -> int:
    """Cancel all of a topic, or those with a key, or whose key begins so; return how many."""
    from timerstore.share.opening import open as open_store

    ids: list[str] = []
    if key is None or dry_run:
        check_is_there(path)
        with open_store(path, read_only=True) as files:
            table = files.pending_columns(topic=topic, columns=["id", "key"])
            pairs = zip(*(table[name].to_pylist() for name in ("id", "key")), strict=True)
            ids = [id for id, each in pairs if _is_meant(each, key, prefix)]
            if dry_run:
                if not ids:
                    check_known("topic", topic, files.stats().to_dict())
                return len(ids)
    with changing(path, config) as store:
        if key is not None:
            count = store.cancel_key(topic=topic, key=key)
        else:
            parts = (ids[i : i + AT_ONCE] for i in range(0, len(ids), AT_ONCE))
            count = sum(int(sum(store.cancel_many(ids=part))) for part in parts)
        if not count:
            check_known("topic", topic, store.stats().to_dict())
        return count


def _is_meant(found: str | None, key: str | None, prefix: str | None) -> bool:
    if key is None and prefix is None:
        return True
    return found is not None and (found == key if prefix is None else found.startswith(prefix))


@app.command(rich_help_panel=CHANGE)
def reschedule(
    path: StorePath,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that put wrote.")],
    delay: Delay = None,
    at: At = None,
    at_ms: AtMs = None,
    body: Annotated[
        str | None,
        typer.Option(
            help="A new body; - reads it from standard input. If no time is given, the time stays."
        ),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", "-p", help=("NAME=VALUE. Replaces all properties that the timer had.")
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Move a timer to another time, or change it, and write its new id. Exit status 1: too late.

    Example: timerstore reschedule timers/ 019C0F3A5B7C00000000000051C4D1E0 --delay 2h
    """
    with answering(as_json=as_json) as out:
        check_one_time(delay, at, at_ms)
        due_ms = read_due(out, delay, at, at_ms)
        if due_ms is None and body is None and not properties:
            raise InvalidArgumentError(
                "Nothing to change was given. Pass --delay, --at, --at-ms, --body or --property."
            )
        data = None if body is None else read_body(body)
        replaced = parse_properties(properties or []) or None
        with changing(path, config) as store:
            show_ids(out, [store.reschedule(id=id, at_ms=due_ms, body=data, properties=replaced)])
