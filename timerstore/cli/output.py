"""What a command shows: tables on a terminal, plain lines in a pipe, JSON if asked for.

Times are shown as they are here and now; a body is text, with what is no UTF-8 escaped.
"""

from __future__ import annotations

import base64
import errno
import io
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from timerstore.errors import (
    CorruptStoreError,
    FlushFailedError,
    InvalidArgumentError,
    NotAStoreError,
    StoreAccessError,
    StoreLockedError,
    TimerStoreError,
    TooLateError,
    UnknownTimerError,
)
from timerstore.values.amounts import shown, shown_bytes, shown_from, shown_time
from timerstore.watching.sections import Line, Page, drawn_facts, drawn_table, plain_lines

if TYPE_CHECKING:
    from timerstore.services.world.background import Flag


# --- exit statuses: what the end of a command tells the shell


class Status(IntEnum):
    """A status that a command chose; one of the same number that is no `Status` is an accident."""

    FINE = 0
    DAMAGED = 1
    TOO_LATE = 1
    WRONG_USAGE = 2
    NO_STORE = 3
    REFUSED = 4
    WARNED = 5
    OWN_ERROR = 70
    INTERRUPTED = 130


DAMAGED = Status.DAMAGED
"""Damage was found. With 1 Python ends for any uncaught exception too; see `end_of`."""
WARNED = Status.WARNED
"""Of `health --strict`: the store runs, but messages wait for somebody. Of `pipeline`: a rule of
distribution warns."""
TOO_LATE = Status.TOO_LATE
"""Of `get`, `cancel`, `reschedule`: the timer was fired or cancelled before. The same number, for a
script asks each command one question, to which 1 is "no"; of all other commands it is damage."""

MEANING = (
    "Exit status: 0 fine, 1 damage found (of get, cancel, reschedule: the timer is not pending "
    "any more), 2 wrong usage, 3 locked or not a store, 4 no room or a failing disk, 5 a warning "
    "(of health --strict, pipeline), 70 a fault of timerstore, 130 interrupted."
)

_OF_ERRORS: tuple[tuple[tuple[type[Exception], ...], Status], ...] = (
    ((CorruptStoreError,), Status.DAMAGED),
    ((TooLateError,), Status.TOO_LATE),
    ((InvalidArgumentError, UnknownTimerError), Status.WRONG_USAGE),
    ((FlushFailedError,), Status.REFUSED),
    ((StoreLockedError, NotAStoreError, StoreAccessError), Status.NO_STORE),
    ((TimerStoreError, MemoryError), Status.REFUSED),
)


def status_of(error: Exception) -> Status:
    """Return the exit status that an error means; OWN_ERROR for what should not have come here."""
    for kinds, status in _OF_ERRORS:
        if isinstance(error, kinds):
            return status
    return Status.OWN_ERROR


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def told_to_end(*, hurries: bool = False) -> Iterator[Flag]:
    """Yield a flag that SIGTERM and SIGINT set for as long as the block runs.

    The handler only takes note. `hurries`: a second one does what it did before.
    """
    from timerstore.services.world.background import Flag

    told = Flag()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def as_before() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(*_: object) -> None:
        if hurries:
            as_before()
        told.set()

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield told
    finally:
        as_before()


# --- tables, lines, JSON


_GAP = 2
_SHORTENED = (("error", 8), ("body", 8), ("key", 8), ("properties", 8), ("id", 9), ("topic", 8))
"""Columns that give way on a narrow terminal, in this order, each down to so many characters."""


_STYLES = {"label": "dim", "value": "bold", "head": "bold"}

Row = TypeVar("Row")
Columns = Mapping[str, Callable[[Row], object]]
"""What stands in each column of a row. A name with ">": numbers, which stand to the right."""


class _Console(Console):
    """A console whose reader may leave; rich would end the process with the status of damage."""

    def on_broken_pipe(self) -> None:
        """Leave it to the code that writes: see `cli/app.py`."""
        raise BrokenPipeError(errno.EPIPE, "the program that read the output has ended")


class _Done(ProgressColumn):
    """How much is done, of how much, how fast."""

    def __init__(self, unit: str) -> None:
        super().__init__(Column(no_wrap=True))
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Return these three."""
        text = self._amount(task.completed)
        if task.total:
            text += f" of {self._amount(task.total)}"
        if self._unit not in ("", "bytes"):
            text += f" {self._unit}"
        if task.speed:
            text += f", {self._amount(task.speed)}/s"
        return Text(text)

    def _amount(self, count: float) -> str:
        return shown_bytes(int(count)) if self._unit == "bytes" else f"{int(count):,}"


class Output:
    """Where one command's results go."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.status = Status.FINE
        """The exit status that the command tells the shell."""
        for stream in (sys.stdout, sys.stderr):  # a path may hold what is no Unicode
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        self.console = _Console(highlight=False, soft_wrap=True)
        self._errors = _Console(stderr=True, highlight=False, soft_wrap=True)
        self.on_terminal = self.console.is_terminal and not as_json
        self.rows_max = max(10, self.console.height - 4) if self.on_terminal else None
        """Rows of a table that fit on the terminal, with its head, a note, and the next prompt."""

    def say(self, text: str = "") -> None:
        """Show a sentence; beside JSON it goes to standard error."""
        console = self._errors if self.as_json else self.console
        console.print(Text(text), soft_wrap=not console.is_terminal)

    def note(self, text: str) -> None:
        """Show on standard error something that is no result."""
        with suppress(OSError):  # nobody listens
            self._errors.print(Text(shown(text)), soft_wrap=not self._errors.is_terminal)

    def warn(self, text: str) -> None:
        """Write a line on standard error as it is."""
        with suppress(OSError):
            sys.stderr.write(text + "\n")

    def line(self, *values: object) -> None:
        """Write one plain line, its values separated by tabs, with control characters escaped."""
        sys.stdout.write("\t".join(shown(str(value)) for value in values) + "\n")

    def flush(self) -> None:
        """Let the reader see what was written."""
        sys.stdout.flush()

    def json(self, value: Any) -> None:
        """Write one line of JSON."""
        sys.stdout.write(json.dumps(value) + "\n")

    def result(self, fields: dict[str, Any], plain: object) -> None:
        """Write the one result of a command: as JSON, or on a line."""
        if self.as_json:
            self.json(fields)
        else:
            self.line(plain)

    def tell(self, fields: dict[str, Any], text: object) -> None:
        """Tell what was done: as JSON, or in sentences."""
        if self.as_json:
            self.json(fields)
        else:
            self.say(str(text))

    def time(self, ms: int, now_ms: int) -> str:
        """Return a time; for a person as this machine's clock shows it, and how far off it is."""
        return f"{shown_here(ms)}, {shown_from(ms, now_ms)}" if self.on_terminal else shown_time(ms)

    def values(self, fields: dict[str, Any], told: Mapping[str, object]) -> None:
        """Show one thing: as JSON, or what is told of it, value by value, without what is None."""
        if self.as_json:
            self.json(fields)
        else:
            named = [(name, value) for name, value in told.items() if value is not None]
            self.table(["what", "value"], named)

    def records(
        self,
        rows: Iterable[Row],
        fields: Callable[[Row], dict[str, Any]],
        plain: Columns[Row],
        human: Columns[Row] | None = None,
        *,
        has_head: bool = False,
    ) -> int:
        """Show rows, in a pipe and as JSON one by one; return how many they were.

        `fields`: a row for JSON; `plain`: the columns in a pipe, with their names above if
        `has_head`; `human`: those on a terminal, if they are others.
        """
        if self.on_terminal:
            columns = plain if human is None else human
            cells = [[cell(row) for cell in columns.values()] for row in rows]
            self.table(list(columns), cells)
            return len(cells)
        if has_head and not self.as_json:
            self.line(*plain)
        count = 0
        for row in rows:
            count += 1
            if self.as_json:
                self.json(fields(row))
            else:
                self.line(*(cell(row) for cell in plain.values()))
        return count

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Show rows; in a pipe as lines of values with tabs between them.

        Columns whose name begins with ">" are numbers, and stand to the right. On a terminal a
        column in which nothing stands is left out, and those of `_SHORTENED` make room.
        """
        if not self.on_terminal:
            for row in rows:
                self.line(*row)
            return
        names = [name.removeprefix(">") for name in columns]
        texts = [[shown(str(value)) for value in row] for row in rows]
        used = [i for i in range(len(names)) if any(row[i] for row in texts)]
        if not used:
            return
        widths = {i: max(cell_len(row[i]) for row in [names, *texts]) for i in used}
        fit(widths, {names[i]: i for i in used}, self.console.width)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for i in used:
            right, cut = columns[i].startswith(">"), names[i] in dict(_SHORTENED)
            table.add_column(
                names[i],
                justify="right" if right else "left",
                overflow="ellipsis" if cut else "fold",
                no_wrap=cut,
                width=widths[i] if cut else None,
            )
        for row in texts:
            table.add_row(*(Text(row[i]) for i in used))
        self.console.print(table, soft_wrap=False)

    def page(self, page: Page) -> None:
        """Show what a store tells of itself; in a pipe as lines of values with tabs between."""
        if not self.on_terminal:
            for line in plain_lines(page):
                self.line(*line)
            return
        width = self.console.width
        blocks = [
            drawn_facts(page, width),
            *(drawn_table(each, page, width) for each in page.tables),
        ]
        text = Text("\n\n").join(Text("\n").join(map(styled, block)) for block in blocks)
        self.console.print(text, soft_wrap=False)

    @contextmanager
    def progress(self, what: str, unit: str = "") -> Iterator[Callable[..., None]]:
        """Yield a function that takes how much is done, of how much; a bar if somebody looks.

        `unit`: "bytes", or what is counted. It stands on standard error, beside any results.
        """
        if self.as_json or not self._errors.is_terminal:
            yield lambda done, total=None: None
            return
        name = shown(what).replace("[", r"\[")
        text = Column(no_wrap=True, overflow="ellipsis")
        columns = [TextColumn("{task.description}", table_column=text), BarColumn(16)]
        columns += [_Done(unit), TimeElapsedColumn()]
        with Progress(*columns, console=self._errors, transient=True) as progress:
            task = progress.add_task(name, total=None)

            def update(done: int, total: int | None = None) -> None:
                progress.update(task, completed=done, total=total)

            yield update


def styled(line: Line) -> Text:
    """Return a line of a page with its colours."""
    text = Text.assemble(*((piece, _STYLES.get(kind, "")) for piece, kind in line))
    text.highlight_regex(r"[█▏▎▍▌▋▊▉·]{9,}", "green")
    return text


def fit(widths: dict[int, int], index_of: dict[str, int], total: int) -> None:
    """Narrow columns until a table is no wider than `total`, those of `_SHORTENED` in their order.

    >>> widths = {0: 32, 1: 60}
    >>> fit(widths, {"id": 0, "body": 1}, 50)
    >>> widths
    {0: 32, 1: 16}
    """
    for name, least in _SHORTENED:
        over = sum(widths.values()) + _GAP * (len(widths) - 1) - total
        if over > 0 and name in index_of:
            i = index_of[name]
            widths[i] = min(widths[i], max(least, widths[i] - over))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def shown_here(ms: int) -> str:
    """Return UTC epoch milliseconds as this machine's clock shows them, with its zone."""
    try:
        time = (_EPOCH + timedelta(milliseconds=ms)).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return time.isoformat(timespec="milliseconds" if ms % 1000 else "seconds")


def body_field(body: bytes) -> dict[str, str]:
    """Return a body for JSON: as text if it is UTF-8, else in base64 under another name."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
