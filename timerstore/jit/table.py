"""Tables: records whose fields are columns of one length.

    @record
    class Units(Table):
        offset: Words
        message: Words

    units = Units.room(1000)
    count = read(units)            # the kernel writes units.offset[i], units.message[i]
    late = units[:count]           # a table again: its columns are views
    late[late.offset > 7].message  # and here copies

A table that extends another has its columns first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

_APART_WORDS: Final = 72
"""Columns of a power of two would share the few places that a cache has for such addresses."""


class Table:
    """What tables of columns have in common."""

    @classmethod
    def room(cls, count: int) -> Self:
        """Return a table of zeros, to which kernels write; one piece of memory."""
        names: list[str] = cls.columns()
        memory = np.zeros((len(names), count + _APART_WORDS), np.int64)
        return cls(*(row[:count] for row in memory))

    @classmethod
    def columns(cls) -> list[str]:
        """Return the names of the columns, in order."""
        kind: Any = cls
        return list(kind.layout.places)

    def __len__(self) -> int:
        count: int = len(getattr(self, self.columns()[0]))
        return count

    def __getitem__(self, which: Any) -> Self:
        """Return some rows: of a slice as views, of bool[n] or indexes as copies. O(columns).

        Of an index one row, whose columns are numbers.
        """
        made = object.__new__(type(self))
        for name in self.columns():
            setattr(made, name, getattr(self, name)[which])
        return made

    def __setitem__(self, which: Any, rows: Self) -> None:
        """Replace some rows. O(columns + rows)."""
        for name in self.columns():
            getattr(self, name)[which] = getattr(rows, name)

    def __iter__(self) -> Iterator[Self]:
        """Yield each row, whose columns are numbers: for the few that are looked at one by one."""
        for i in range(len(self)):
            yield self[i]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Make what kernels receive when one does: most tables of some rows are Python's."""
            if name != "block_address":
                raise AttributeError(f"{type(self).__name__} has no {name}")
            if "whole" not in self.__dict__:
                columns = [getattr(self, each) for each in self.columns()]
                self.__dict__.setdefault("whole", type(self)(*columns))
            return self.whole.block_address
