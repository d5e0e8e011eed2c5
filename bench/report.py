"""Rows that were measured beside what was asked for, as a table."""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import plots
from rich.console import Console
from rich.table import Table

_Sizes = TypeVar("_Sizes", bound=Any)
_Kept = TypeVar("_Kept")


@dataclass
class Row:
    """One row, measured."""

    what: str
    reach: str
    stretch: str
    measured: str
    reached: bool | None = None
    figures: dict[str, Any] = field(default_factory=dict)


_MARKS = {True: "reached", False: "missed", None: ""}
_WIDTH = 150  # of what is not shown on a terminal
_COLUMNS = ("what", "reach", "stretch", "measured", "")


def show(header: str, rows: list[Row]) -> None:
    """Print the rows."""
    table = Table(title=header)
    for name in _COLUMNS:
        table.add_column(name)
    for row in rows:
        colour = {True: "green", False: "red", None: ""}[row.reached]
        mark = _MARKS[row.reached]
        table.add_row(row.what, row.reach, row.stretch, row.measured, mark, style=colour)
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)


def markdown(header: str, rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [header, "", "| what | reach | measured |  |", "|---" * 4 + "|"]
    for row in rows:
        mark = _MARKS[row.reached]
        lines.append(f"| {row.what} | {row.reach} | {row.measured} | {mark} |")
    return "\n".join(lines) + "\n"


@dataclass
class Part:
    """Rows of a table that were measured one after the other."""

    day: str
    """And the machine, in words."""
    load: float
    """Of the machine before the first of them."""
    rows: list[Row]


def tell(rows: Sequence[Row]) -> None:
    """Print rows as they are measured, three lines each."""
    for row in rows:
        mark = _MARKS[row.reached].replace("missed", "MISSED")
        print(f"{row.what}\n    {row.measured}\n    {row.reach} {mark}", flush=True)


# --- files


def write_json(path: Path, document: Any) -> None:
    """Write a file that is the old one or the new one at any moment, however this ends."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_text(json.dumps(document, indent=1, ensure_ascii=False, default=float) + "\n")
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def read_json(
    path: Path, of: Callable[[Any], _Kept], empty: _Kept, option: str = "--json"
) -> _Kept:
    """Return what `of` makes of a file's document, `empty` if there is no file.

    Raises ValueError if the file holds something else than what `option` writes.
    """
    if not path.exists():
        return empty
    try:
        return of(json.loads(path.read_text()))
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise ValueError(f"{path} is not a file that {option} has written: {e!r}") from e


def keep(path: Path, parts: dict[str, Part]) -> None:
    """Write parts to a file, by name."""
    write_json(path, {name: asdict(part) for name, part in parts.items()})


def kept(path: Path) -> dict[str, Part]:
    """Return the parts of a file, none if it is not there."""

    def parts(document: Any) -> dict[str, Part]:
        return {
            name: Part(part["day"], part["load"], [Row(**row) for row in part["rows"]])
            for name, part in document.items()
        }

    return read_json(path, parts, {})


def table(parts: Sequence[Part]) -> str:
    """Return the rows of parts as one Markdown table."""
    days, loads = sorted({part.day for part in parts}), [part.load for part in parts]
    header = f"{'; '.join(days)}; load {min(loads):.1f} to {max(loads):.1f} before each row."
    return markdown(header, [row for part in parts for row in part.rows])


def around(path: Path, begin: str, end: str) -> tuple[str, str]:
    """Return what a page has before and behind two marks. Raises ValueError if it lacks them."""
    text = path.read_text()
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{path} must have {begin} and behind it {end}, each once")
    return text.partition(begin)[0], text.partition(end)[2]


def fill(path: Path, table: str, begin: str, end: str) -> None:
    """Put a table between the marks of a Markdown file; draw the plots if it is docs' own."""
    before, behind = around(path, begin, end)
    path.write_text(f"{before}{begin}\n{table}{end}{behind}")
    if path.resolve() == plots.PAGE:
        plots.draw(path, path.parent / "img")


# --- options


def above_zero(text: str) -> float:
    """Read an option's number, which is more than 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def count_above_zero(text: str) -> int:
    """Read an option's whole number, which is more than 0."""
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def new_parser(
    prog: str,
    description: str | None,
    quick: str,
    option: str,
    names: Sequence[str],
    *,
    adds: bool = False,
) -> argparse.ArgumentParser:
    """Return a parser of what every bench takes; `option` chooses among `names`.

    `adds`: `--json` adds to what its file has.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(option, default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=count_above_zero, help="rounds that count")
    add_files(parser, adds=adds)
    return parser


def add_files(parser: argparse.ArgumentParser, *, adds: bool) -> None:
    """Add the options that name a folder and files; `adds`: `--json` adds to what its file has."""
    parser.add_argument("--folder", help="where stores are made (default: the temporary folder)")
    json_help = "add what is measured to a file" if adds else "write what is measured to a file"
    parser.add_argument("--json", metavar="FILE", type=Path, help=json_help)
    fill_help = "put the table between a page's marks" + (", all that FILE has" if adds else "")
    parser.add_argument("--fill", metavar="PAGE", type=Path, help=fill_help)


def add_warm(parser: argparse.ArgumentParser) -> None:
    """Add the option of `machine.warm_memory`."""
    words = "GiB of memory that each round touches first (default: 3)"
    parser.add_argument("--warm-gib", type=float, default=3.0, help=words)


def check_files(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    marks: tuple[str, str],
    kept: Callable[[Path], object] | None = None,
) -> None:
    """End, before anything is measured, if the folder or a file is not what it must be.

    `kept` reads the file to which `--json` adds.
    """
    try:
        if arguments.folder:
            os.rmdir(tempfile.mkdtemp(prefix="timerstore-bench-", dir=arguments.folder))
        if arguments.json:
            if kept is not None:
                kept(arguments.json)
            if not os.access(arguments.json.absolute().parent, os.W_OK):
                raise ValueError(f"{arguments.json} cannot be written")
        if arguments.fill:
            around(arguments.fill, *marks)
    except (OSError, ValueError) as e:
        parser.error(str(e))


def chosen(parser: argparse.ArgumentParser, parts: str, names: Sequence[str]) -> list[str]:
    """Return the parts that were asked for, or end with what there is."""
    asked = [part for part in parts.split(",") if part]
    if unknown := set(asked) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; use {', '.join(names)}")
    return asked


def check_whole(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    asked: Sequence[str],
    names: Sequence[str],
) -> None:
    """End if `--fill` would put a table of some parts in the place of one that has all."""
    if arguments.fill and set(asked) != set(names):
        parser.error(f"--fill needs all of {', '.join(names)}")


def sizes_of(arguments: argparse.Namespace, full: _Sizes, quick: _Sizes) -> _Sizes:
    """Return the sizes that were asked for, a dataclass with `rounds`."""
    sizes = quick if arguments.quick else full
    return replace(sizes, rounds=arguments.rounds) if arguments.rounds else sizes


def deliver(
    arguments: argparse.Namespace,
    header: str,
    rows: list[Row],
    figures: dict[str, Any],
    marks: tuple[str, str],
) -> None:
    """Show the rows; if it was asked for, write `figures` or fill a table between `marks`."""
    show(header, rows)
    if arguments.json:
        write_json(arguments.json, {"machine": header, **figures})
    if arguments.fill:
        fill(arguments.fill, markdown(header, rows), *marks)
