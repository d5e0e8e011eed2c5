"""The demonstration's ledger: what its child was told, written so that a kill cannot undo it.

A record is a run of int64: kind, count, then `count` due times (of a put) or none, then `count`
commit log offsets, which tell timers apart. It is written after the call returned; of a cancel
also before, since one that a kill cut short may have worked or not. A record that the kill tore is
not read: the program would not have known either.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.ground.ids import ID_DIGITS, Int64s

PUT: Final = 1
CANCEL_ASKED: Final = 2
CANCELLED: Final = 3  # the answer was True
CANCEL_REFUSED: Final = 4  # the answer was False
_NONE = np.zeros(0, np.int64)


class LedgerWriter:
    """Appends records; each is in the page cache on return, which survives a SIGKILL."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def write(self, kind: int, offsets: Int64s, due_ms: Int64s = _NONE) -> None:
        """Append one record."""
        head = np.array([kind, len(offsets)], np.int64)
        record = np.concatenate([head, due_ms, offsets]).tobytes()
        while record:
            record = record[self._file.write(record) :]


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the child was told; all arrays are int64, `put_due_ms` runs beside `put`."""

    put: Int64s
    put_due_ms: Int64s
    asked: Int64s
    cancelled: Int64s
    refused: Int64s

    @property
    def expected(self) -> Int64s:
        """Timers that must fire: acknowledged, and no cancel of them worked or was cut short."""
        may_not = np.setdiff1d(self.asked, self.refused)
        return np.setdiff1d(self.put, may_not)


def read_ledger(path: Path) -> Ledger:
    """Read the whole records of a ledger."""
    words = np.frombuffer(path.read_bytes()[: path.stat().st_size // 8 * 8], np.int64)
    parts: dict[int, list[Int64s]] = {kind: [_NONE] for kind in range(5)}
    at = 0
    while at + 2 <= len(words):
        kind, count = int(words[at]), int(words[at + 1])
        stop = at + 2 + count * (2 if kind == PUT else 1)
        if stop > len(words):
            break
        if kind == PUT:
            parts[0].append(words[at + 2 : at + 2 + count])
        parts[kind].append(words[stop - count : stop])
        at = stop
    due_ms, put, asked, cancelled, refused = (np.concatenate(parts[kind]) for kind in range(5))
    return Ledger(put, due_ms, asked, cancelled, refused)


def ledger_bytes(path: Path) -> int:
    """Return how much was written so far; 0 before the file is there."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def offsets_of_ids(ids: Any) -> Int64s:
    """Return the commit log offsets that stand in an Arrow array of ids, 12 hex digits each."""
    text = "".join(ids.to_pylist()).encode()
    digits = np.frombuffer(text, np.uint8).reshape(len(ids), ID_DIGITS)[:, 12:24].astype(np.int64)
    values = np.where(digits >= ord("A"), digits - ord("A") + 10, digits - ord("0"))
    weights = 16 ** np.arange(11, -1, -1, dtype=np.int64)
    return values @ weights


@dataclass(frozen=True, slots=True)
class Fired:
    """Every timer that is in the log as fired; int64 arrays of one length."""

    offsets: Int64s
    due_ms: Int64s
    fired_ms: Int64s


@dataclass(frozen=True, slots=True)
class Judgement:
    """How what was fired compares with what was promised; the first five must be 0."""

    lost_count: int
    twice_count: int
    early_count: int
    cancelled_but_fired_count: int
    wrong_due_count: int
    expected_count: int
    fired_count: int
    unacknowledged_count: int

    @property
    def ok(self) -> bool:
        """Tell whether every promise was kept."""
        broken = self.lost_count + self.twice_count + self.early_count
        return broken + self.cancelled_but_fired_count + self.wrong_due_count == 0


def judge(ledger: Ledger, fired: Fired) -> Judgement:
    """Compare; what the kill cut short may be in the log or not, and is only counted."""
    unique, first = np.unique(fired.offsets, return_index=True)
    _, in_put, in_fired = np.intersect1d(ledger.put, unique, return_indices=True)
    wrong_due = ledger.put_due_ms[in_put] != fired.due_ms[first][in_fired]
    return Judgement(
        lost_count=len(np.setdiff1d(ledger.expected, unique)),
        twice_count=len(fired.offsets) - len(unique),
        early_count=int((fired.fired_ms < fired.due_ms).sum()),
        cancelled_but_fired_count=len(np.intersect1d(ledger.cancelled, unique)),
        wrong_due_count=int(wrong_due.sum()),
        expected_count=len(ledger.expected),
        fired_count=len(fired.offsets),
        unacknowledged_count=len(np.setdiff1d(unique, ledger.put)),
    )


@dataclass(frozen=True, slots=True)
class Lateness:
    """Quantiles of `fired_ms - due_ms` over some timers."""

    count: int
    p50_ms: int
    p99_ms: int
    max_ms: int


def lateness(late_ms: Int64s) -> Lateness:
    """Return the quantiles: the smallest value that at least that share does not exceed."""
    if len(late_ms) == 0:
        return Lateness(0, 0, 0, 0)
    p50, p99 = np.quantile(late_ms, [0.5, 0.99], method="inverted_cdf").tolist()
    return Lateness(len(late_ms), int(p50), int(p99), int(late_ms.max()))
