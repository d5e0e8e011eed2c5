"""What all commands share: their options, how they open a store, what an error means to the shell.

Exit status: 0 fine, 1 damage found, 2 wrong usage, 3 locked or not a store, 4 no room or a failing
disk, 70 an error of our own, 130 interrupted.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import timerstore
from timerstore.cli.output import Output
from timerstore.cli.status import Status, status_of
from timerstore.config import Config
from timerstore.errors import NotAStoreError, StoreLockedError
from timerstore.timelog.lockfile import holder
from timerstore.timelog.oserrors import store_error, told_of

OWN_ERROR = (
    "timerstore: this is an error of timerstore's own: {}. Please report it, with the lines above."
)

app = typer.Typer(
    name="timerstore",
    help="An embedded, durable timer store whose directory is an Apache RocketMQ 5.x store.",
    epilog="Exit status: 0 fine, 1 damage found, 2 wrong usage, 3 locked or not a store, "
    "4 no room or a failing disk, 70 an error of timerstore's own.",
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
    """Yield where results go; turn an error into a message and an exit status.

    A status that a command sets in `out.status` is that of its end, also where whoever reads the
    output has seen enough.
    """
    logging.basicConfig(format="timerstore: %(message)s", level=logging.WARNING)
    out = Output(as_json=as_json)
    try:
        yield out
        sys.stdout.flush()
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        pass
    except KeyboardInterrupt as e:
        raise typer.Exit(Status.INTERRUPTED) from e
    except OSError as e:
        out.status = _tell(out, store_error(e, "standard output"))
    except Exception as e:
        out.status = _tell(out, e)
    finally:
        flush_output()
    if out.status:
        raise typer.Exit(out.status)


def flush_output() -> None:
    """Write out what is left; where nobody takes it, see that Python does not complain at its end.

    Python flushes once more when it ends, and then leaves with a status of its own.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_of(run: Callable[[], None]) -> int | str | None:
    """Run the commands; return the status to leave with, also after what no command has caught."""
    try:
        run()
    except SystemExit as e:
        if e.code == Status.DAMAGED and not isinstance(e.code, Status):
            e.code = Status.FINE  # Typer, or rich, found that nobody reads its help any more
        flush_output()
        return e.code
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    except Exception as e:
        return _tell(Output(), e)
    return Status.FINE


def _tell(out: Output, error: Exception) -> Status:
    """Write on standard error what went wrong, and return the status that it means."""
    status = status_of(error)
    own = status == Status.OWN_ERROR
    text = "".join(traceback.format_exception(error)) if own else ""
    if out.as_json:
        told = {"error": type(error).__name__, "message": str(error)}
        out.warn(json.dumps(told | ({"traceback": text} if own else {})))
    elif own:
        out.warn(text + OWN_ERROR.format(f"{type(error).__name__}: {error}"))
    elif isinstance(error, MemoryError):
        out.note("timerstore: there is not enough memory for this. Make room, or use less.")
    else:
        out.note(f"timerstore: {error}")
    return status


def open_store(
    path: Path, config_file: Path | None, *, create: bool = False
) -> timerstore.TimerStore:
    """Open a store with the settings of a file, or of the environment."""
    with told_of(path):
        if not create and not (path.is_dir() and any(path.iterdir())):
            raise NotAStoreError(f"{path} is no timer store. Pass a store's folder.")
    config = Config.from_env() if config_file is None else Config.from_toml(config_file)
    return timerstore.open(path, create=create, config=config)


def refuse_in_use(path: Path) -> None:
    """Raise StoreLockedError where a process has the store open; take no lock, change nothing.

    Not to be called by a process that has it open itself: that would lose a lock that Java sees.
    """
    try:
        fd = os.open(path / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError as e:
        raise store_error(e, path / "lock") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except BlockingIOError as e:
        raise StoreLockedError(
            f"{path} is open in another process{holder(path)}. Stop it, or verify a copy."
        ) from e
    finally:
        os.close(fd)
