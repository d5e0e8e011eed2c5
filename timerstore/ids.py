"""Timer ids: 32 hex digits of due time, place of the first put, store.

    01A3185C6388 000000007C17 EF5F2ADA    due time in ms, commit log offset, store tag

An id alone leads to its timer, without any index, over rolls and restarts. Where the message waits
in a delay level the highest bit of the offset's 48 is set (LEVEL_MARK in `timelog/format.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from timerstore.timelog.record import Bytes

ID_DIGITS = 32


class TimerId(NamedTuple):
    """The parts of an id."""

    due_ms: int
    offset: int
    tag: int


def format_id(due_ms: int, offset: int, tag: int) -> str:
    """Return the id of a timer."""
    return f"{due_ms:012X}{offset:012X}{tag:08X}"


def parse_id(text: str) -> TimerId | None:
    """Return the parts of an id that has our form, or None."""
    if not isinstance(text, str) or len(text) != ID_DIGITS or not text.isascii():
        return None
    try:
        return TimerId(int(text[:12], 16), int(text[12:24], 16), int(text[24:], 16))
    except ValueError:
        return None


class TimerIds(Sequence[str]):
    """The ids of one `put_many`: a sequence that makes the strings only when asked.

    `due_ms` and `offsets` are int64 arrays of the same length.
    """

    __slots__ = ("_tag", "due_ms", "offsets")

    def __init__(
        self,
        due_ms: np.ndarray[Any, np.dtype[np.int64]],
        offsets: np.ndarray[Any, np.dtype[np.int64]],
        tag: int,
    ) -> None:
        """Hold on to the arrays."""
        self.due_ms, self.offsets, self._tag = due_ms, offsets, tag

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.due_ms)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> TimerIds: ...
    def __getitem__(self, index: int | slice) -> str | TimerIds:
        """Return one id, or a part of them."""
        if isinstance(index, slice):
            return TimerIds(self.due_ms[index], self.offsets[index], self._tag)
        return format_id(int(self.due_ms[index]), int(self.offsets[index]), self._tag)

    def __iter__(self) -> Iterator[str]:
        """Yield each id."""
        tag = f"{self._tag:08X}"
        for due_ms, offset in zip(self.due_ms.tolist(), self.offsets.tolist(), strict=True):
            yield f"{due_ms:012X}{offset:012X}{tag}"

    def __repr__(self) -> str:
        """Show the count and the first id."""
        return f"<TimerIds: {len(self)}{', first ' + self[0] if len(self) else ''}>"

    def digits(self) -> Bytes:
        """Return the ids as uint8[n, 32]."""
        return np.frombuffer("".join(self).encode(), np.uint8).reshape(len(self), ID_DIGITS)
