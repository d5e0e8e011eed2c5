"""Timer ids: 32 hex digits of due time, place of the first put, store.

    01A3185C6388 000000007C17 EF5F2ADA    due time in ms, commit log offset, store tag

An id alone leads to its timer, without any index, over rolls and restarts. If the message waits in
a delay level, the highest bit of the offset's 48 is set (LEVEL_MARK in
`timelog/bytes/format.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, overload

import numpy as np

from timerstore.jit.objects import Pieces, read_objects, rows_read
from timerstore.jit.record import Bytes
from timerstore.timelog.bytes.decode import read_ids, write_ids

ID_DIGITS = 32
_DIGITS: Final = re.compile(f"[0-9A-Fa-f]{{{ID_DIGITS}}}")
_AT_ONCE: Final = 4_096
Int64s = np.ndarray[Any, np.dtype[np.int64]]
Moments = np.ndarray[Any, np.dtype[np.datetime64]]


class TimerId(NamedTuple):
    """The parts of an id."""

    due_ms: int
    offset: int
    tag: int


def format_id(due_ms: int, offset: int, tag: int) -> str:
    """Return the id of a timer."""
    parts = due_ms << 80 | offset << 32 | tag  # three numbers as text take twice as long
    return parts.to_bytes(16, "big").hex().upper()


def parse_id(text: str) -> TimerId | None:
    """Return the parts of an id that has our form, digits in upper or lower case, or None."""
    # It takes less than `int` does: blanks, signs and underscores are no digits of an id.
    if not isinstance(text, str) or not _DIGITS.fullmatch(text):
        return None
    return TimerId(int(text[:12], 16), int(text[12:24], 16), int(text[24:], 16))


class TimerIds(Sequence[str]):
    """The ids of one `put_many`: a sequence that makes the strings only when asked.

    `due_ms` and `offsets` are int64 arrays of the same length, `due` a datetime64 array.

    >>> ids = store.put_many([b"a", b"b", b"c"], delay_ms=60_000)
    >>> len(ids), len(ids[0]), store.cancel_many(ids[1:]).tolist()
    (3, 32, [True, True])
    """

    __slots__ = {
        "_tag": None,
        "due_ms": "When each is due, epoch milliseconds.",
        "offsets": "Where each message begins in the commit log.",
    }

    def __init__(
        self,
        due_ms: np.ndarray[Any, np.dtype[np.int64]],
        offsets: np.ndarray[Any, np.dtype[np.int64]],
        tag: int,
    ) -> None:
        self.due_ms, self.offsets, self._tag = due_ms, offsets, tag

    def __len__(self) -> int:
        return len(self.due_ms)

    @property
    def due(self) -> Moments:
        """When each is due, in UTC: a datetime64 array. O(1), the same memory."""
        return self.due_ms.view("datetime64[ms]")

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> TimerIds: ...
    def __getitem__(self, index: int | slice) -> str | TimerIds:
        if isinstance(index, slice):
            return TimerIds(self.due_ms[index], self.offsets[index], self._tag)
        return format_id(int(self.due_ms[index]), int(self.offsets[index]), self._tag)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _AT_ONCE):
            text = self[start : start + _AT_ONCE].digits().tobytes().decode("ascii")
            for at in range(0, len(text), ID_DIGITS):
                yield text[at : at + ID_DIGITS]

    def __repr__(self) -> str:
        return f"<TimerIds: {len(self)}{', first ' + self[0] if len(self) else ''}>"

    def digits(self) -> Bytes:
        """Return the ids as uint8[n, 32]."""
        digits = np.empty(ID_DIGITS * len(self), np.uint8)
        due_ms, offsets = np.ascontiguousarray(self.due_ms), np.ascontiguousarray(self.offsets)
        write_ids(due_ms, offsets, self._tag, digits)
        digits.flags.writeable = False  # as those of a text, for which kernels are compiled
        return digits.reshape(len(self), ID_DIGITS)


def joined(many: Sequence[TimerIds]) -> TimerIds:
    """Return the ids of some calls as one sequence; they are of one store."""
    due_ms = np.concatenate([each.due_ms for each in many])
    return TimerIds(due_ms, np.concatenate([each.offsets for each in many]), many[0]._tag)


def read_plain(ids: Sequence[str], tag: int) -> tuple[Int64s, Int64s] | None:
    """Return due times and offsets of ids that are all one store's own, as it writes them.

    None if one is not. 25 ns each.
    """
    if isinstance(ids, TimerIds):
        if ids._tag != tag:
            return None
        return np.ascontiguousarray(ids.due_ms), np.ascontiguousarray(ids.offsets)
    kept = tuple(ids)
    read = read_objects(kept, str)
    return _read_joined(kept, tag) if read is None else _read_ids(read, tag)


def _read_joined(ids: Sequence[str], tag: int) -> tuple[Int64s, Int64s] | None:
    """Do the same with the ids as one text: if they cannot be read where they are."""
    if {*map(type, ids)} != {str} or {*map(len, ids)} != {ID_DIGITS}:
        return None
    text = "".join(ids)
    if not text.isascii():
        return None
    digits = np.frombuffer(text.encode(), np.uint8)  # kept while it is read
    return _read_ids(rows_read(digits.reshape(len(ids), ID_DIGITS)), tag)


def _read_ids(ids: Pieces, tag: int) -> tuple[Int64s, Int64s] | None:
    count = len(ids.length)
    due_ms, offsets = np.empty(count, np.int64), np.empty(count, np.int64)
    return (due_ms, offsets) if read_ids(ids, tag, due_ms, offsets) == count else None
