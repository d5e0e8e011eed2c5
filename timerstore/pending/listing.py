"""Listing pending timers: all in order, or how many fall due when."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from timerstore.core.core import Core
from timerstore.ground.amounts import exact_span
from timerstore.ground.arguments import DUE_MS_MAX, check_due_ms
from timerstore.ground.ids import Int64s, Moments
from timerstore.ground.kinds import check_int, check_name
from timerstore.pending.found import Found, find_pending
from timerstore.pending.timers import Timer, decode_timers
from timerstore.services.engine.holds import LapsedError, lapsed_often

_AT_ONCE: Final = 256
"""Timers that are decoded together."""
_TRIES: Final = 8
"""So often a listing is captured, of which nothing could be decoded."""

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Horizon:
    """How many timers fall due when.

    `start_ms`: int64[n], the beginning of each bucket that holds any; `count`: int64[n].
    """

    start_ms: Int64s
    count: Int64s
    bucket_ms: int

    @property
    def start(self) -> Moments:
        """The beginning of each bucket in UTC: datetime64[ms][n]."""
        return self.start_ms.view("datetime64[ms]")

    def plot(self, ax: Any = None) -> Any:
        """Draw the counts over time with matplotlib; return the axes."""
        import matplotlib.pyplot as plt

        axes = plt.gca() if ax is None else ax
        times = self.start_ms.astype("datetime64[ms]")
        axes.bar(times, self.count, width=np.timedelta64(self.bucket_ms, "ms"), align="edge")
        axes.set_xlabel("due (UTC)")
        axes.set_ylabel(f"timers in {exact_span(self.bucket_ms)}")
        return axes

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{np.datetime64(start, 'ms')}</td><td>{count}</td></tr>"
            for start, count in zip(self.start_ms[:50].tolist(), self.count[:50], strict=True)
        )
        more = f"<p>… {len(self.count) - 50} more buckets</p>" if len(self.count) > 50 else ""
        return f"<table><tr><th>due (UTC)</th><th>timers</th></tr>{rows}</table>{more}"


def list_pending(
    core: Core,
    topic: str | None,
    start_ms: int | None,
    end_ms: int | None,
    limit: int | None,
) -> Iterator[Timer]:
    """Yield pending timers in order; see `TimerStore.pending`."""
    check_range(topic, start_ms, end_ms, limit)
    return _pending(core, topic, start_ms, end_ms, limit)


def check_range(
    topic: str | None, start_ms: int | None, end_ms: int | None, limit: int | None
) -> None:
    """Check what says which timers are listed."""
    if start_ms is not None:
        check_due_ms(start_ms, "start_ms")
    if end_ms is not None:
        check_due_ms(end_ms, "end_ms", DUE_MS_MAX + 1)  # what datetime.max is, rounded up
    if limit is not None:
        check_int(limit, "limit", 0, sys.maxsize)
    if topic is not None:
        check_name(topic)


def _pending(
    core: Core,
    topic: str | None,
    start_ms: int | None,
    end_ms: int | None,
    limit: int | None,
) -> Iterator[Timer]:
    core.check_process()
    listed, tries = _Listed(), 0
    while tries < _TRIES:
        tries += 1
        found = find_pending(core)
        keep = listed.behind(found)
        if topic is not None:
            keep &= np.isin(found.row, core.engine.queues.rows(check_name(topic)))
        if start_ms is not None:
            keep &= found.due_ms >= start_ms
        if end_ms is not None:
            keep &= found.due_ms < end_ms
        order = np.flatnonzero(keep)
        order = order[np.lexsort((found.message[order], found.due_ms[order]))]
        if limit is not None:
            order = order[: limit - listed.count]
        for at in range(0, len(order), _AT_ONCE):
            part = order[at : at + _AT_ONCE]
            try:
                with core.gate.guard():
                    core.check_open()
                    given = found.message[part], found.due_ms[part], found.hold
                    timers = decode_timers(core, *given)
            except LapsedError:
                break  # what is left is captured again
            tries = 0
            found.hold.rest()
            for timer in timers:
                core.check_process()
                if core.closed:
                    core.check_open()
                yield timer
            listed.note(found, part)
        else:
            return
    raise lapsed_often()


class _Listed:
    """How far a listing has come: up to a due time, and through some of the timers due then.

    That holds for another instant as well, where copies of these timers lie elsewhere in the log.
    """

    def __init__(self) -> None:
        self.count, self._due_ms = 0, -1
        self._same = set[tuple[int, int]]()  # who is due then, and was listed

    def note(self, found: Found, part: Int64s) -> None:
        """Go on behind some timers, which are in order."""
        due_ms = found.due_ms[part]
        if due_ms[-1] > self._due_ms:
            self._due_ms = int(due_ms[-1])
            self._same.clear()
        last = part[due_ms == self._due_ms]
        self._same.update(zip(found.high[last].tolist(), found.low[last].tolist(), strict=True))
        self.count += len(part)

    def behind(self, found: Found) -> Bools:
        """Tell which timers were not listed yet: bool[n]."""
        keep: Bools = found.due_ms >= self._due_ms
        for i in np.flatnonzero(found.due_ms == self._due_ms).tolist():
            keep[i] = (int(found.high[i]), int(found.low[i])) not in self._same
        return keep


def count_by_bucket(
    core: Core, bucket_ms: int, start_ms: int | None, end_ms: int | None
) -> Horizon:
    """Count pending timers by bucket; see `TimerStore.horizon`."""
    check_int(bucket_ms, "bucket_ms", 1, DUE_MS_MAX)
    for name, value in (("start_ms", start_ms), ("end_ms", end_ms)):
        if value is not None:
            check_int(value, name, -DUE_MS_MAX, 2 * DUE_MS_MAX)
    due_ms = find_pending(core).due_ms
    if start_ms is not None:
        due_ms = due_ms[due_ms >= start_ms]
    if end_ms is not None:
        due_ms = due_ms[due_ms < end_ms]
    buckets, counts = np.unique(due_ms // bucket_ms, return_counts=True)
    return Horizon(buckets * bucket_ms, counts.astype(np.int64), bucket_ms)
