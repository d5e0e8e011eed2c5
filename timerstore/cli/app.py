"""What all commands share: their options, what an error means to the shell."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from timerstore.cli.output import MEANING, Output, Status, shown_here, status_of
from timerstore.errors import TimerStoreError
from timerstore.timelog.files.smallfile import read_small
from timerstore.values.amounts import shown_from
from timerstore.values.times import Instant, now_ms, parse_instant

if TYPE_CHECKING:
    from timerstore.values.config import Config

OWN_ERROR = (
    "timerstore: this is a fault of timerstore, not yours: {}. Please report it, with the lines "
    "above."
)
LOOK, CHANGE, CONSUME, OPERATE, CHECK, OTHER = (
    *("Look (also while a program has the store open)", "Put and change", "Consume", "Operate"),
    *("Check and keep", "Set up"),
)
"""Headings of `--help`, for `rich_help_panel`."""


def _flags_take_nothing(params: list[Any]) -> list[Any]:
    """Have help show no type beside an option that takes no value."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


class Group(TyperGroup):
    """Commands under a word."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return what it takes."""
        return _flags_take_nothing(super().get_params(ctx))


class Command(TyperCommand):
    """A command, whose help breaks lines where the terminal ends, not where the source does."""

    def __init__(self, name: str | None, *, help: str | None = None, **options: Any) -> None:
        paragraphs = cleandoc(help or "").split("\n\n")
        flowing = "\n\n".join(each.replace("\n", " ") for each in paragraphs)
        super().__init__(name, help=flowing, **options)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return what it takes."""
        return _flags_take_nothing(super().get_params(ctx))


app = typer.Typer(
    name="timerstore",
    cls=Group,
    help="An embedded, durable timer store whose directory is an Apache RocketMQ 5.x store.",
    epilog=MEANING,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from timerstore.version import __version__

        sys.stdout.write(f"timerstore {__version__}\n")
        raise typer.Exit


@app.callback()
def timerstore(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show it.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def topics_of(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return topics of the store on the command line, for completion: what small files say."""
    # An option that still waits for its value leaves the arguments as they were written.
    given = ctx.params.get("path") or next(iter(ctx.args), "")
    path, names = Path(given).expanduser(), set[str]()
    with suppress(OSError):
        names.update(os.listdir(path / "consumequeue"))  # those in which something has fired
    with suppress(TimerStoreError, OSError, ValueError, KeyError, TypeError):
        counts = json.loads(read_small(path / "config" / "timermetrics"))
        names.update(counts["timingCount"], counts["levelCount"])  # what was pending at the close
    hidden = ("rmq_sys_", "SCHEDULE_TOPIC_XXXX", "%RETRY%")
    fitting = (each for each in names if each.startswith(incomplete))
    return sorted(each for each in fitting if not each.startswith(hidden))


StorePath = Annotated[
    Path, typer.Argument(metavar="PATH", help="The store's folder.", readable=False)
]
AnyPath = Annotated[
    str, typer.Argument(metavar="PATH", help="The store's folder, or a backup, also s3://….")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object on each line.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help="A TOML file with settings. Default: the TIMERSTORE_* variables."
    ),
]
OfTopic = Annotated[
    str | None, typer.Option("--topic", "-t", help="Only this topic.", autocompletion=topics_of)
]
ATopic = Annotated[str, typer.Option("--topic", "-t", help="The topic.", autocompletion=topics_of)]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        min=0,
        help="How many at most. Default: what fits on a terminal, or all.",
    ),
]
TIME = "now, +1h, tomorrow 09:00, 2026-11-22, ISO 8601, or epoch ms"
Start = Annotated[str | None, typer.Option(help=f"Due at this time or later: {TIME}.")]
End = Annotated[str | None, typer.Option(help="Due before this time.")]


@contextmanager
def answering(*, as_json: bool) -> Iterator[Output]:
    """Yield where results go; turn an error into a message and an exit status.

    A status that a command sets in `out.status` is that of its end, also if the reader of the
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
    except Exception as e:
        out.status = _tell(out, e)
    finally:
        flush_output()
    if out.status:
        raise typer.Exit(out.status)


def flush_output() -> None:
    """Write out what is left; if nobody takes it, see that Python does not complain at its end.

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
    if isinstance(error, OSError):  # what names no file was written
        from timerstore.timelog.files.oserrors import error_about

        error = error_about(error, "standard output")
    status = status_of(error)
    own = status == Status.OWN_ERROR
    text = "".join(traceback.format_exception(error)) if own else ""
    if out.as_json:
        told = {"error": type(error).__name__, "message": str(error)}
        out.warn(json.dumps(told | ({"traceback": text} if own else {})))
    elif own:
        out.warn(text + OWN_ERROR.format(f"{type(error).__name__}: {error}"))
    elif isinstance(error, MemoryError):
        out.note(
            "timerstore: the memory does not suffice for this command. End other programs, or "
            "ask for fewer rows."
        )
    else:
        out.note(f"timerstore: {error}")
    return status


def settings(config_file: Path | None) -> Config:
    """Return the settings of a file, or of the environment."""
    from timerstore.values.config import Config

    return Config.from_env() if config_file is None else Config.from_toml(config_file)


def read_instant(out: Output, text: str | None, name: str) -> int | None:
    """Read a time that was typed, as epoch ms; say which instant it is if that is not plain."""
    if text is None:
        return None
    instant = parse_instant(text)
    tell_instant(out, instant, f"{name} {text}")
    return instant.ms


def tell_instant(out: Output, instant: Instant, what: str) -> None:
    """Say on standard error which instant was understood."""
    if not instant.is_exact:
        seen = shown_from(instant.ms, now_ms())
        out.note(f"{what}: {shown_here(instant.ms)}, {seen}")
