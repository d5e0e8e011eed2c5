"""The shell's door to a store: `timerstore COMMAND PATH …`.

main           the entry point              here
app.py         the options that commands share, and what becomes of an error
commands.py    all commands, in the order of --help; warmup
looking.py     info, pending, search, get, count, horizon, find
operating.py   health, pause, resume, top, tail
changes.py     put, cancel, reschedule
consume.py     groups, dead, consume, drop
serving.py     serve, relay
checking.py    verify, validate
pipelines.py   pipeline: many stores in one run, its tables, what fires
importing.py   import, export
import_rows.py rows of a file as timers to put, how far an import has come
keeping.py     backup, follow, standby, promote, restore, salvage, clean, handover, move
open_store.py  a store that is looked at, or changed
output.py      tables on a terminal, plain lines in a pipe, JSON, bars; what an end means

No file here loads the store's kernels when it is imported: `--help` waits for nothing.
"""

from __future__ import annotations

import os
import signal
import sys

_MISSING = "timerstore: this command needs {0}. Install it: pip install {0}\n"
_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line."""
    _open_standard_files()
    try:
        status = _run()
    except KeyboardInterrupt:  # it was importing: each command sees to its own
        sys.stderr.write("timerstore: interrupted\n")
        status = 130
    sys.exit(status)


def _run() -> int | str | None:
    try:
        from timerstore.cli.commands import app
    except ModuleNotFoundError as e:
        package = (e.name or "").split(".")[0]
        if package not in _NEEDED:
            raise
        sys.stderr.write(_MISSING.format(package))
        sys.exit(2)
    from timerstore.cli.app import end_of

    # A polite kill leaves the way that an error does, so that the store is closed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return end_of(lambda: app(prog_name="timerstore"))


def _open_standard_files() -> None:
    """Take the places of standard files that are closed: a store's file would get their number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            taken = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(taken, mode))  # noqa: SIM115, for as long as the process
            assert taken == number
