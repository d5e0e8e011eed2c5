"""The command that says what became of a timer: find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from timerstore.cli.app import LOOK, AsJson, ConfigFile, StorePath, answering, app
from timerstore.cli.open_store import looking
from timerstore.cli.status import TOO_LATE
from timerstore.control.wire import to_json
from timerstore.ground.moments import shown_time


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
        fields = to_json(found)
        out.values(fields, dict(_rows(fields)))


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for name in ("id", "state", "topic", "key"):
        if found[name] is not None:
            yield name, found[name]
    for name in ("put", "due", "fired", "cancelled"):
        if found[f"{name}_ms"] is not None:
            yield name, shown_time(found[f"{name}_ms"])
    for name, field in (("moved to", "moved_to"), ("offset", "offset"), ("why", "why")):
        if found[field] is not None:
            yield name, found[field]
    for each in found["groups"]:
        yield f"group {each['group']}", f"{each['state']}, attempt {each['attempt']}"
