"""What a command shows: tables on a terminal, plain lines in a pipe, JSON where asked for."""

from __future__ import annotations

import base64
import errno
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from timerstore.cli.status import Status

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class _Console(Console):
    """A console whose reader may leave; rich would end the process with the status of damage."""

    def on_broken_pipe(self) -> None:
        """Leave it to whoever writes: see `cli/app.py`."""
        raise BrokenPipeError(errno.EPIPE, "the reader has gone")


class Output:
    """Where one command's results go."""

    def __init__(self, *, as_json: bool = False) -> None:
        """Look at standard output, once."""
        self.as_json = as_json
        self.status = Status.FINE
        """What the command's end shall tell the shell."""
        for stream in (sys.stdout, sys.stderr):  # a path may hold what is no Unicode
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        self.console = _Console(highlight=False, soft_wrap=True)
        self._errors = _Console(stderr=True, highlight=False, soft_wrap=True)
        self.on_terminal = self.console.is_terminal and not as_json

    def say(self, text: str = "") -> None:
        """Show a sentence; beside JSON it goes to standard error."""
        console = self._errors if self.as_json else self.console
        console.print(Text(text))

    def note(self, text: str) -> None:
        """Show on standard error something that is no result."""
        with suppress(OSError):  # nobody listens
            self._errors.print(Text(text))

    def warn(self, text: str) -> None:
        """Write a line on standard error as it is."""
        with suppress(OSError):
            sys.stderr.write(text + "\n")

    def line(self, *values: object) -> None:
        """Write one plain line, its values separated by tabs, with control characters escaped."""
        sys.stdout.write("\t".join(shown(str(value)) for value in values) + "\n")

    def json(self, value: Any) -> None:
        """Write one line of JSON."""
        sys.stdout.write(json.dumps(value) + "\n")

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, aligned: bool = False
    ) -> None:
        """Show rows; in a pipe as lines of values with tabs between them.

        `aligned`: in a pipe too they are for people, with spaces, under the columns' names.

        Columns whose name begins with ">" are numbers, and stand to the right.
        """
        names = [name.removeprefix(">") for name in columns]
        if not self.on_terminal and aligned:
            cells = [names] + [[shown(str(value)) for value in row] for row in rows]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            for line in cells:
                padded = [
                    cell.rjust(width) if name.startswith(">") else cell.ljust(width)
                    for cell, width, name in zip(line, widths, columns, strict=True)
                ]
                sys.stdout.write("  ".join(padded).rstrip() + "\n")
            return
        if not self.on_terminal:
            for row in rows:
                self.line(*row)
            return
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name, column in zip(names, columns, strict=True):
            right = column.startswith(">")
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(shown(str(value))) for value in row))
        self.console.print(table, soft_wrap=False)

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes how many are done; a bar on a terminal, nothing elsewhere."""
        if not self.on_terminal:
            yield lambda done: None
            return
        columns = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
        if total is not None:
            columns.insert(2, MofNCompleteColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(shown(what).replace("[", r"\["), total=total)

            def update(done: int) -> None:
                progress.update(task, completed=done)

            yield update


def shown(text: str) -> str:
    r"""Return text that cannot break a line, nor steer a terminal.

    >>> print(shown("a\tb\x1b[2J"))
    a\tb\x1b[2J
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_ESCAPES.get(c, c if c.isprintable() else ascii(c)[1:-1]) for c in text)


def shown_time(ms: int) -> str:
    """Return UTC epoch milliseconds as ISO 8601.

    >>> shown_time(1_800_000_000_123)
    '2027-01-15T08:00:00.123Z'
    """
    try:
        time = datetime.fromtimestamp(ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def shown_bytes(count: int) -> str:
    """Return a size for people.

    >>> shown_bytes(38_707_200)
    '36.9 MiB'
    """
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} bytes"


def shown_delay(ms: int) -> str:
    """Return a duration of whole seconds in the largest unit that says it exactly.

    >>> shown_delay(5_400_000)
    '90m'
    """
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if ms % unit_ms == 0:
            return f"{ms // unit_ms}{unit}"
    return f"{ms // 1000}s"


def body_field(body: bytes) -> dict[str, str]:
    """Return a body for JSON: as text where it is UTF-8, else in base64 under another name."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def shown_body(body: bytes, length_max: int = 60) -> str:
    """Return the beginning of a body for a person; "…" says that it goes on."""
    text = whole_text(body[: 4 * length_max])
    is_whole = len(body) <= 4 * length_max and len(text) <= length_max
    return text if is_whole else text[: length_max - 1] + "…"


def whole_text(body: bytes) -> str:
    """Return a body for a program that reads lines: all of it, else a quote is never closed."""
    return body.decode("utf-8", "backslashreplace")
