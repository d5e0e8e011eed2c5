"""Commands that see to a store which a program has open: health, pause, resume, top, tail."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.cells import cell_len, set_cell_size
from rich.live import Live
from rich.text import Text

from timerstore.cli.app import LOOK, OPERATE, AsJson, OfTopic, StorePath, answering, app
from timerstore.cli.open_store import check_is_there, held_by
from timerstore.cli.output import DAMAGED, WARNED, Output, Status, body_field, shown_here, styled
from timerstore.errors import InvalidArgumentError, NotAStoreError, StoreLockedError
from timerstore.share.wire import Owner, find_owner
from timerstore.values.amounts import (
    short_count,
    shown,
    shown_body,
    shown_from,
    shown_span,
    shown_time,
    whole_text,
)
from timerstore.values.times import now_ms, parse_delay, parse_instant
from timerstore.watching.sections import Earlier, Line, drawn_facts, drawn_table, rates, sections

if TYPE_CHECKING:
    from timerstore.share.wire import Owner


What = Annotated[
    str, typer.Argument(metavar="WHAT", help="firing, putting or consuming.", show_default=False)
]
OfGroup = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", help=("Only this group, if WHAT is consuming. Default: all groups.")
    ),
]
_NOBODY = "No process has the store open. Nothing fires until a process opens it."
_REFUSED = ("waiting for space", "flush failed", "stopped")


def owner_of(path: Path) -> Owner | None:
    """Return the process that has a store open, None if none has; raise if it does not answer."""
    check_is_there(path)
    owner = find_owner(path)
    if owner is None and (who := held_by(path)) is not None:
        raise StoreLockedError(
            f"{path} is open in another process{who}, which cannot be asked: it is still opening "
            "the store, its Config.control is False, or it has a manual clock. Make the call in "
            "that process."
        )
    return owner


@app.command(rich_help_panel=LOOK)
def health(
    path: StorePath,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 5 if there are warnings.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether the program that has the store open does its work, and what to do if not.

    It warns of dead letters and of topics that nobody reads. Exit status: 0 it runs (perhaps paused
    or behind), 1 damage was found, 3 no process has the store open, 4 it waits for space, could not
    flush, or has stopped. With --strict: 5 if it runs, but warns.

    Example: timerstore health timers/ || page-somebody
    """
    with answering(as_json=as_json) as out:
        owner = owner_of(path)
        if owner is None:
            out.status = Status.NO_STORE
            told = {"path": str(path), "state": "not open", "ok": False, "cure": _NOBODY}
            out.tell(told, f"{path}: not open. {_NOBODY}")
            return
        found = owner.call("health")
        if found["state"] == "damaged":
            out.status = DAMAGED
        elif found["state"] in _REFUSED:
            out.status = Status.REFUSED
        elif strict and found["warnings"]:
            out.status = WARNED
        if as_json:
            out.json({"path": str(path), **found})
        else:
            show_health(out, path, found)


def show_health(out: Output, path: Path, found: dict[str, Any]) -> None:
    """Show the verdict, then each condition and each warning with its cure."""
    now = found["now_ms"]
    out.say(f"{path}: {found['state']}, open since {shown_time(found['opened_ms'])}")
    for each in [*found["conditions"], *found["warnings"]]:
        since = "" if each["since_ms"] is None else f", {shown_from(each['since_ms'], now)}"
        out.say(f"\n{each.get('state', 'warning')}{since}: {each['what']}")
        out.say(f"  {each['cure'].replace('PATH', str(path))}")


@app.command(rich_help_panel=OPERATE)
def pause(
    path: StorePath,
    what: What,
    group: OfGroup = None,
    duration: Annotated[
        str | None, typer.Option("--for", help="How long, such as 1h30m. Default: until resume.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="When the pause ends: tomorrow 09:00, an ISO time, …")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the pause even if a program opens the store again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop firing, putting or consuming for a while. Nothing is lost.

    firing: what falls due stays pending, and fires after the pause. putting: puts raise an error.
    consuming: nothing is handed out. If no process has the store open, the pause holds for the
    next one.

    Example: timerstore pause timers/ firing --for 1h
    """
    with answering(as_json=as_json) as out:
        seconds = _seconds(duration, until)
        owner = owner_of(path)
        if owner is None:
            _switch_closed(path, what, group, seconds, paused=True)
            keep = True
        else:
            options = {"group": group, "duration_s": seconds, "keep": keep}
            owner.call("pause", what=what, **options)
        until_ms = None if seconds is None else now_ms() + round(seconds * 1_000)
        told = {"path": str(path), "paused": what, "group": group, "until_ms": until_ms}
        end = "until it is resumed" if until_ms is None else f"until {shown_here(until_ms)}"
        out.tell(told | {"kept": keep}, f"{_named(what, group)} is paused {end}.")
        if owner is None and not as_json:
            out.note(f"{_NOBODY} That process will find it paused.")


@app.command(rich_help_panel=OPERATE)
def resume(path: StorePath, what: What, group: OfGroup = None, as_json: AsJson = False) -> None:
    """End a pause. What is overdue fires at once.

    Example: timerstore resume timers/ firing
    """
    with answering(as_json=as_json) as out:
        owner = owner_of(path)
        if owner is None:
            _switch_closed(path, what, group, None, paused=False)
        else:
            owner.call("resume", what=what, group=group)
        told = {"path": str(path), "resumed": what, "group": group}
        out.tell(told, f"{_named(what, group)} goes on.")


def _named(what: str, group: str | None) -> str:
    return what.capitalize() + (f" of group {group}" if group else "")


def _seconds(duration: str | None, until: str | None) -> float | None:
    if duration is not None and until is not None:
        raise InvalidArgumentError("--for and --until exclude each other. Pass one of them.")
    if duration is not None:
        return parse_delay(duration).total_seconds()
    if until is None:
        return None
    seconds = (parse_instant(until).ms - now_ms()) / 1_000
    if seconds <= 0:
        raise InvalidArgumentError(f"--until {until} has passed. Pass a later time.")
    return seconds


def _switch_closed(
    path: Path, what: str, group: str | None, seconds: float | None, *, paused: bool
) -> None:
    from datetime import timedelta

    from timerstore.store.store import switch_closed

    duration = None if seconds is None else timedelta(seconds=seconds)
    switch_closed(path, what, group, duration, paused=paused)  # type: ignore[arg-type]


# --- the commands `top` and `tail`: a store that a program has open, live; what fires in it


_QUIT = ("q", "Q", "\x1b", "\x03")
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_STYLES: Final = {"running": "bold green", "paused": "bold yellow", "behind": "bold yellow"}
_BAD: Final = "bold red"


@dataclass(frozen=True, slots=True)
class Look:
    """A store at one moment; `seconds`: how many fall due in each second ahead."""

    path: Path
    at_s: float
    stats: dict[str, Any]
    health: dict[str, Any]
    seconds: list[int]

    def since(self, before: Look) -> Earlier:
        """Return an earlier look as what rates are told from."""
        return Earlier(before.stats, max(1e-3, self.at_s - before.at_s))

    def to_dict(self, before: Look) -> dict[str, Any]:
        """Return it for JSON, with the rates since an earlier look."""
        return {
            "path": str(self.path),
            "health": self.health,
            "rates_per_s": rates(self.stats, self.since(before)),
            "seconds_ahead": self.seconds,
            "stats": self.stats,
        }


@app.command(rich_help_panel=LOOK)
def top(
    path: StorePath,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one look, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a running store: rates, lateness, services, backlog by topic and group, disk.

    On a terminal it fills the screen until you press q. Otherwise it shows one look.

    Example: timerstore top timers/
    """
    with answering(as_json=as_json) as out:
        owner = owner_of(path)
        if owner is None:
            raise NotAStoreError(
                f"No process has {path} open, so nothing changes. Use `timerstore info`."
            )
        before = look_at(path, owner)
        if once or not out.on_terminal:
            time.sleep(interval)
            now = look_at(path, owner)
            if as_json:
                out.json(now.to_dict(before))
            else:
                size = out.console.size
                height = size.height if out.on_terminal else 200
                out.console.print(draw(now, before, size.width, height), soft_wrap=False)
            return
        with Live(console=out.console, screen=True, auto_refresh=False) as live, _keys():
            while True:
                now = look_at(path, owner)
                size = out.console.size
                live.update(draw(now, before, size.width, size.height), refresh=True)
                if _quits(interval):
                    return
                before = now


def look_at(path: Path, owner: Owner) -> Look:
    """Ask the owner for everything that is shown."""
    return Look(
        path=path,
        at_s=time.monotonic(),
        stats=owner.call("stats"),
        health=owner.call("health"),
        seconds=owner.call("seconds_ahead"),
    )


@contextmanager
def _keys() -> Iterator[None]:
    """Let single keys be read while it lasts; without a terminal to read from, none."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _quits(wait_s: float) -> bool:
    """Wait; tell whether the user wants to end."""
    if not sys.stdin.isatty():
        time.sleep(wait_s)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(ready) and sys.stdin.read(1) in _QUIT


# --- what it draws


def draw(now: Look, before: Look, width: int, height: int) -> Text:
    """Return the screen, of at most `height` lines of `width` cells."""
    page = sections(now.stats, now.health["now_ms"], now.since(before))
    facts = drawn_facts(page, width)[: max(3, height // 7)]
    lines = [_title(now, width), *map(styled, facts), _next_minute(now, width)]
    lines += [Text(text, style=style) for text, style in _conditions(now)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    if not now.stats["topics"]:
        lines += [Text(), Text("No timer was put yet.", style="dim")]
    told = [each for each in page.tables if each.name != "level"]  # those `info` shows
    tables = [drawn_table(each, page, width) for each in told]
    for i, table in enumerate(tables):
        left, below = height - len(lines), sum(len(each) + 1 for each in tables[i + 1 :])
        room = left // (len(tables) - i)
        if told[i].name == "service":  # always so many
            room = len(table) + 1
        count = min(len(table), max(room, left - below) - 1)
        if count > 1:
            lines += [Text(), *map(styled, _first(table, count))]
    return Text("\n").join(lines[:height])


def _first(lines: list[Line], count: int) -> list[Line]:
    if len(lines) <= count:
        return lines
    return [*lines[: count - 1], [(f"… {len(lines) - count + 1} more", "label")]]


def _title(now: Look, width: int) -> Text:
    health = now.health
    state = health["state"]
    open_ms = health["now_ms"] - health["opened_ms"]
    right = f"open {shown_span(open_ms) or '0 s'}  {shown_time(health['now_ms'])[:19]}Z"
    path = shown(str(now.path))
    room = max(8, width - cell_len(right) - cell_len(state) - 4)
    if len(path) > room:
        path = "…" + path[1 - room :]
    title = Text.assemble((path, "bold"), "  ", (state, _STYLES.get(state, _BAD)))
    title.pad_right(max(1, width - cell_len(title.plain) - cell_len(right)))
    title.append(right, style="dim")
    return title


def _next_minute(now: Look, width: int) -> Text:
    most = short_count(max(now.seconds, default=0))
    due = f" {short_count(sum(now.seconds))} due, {most}/s at most"
    name = "next minute "
    blocks = sparkline(now.seconds, max(10, min(60, width - len(name) - len(due))))
    return Text.assemble((name, "dim"), (blocks, "cyan"), (due, "dim"))


def _conditions(now: Look) -> Iterator[tuple[str, str]]:
    """Yield what is wrong first of all, and what to do, each with its style."""
    for condition in now.health["conditions"][:1]:
        style = _STYLES.get(condition["state"], _BAD)
        first_place, *others = condition["what"].split("; ")
        yield shown(f"{first_place}; …" if others else first_place), style
        yield shown(condition["cure"].replace("PATH", str(now.path))), style


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values as blocks, at most `width` of them; neighbours share one if there are more.

    >>> sparkline([0, 1, 2, 4, 8], 5)
    ' ▁▂▄█'
    """
    if len(values) > width:
        edges = [len(values) * i // width for i in range(width + 1)]
        values = [max(values[a:b]) for a, b in pairwise(edges)]
    peak = max(values, default=0)
    if not peak:
        return _BLOCKS[1] * len(values)
    return "".join(_BLOCKS[-(-int(8 * value) // int(peak)) if value else 0] for value in values)


# --- tail


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
