"""Rows that were measured beside what was asked for, as a table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import plots
from rich.console import Console
from rich.table import Table

_Sizes = TypeVar("_Sizes", bound=Any)


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
    lines = [header, "", f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for row in rows:
        mark = _MARKS[row.reached]
        lines.append(f"| {row.what} | {row.reach} | {row.stretch} | {row.measured} | {mark} |")
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


def keep(path: Path, parts: dict[str, Part]) -> None:
    """Write parts to a file, by name."""
    document = {name: asdict(part) for name, part in parts.items()}
    path.write_text(json.dumps(document, indent=1, default=float) + "\n")


def kept(path: Path) -> dict[str, Part]:
    """Return the parts of a file, none if it is not there."""
    if not path.exists():
        return {}
    parts: dict[str, Part] = {}
    for name, part in json.loads(path.read_text()).items():
        parts[name] = Part(part["day"], part["load"], [Row(**row) for row in part["rows"]])
    return parts


def table(parts: Sequence[Part]) -> str:
    """Return the rows of parts as one Markdown table."""
    days, loads = sorted({part.day for part in parts}), [part.load for part in parts]
    header = f"{'; '.join(days)}; load {min(loads):.1f} to {max(loads):.1f} before each row."
    return markdown(header, [row for part in parts for row in part.rows])


def fill(path: Path, table: str, begin: str, end: str) -> None:
    """Put a table between the marks of a Markdown file; draw the plots if it is docs' own."""
    before, rest = path.read_text().split(begin)
    path.write_text(f"{before}{begin}\n{table}{end}{rest.split(end)[1]}")
    if path.resolve() == plots.PAGE:
        plots.draw(path, path.parent / "img")


def new_parser(
    prog: str, description: str | None, quick: str, option: str, names: Sequence[str]
) -> argparse.ArgumentParser:
    """Return a parser of what every bench takes; `option` chooses among `names`."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(option, default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, help="rounds that count")
    parser.add_argument("--folder", help="where stores are made (default: the temporary folder)")
    parser.add_argument("--warm-gib", type=float, default=3.0, help="see machine.warm_memory")
    parser.add_argument("--json", metavar="FILE", type=Path, help="keep the figures there")
    parser.add_argument("--fill", metavar="FILE", type=Path, help="put it between a file's marks")
    return parser


def chosen(parser: argparse.ArgumentParser, parts: str, names: Sequence[str]) -> list[str]:
    """Return the parts that were asked for, or end with what there is."""
    asked = parts.split(",")
    if unknown := set(asked) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; use {', '.join(names)}")
    return asked


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
        document = {"machine": header, **figures}
        arguments.json.write_text(json.dumps(document, indent=1, default=float) + "\n")
    if arguments.fill:
        fill(arguments.fill, markdown(header, rows), *marks)
