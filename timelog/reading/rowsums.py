"""Rows of numbers, added up by their first columns."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import Rows, Words

_MASK: Final = 0x7FFFFFFF
_MIX: Final = 2_654_435_769


def summed(rows: Words, key_count: int) -> Words:
    """Add up the rows that agree in their first columns; sorted by these.

    O(n) expected, and O(m log m) for the m rows that are left.
    """
    if len(rows) < 2:
        return rows
    lookup = np.full(1 << (2 * len(rows)).bit_length(), -1, np.int64)
    made = np.empty(rows.shape, np.int64)
    made = made[: _sum(np.ascontiguousarray(rows), key_count, lookup, made)]
    return made[np.lexsort(made[:, :key_count].T[::-1])]


@kernel_later
def _sum(rows: Rows, key_count: int, lookup: Words, made: Rows) -> int:
    """Add each row to that with its key; return how many there are.

    `lookup`: int64, a power of two that is more than the rows, filled with −1.
    """
    count = 0
    for i in range(len(rows)):
        mixed = 0
        for column in range(key_count):
            value = rows[i, column]
            mixed = ((mixed ^ value ^ (value >> 31)) & _MASK) * _MIX >> 16
        place = mixed & (len(lookup) - 1)
        while True:
            to = lookup[place]
            if to < 0:
                lookup[place] = count
                for column in range(rows.shape[1]):
                    made[count, column] = rows[i, column]
                count += 1
                break
            same = True
            for column in range(key_count):
                if made[to, column] != rows[i, column]:
                    same = False
                    break
            if same:
                for column in range(key_count, rows.shape[1]):
                    made[to, column] += rows[i, column]
                break
            place = (place + 1) & (len(lookup) - 1)
    return count
