"""Commands that see to a store which a program has open: health, pause, resume."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from timerstore.cli.app import LOOK, OPERATE, AsJson, StorePath, answering, app
from timerstore.cli.open_store import check_is_there, held_by
from timerstore.cli.output import Output, shown_here
from timerstore.cli.status import DAMAGED, WARNED, Status
from timerstore.cli.times import now_ms, parse_delay, parse_instant
from timerstore.errors import InvalidArgumentError, StoreLockedError
from timerstore.share.asking import Owner, find_owner
from timerstore.values.amounts import shown_from, shown_time

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

    from timerstore.store.switching import switch_closed

    duration = None if seconds is None else timedelta(seconds=seconds)
    switch_closed(path, what, group, duration, paused=paused)  # type: ignore[arg-type]
