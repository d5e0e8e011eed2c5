"""Rows of numbers as lists, added up by key; twin of `rowsums.py`."""

from collections import defaultdict

Row = tuple[int, ...]


def summed(rows: list[Row], key_count: int) -> list[Row]:
    """Return a row for each key, sorted, with the sums of the columns behind it."""
    sums: dict[Row, list[int]] = defaultdict(lambda: [0] * (len(rows[0]) - key_count))
    for row in rows:
        its = sums[row[:key_count]]
        for column, value in enumerate(row[key_count:]):
            its[column] += value
    return [(*key, *sums[key]) for key in sorted(sums)]
