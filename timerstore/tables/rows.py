"""Rows of a table, of which columns are made as they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa

from timerstore.jit.record import Flags
from timerstore.tables import arrays
from timerstore.tables.bounds import Bounds
from timerstore.tables.schema import BINARY, BOOLEAN, MAP, STRING, TIMESTAMP, Column, find_table


class TableRows:
    """Rows that were read; `schema.py` says what of them each column is made of."""

    def __len__(self) -> int:
        raise NotImplementedError

    def filter(self, chosen: Any) -> Self:
        """Return those that are chosen: bool[n], or a slice."""
        raise NotImplementedError

    def only(self, chosen: Any) -> Self:
        """Return those that are chosen: bool[n]; these, if all are."""
        return self if chosen.all() else self.filter(chosen)

    def value(self, name: str) -> Any:
        """Return numbers or flags of the rows: [n]."""
        return getattr(self, name)

    def text(self, name: str, kind: str = STRING) -> Any:
        """Return texts of the rows, as Arrow has them."""
        raise NotImplementedError

    def properties(self, name: str) -> Any:
        """Return properties of the rows, as Arrow has them."""
        raise NotImplementedError

    def columns(self, columns: Sequence[Column]) -> list[Any]:
        """Return columns as Arrow has them."""
        return [self._column(each) for each in columns]

    def _column(self, column: Column) -> Any:
        kind, of = column.kind, column.of or column.name
        if kind in (STRING, BINARY):
            return self.text(of, kind)
        if kind == MAP:
            return self.properties(of)
        values = np.array(self.value(of))  # rows are overwritten
        if kind == BOOLEAN:
            return arrays.booleans(values != 0)
        valid = None if column.least is None else values >= column.least
        make = arrays.timestamps if kind == TIMESTAMP else arrays.numbers
        return make(values, kind, valid)

    def within(self, table: str, bounds: Bounds) -> Self:
        """Return the rows of a table that are within the bounds."""
        rows, find = self, find_table(table).find
        chosen: Flags | None = None
        for name, (low, high) in bounds.numbers.items():
            values = self.value(find(name).of or name)
            within = (values >= low) & (values <= high)
            chosen = within if chosen is None else chosen & within
        if chosen is not None:
            rows = rows.only(chosen)
        if "topic" in bounds.texts and len(rows):
            import pyarrow.compute as pc  # 30 ms of every first timer, else

            wanted = pa.array(sorted(bounds.texts["topic"]), pa.string())
            (topics,) = rows.columns([find("topic")])
            rows = rows.only(pc.is_in(topics, wanted).to_numpy(zero_copy_only=False))
        return rows
