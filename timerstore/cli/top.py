"""The command `top`: a live view of a store that a program has open."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from timerstore.cli.app import LOOK, AsJson, StorePath, answering, app
from timerstore.cli.operating import owner_of
from timerstore.cli.topview import Look, draw
from timerstore.errors import NotAStoreError

if TYPE_CHECKING:
    from timerstore.control.asking import Owner

_QUIT = ("q", "Q", "\x1b", "\x03")


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
