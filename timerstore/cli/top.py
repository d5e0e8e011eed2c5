"""The commands `top` and `tail`: a store that a program has open, live; what fires in it."""

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

from timerstore.cli.app import LOOK, AsJson, OfTopic, StorePath, answering, app
from timerstore.cli.operating import owner_of
from timerstore.cli.output import Output, body_field, shown_body, styled, whole_text
from timerstore.errors import NotAStoreError
from timerstore.values.amounts import short_count, shown, shown_span, shown_time
from timerstore.watching.sections import Earlier, Line, drawn_facts, drawn_table, rates, sections

if TYPE_CHECKING:
    from timerstore.share.asking import Owner


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
