"""Converts between tables of columns, as kernels take them, with lists of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from timerstore.jit.record import Table

T = TypeVar("T", bound=Table)


def rows_in(table: Table) -> list[tuple[int, ...]]:
    """Each row of a table, as a tuple in the order of its columns."""
    columns = (getattr(table, name).tolist() for name in table.columns())
    return list(zip(*columns, strict=True))


def table_from(kind: type[T], rows: Sequence[Any]) -> T:
    """A table of these rows: tuples in the order of its columns, or the values of some by name."""
    made = kind.room(len(rows))
    for i, row in enumerate(rows):
        named = row if isinstance(row, dict) else dict(zip(kind.columns(), row, strict=True))
        for name, value in named.items():
            getattr(made, name)[i] = value
    return made


def joined(tables: Sequence[T]) -> T:
    """The rows of some tables, one behind the other."""
    columns = (np.concatenate([getattr(t, name) for t in tables]) for name in tables[0].columns())
    return type(tables[0])(*columns)
