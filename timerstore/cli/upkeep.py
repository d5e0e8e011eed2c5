"""Commands that tidy a store: clean, handover."""

from __future__ import annotations

import shlex
from pathlib import Path

from timerstore.cli.app import CHECK, AsJson, ConfigFile, StorePath, answering, app
from timerstore.cli.open_store import changing, open_to_change
from timerstore.ground.moments import shown_time
from timerstore.watching.sections import Fact, Page, disk_facts


@app.command(rich_help_panel=CHECK)
def clean(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Copy pending timers out of old files, and remove those files. It takes some ten seconds.

    An open store does this by itself when it is worth it.

    Example: timerstore clean timers/
    """
    with answering(as_json=as_json) as out, changing(path, config) as store:
        with out.progress("cleaning"):
            freed = store.clean()
        stats = store.stats().to_dict()
        kept_by, on_disk = stats["cleaning"]["kept_by"], stats["disk_bytes"]
        told = {"path": str(path), "freed": freed, "disk_bytes": on_disk, "kept_by": kept_by}
        if as_json:
            out.json(told)
        else:
            out.page(Page([[Fact("freed", freed, "bytes")], *disk_facts(stats)], []))


@app.command(rich_help_panel=CHECK)
def handover(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Prepare a store for a RocketMQ broker, and close it.

    Example: timerstore handover timers/
    """
    with answering(as_json=as_json) as out, open_to_change(path, config) as store:
        with out.progress("handing over"):
            until_ms = store.handover()
        from timerstore.closing.broker_files import CONFIG_FILE

        settings = str(path / CONFIG_FILE)
        commands = _commands(path / CONFIG_FILE)
        if as_json:
            found = {"path": str(path), "handed_over": True, "commands": commands}
            out.json(found | {"broker_conf": settings, "open_before_ms": until_ms})
            return
        out.say(f"A RocketMQ broker can open {path} now, with the settings in {settings}.")
        out.say("Type these in RocketMQ's folder, each in a terminal of its own. The last one is")
        out.say("for clients that speak gRPC:")
        for command in commands:
            out.say(f"  {command}")
        if until_ms is not None:
            until = shown_time(until_ms)
            out.say(
                f"Start the broker before {until}. If it opens the store later, it skips the "
                "first timers."
            )


def _commands(settings: Path) -> list[str]:
    """Return what starts RocketMQ: a name server, the broker, a proxy."""
    names = "localhost:9876"
    return [
        "sh bin/mqnamesrv",
        f"sh bin/mqbroker -n {names} -c {shlex.quote(str(settings.absolute()))}",
        f"sh bin/mqproxy -n {names}",
    ]
