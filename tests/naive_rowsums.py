"""Rows of numbers as lists: divided by part, added up by key; twin of `rowsums.py`."""

from collections import defaultdict

Row = tuple[int, ...]


def divided(rows: list[Row], parts: list[int], part_count: int) -> tuple[list[Row], list[int]]:
    """Return the rows part by part, and where each part ends."""
    made: list[Row] = []
    ends = []
    for part in range(part_count):
        made += [row for row, its in zip(rows, parts, strict=True) if its == part]
        ends.append(len(made))
    return made, ends


def summed(rows: list[Row], key_count: int) -> list[Row]:
    """Return a row for each key, sorted, with the sums of the columns behind it."""
    sums: dict[Row, list[int]] = defaultdict(lambda: [0] * (len(rows[0]) - key_count))
    for row in rows:
        its = sums[row[:key_count]]
        for column, value in enumerate(row[key_count:]):
            its[column] += value
    return [(*key, *sums[key]) for key in sorted(sums)]
