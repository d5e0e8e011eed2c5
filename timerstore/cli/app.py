"""What all commands share: their options, how they open a store, what an error means to the shell.

Exit status: 0 fine, 1 damage found, 2 wrong usage, 3 locked or not a store, 4 no room or a failing
disk, 130 interrupted.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

import timerstore
from timerstore.cli.output import Output
from timerstore.config import Config
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    NotAStoreError,
    StoreLockedError,
    TimerStoreError,
    TooLateError,
    UnknownTimerError,
)

DAMAGED: Final = 1
WRONG_USAGE: Final = 2
NO_STORE: Final = 3
REFUSED: Final = 4
INTERRUPTED: Final = 130

app = typer.Typer(
    name="timerstore",
    help="An embedded, durable timer store whose directory is an Apache RocketMQ 5.x store.",
    epilog="Exit status: 0 fine, 1 damage found, 2 wrong usage, 3 locked or not a store.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="The store's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="A TOML file with settings; else TIMERSTORE_* variables."),
]


@contextmanager
def answering(*, as_json: bool) -> Iterator[Output]:
    """Yield where results go; turn an error into a message and an exit status."""
    logging.basicConfig(format="timerstore: %(message)s", level=logging.WARNING)
    out = Output(as_json=as_json)
    try:
        yield out
        sys.stdout.flush()
    except BrokenPipeError as e:
        # The reader has seen enough. Python would complain again when it closes its output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from e
    except KeyboardInterrupt as e:
        raise typer.Exit(INTERRUPTED) from e
    except (TimerStoreError, OSError) as e:
        if as_json:
            sys.stderr.write(_error_json(e))
        else:
            out.note(f"timerstore: {e}")
        raise typer.Exit(status_of(e)) from e


def _error_json(error: Exception) -> str:
    import json

    return json.dumps({"error": type(error).__name__, "message": str(error)}) + "\n"


def status_of(error: Exception) -> int:
    """Return the exit status that an error means."""
    if isinstance(error, CorruptStoreError):
        return DAMAGED
    if isinstance(error, (InvalidArgumentError, UnknownTimerError, TooLateError)):
        return WRONG_USAGE
    if isinstance(error, (StoreLockedError, NotAStoreError, OSError)):
        return NO_STORE
    return REFUSED


def open_store(
    path: Path, config_file: Path | None, *, create: bool = False
) -> timerstore.TimerStore:
    """Open a store with the settings of a file, or of the environment."""
    if not create and not (path.is_dir() and any(path.iterdir())):
        raise NotAStoreError(f"{path} is no timer store. Pass a store's folder.")
    config = Config.from_env() if config_file is None else Config.from_toml(config_file)
    return timerstore.open(path, create=create, config=config)


def refuse_in_use(path: Path) -> None:
    """Raise StoreLockedError where a process has the store open; take no lock, change nothing.

    Not to be called by a process that has it open itself: that would lose a lock that Java sees.
    """
    try:
        fd = os.open(path / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except BlockingIOError as e:
        pid = (path / "abort").read_text().strip()
        raise StoreLockedError(
            f"{path} is open in another process (pid {pid}). Stop it, or verify a copy."
        ) from e
    finally:
        os.close(fd)
