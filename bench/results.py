"""What was measured: kept in a file, shown as a table, put into a page.

A file of results has a record for each name, such as `figures/put_many`, `stress/hops`, with the
day, the machine, its load. What is measured anew takes the place of what was there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import plots


@dataclass
class Row:
    """One row of a table of what was asked for, measured."""

    what: str
    reach: str
    measured: str
    reached: bool | None = None
    figures: Any = field(default_factory=dict)


COLUMNS = ("what", "reach", "measured", "")
_MARKS = {True: "reached", False: "missed", None: ""}

Records = dict[str, dict[str, Any]]


def record(load: float, **found: Any) -> dict[str, Any]:
    """Return a record of now; `load` is that of the machine."""
    return {"day": f"{machine.describe()}; {time.strftime('%Y-%m-%d')}", "load": load, **found}


def read(path: Path | None) -> Records:
    """Return the records of a file, none if there is no file; ValueError if it holds no results."""
    if path is None or not path.exists():
        return {}
    try:
        records: Records = json.loads(path.read_text())
        for each in records.values():
            f"{each['day']} {each['load']:.1f}"
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise ValueError(f"{path} is not a file that --json has written: {e!r}") from e
    return records


def keep(path: Path, new: Records) -> None:
    write_json(path, read(path) | new)


def write_json(path: Path, document: Any) -> None:
    """Write a file that is the old one or the new one at any moment, however this ends."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_text(json.dumps(document, indent=1, ensure_ascii=False, default=float) + "\n")
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def of(records: Records, kind: str) -> Records:
    """Return the records whose names begin with `kind`, by the rest of their names."""
    return {
        name.removeprefix(f"{kind}/"): each
        for name, each in records.items()
        if name.startswith(f"{kind}/")
    }


# --- in words


def tell(row: Row) -> None:
    """Print a row as soon as it is measured."""
    mark = _MARKS[row.reached].replace("missed", "MISSED")
    print(
        f"{row.what}\n    {row.measured}" + f"\n    {row.reach} {mark}" * bool(row.reach),
        flush=True,
    )


def short(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:.3g} M"
    return f"{number / 1e3:.3g} k" if number >= 1e4 else f"{number:,.0f}"


def days(records: Iterable[dict[str, Any]]) -> str:
    """Say when and where records were measured."""
    return "; ".join(sorted({each["day"] for each in records}))


def loads(records: Iterable[dict[str, Any]]) -> str:
    """Say how busy the machine was."""
    found = [each["load"] for each in records]
    return f"load {min(found):.1f} to {max(found):.1f}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return the rows of records as one table, with where they were measured above it."""
    rows = [Row(**row) for each in records for row in each["rows"]]
    cells = [[r.what, r.reach, r.measured, _MARKS[r.reached]] for r in rows]
    said = f"{days(records)}; {loads(records)} before each row."
    return f"{said}\n\n{markdown(COLUMNS, cells)}"


# --- pages


def around(page: Path, name: str) -> tuple[str, str]:
    """Return a page up to its mark `name: begin`, and from `name: end`, or raise ValueError."""
    text, begin, end = page.read_text(), f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{page} must have {begin} and behind it {end}, each once")
    return text.partition(begin)[0] + begin + "\n", end + text.partition(end)[2]


def fill(page: Path, name: str, table: str) -> None:
    """Put a table between the marks of a page; draw the plots if it is docs' own."""
    before, behind = around(page, name)
    page.write_text(before + table + behind)
    if page.resolve() == plots.PAGE:
        plots.draw(page, page.parent / "img")
