"""Export to a file that appears under its name once it is whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from timerstore.errors import InvalidArgumentError
from timerstore.offline.export import Format, export
from timerstore.tables.exported import Table

ENDINGS: Final[dict[str, Format]] = {
    ".jsonl": "jsonl",
    ".arrow": "arrow",
    ".parquet": "parquet",
}


def format_of(target: Path) -> Format:
    """Return the format that a file's ending names; JSON for standard output."""
    if str(target) == "-":
        return "jsonl"
    if target.suffix not in ENDINGS:
        raise InvalidArgumentError(
            f"{target} ends in none of {', '.join(ENDINGS)}. Rename it, or pass --format."
        )
    return ENDINGS[target.suffix]


def export_to(path: Path, table: Table, target: Path, form: Format) -> int:
    """Write a table of the store at `path`; return how many rows."""
    if str(target) == "-":
        return export(path, table, sys.stdout.buffer, form)
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as file:
            count = export(path, table, file, form)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return count
