"""Tallies: what became of the messages that one group read of one topic.

Ground rules: `handled`, `failed`, `retried` and `dead` are changed under the lock of the group; who
reads them for statistics takes none, and may see one without the other. Responses are only noted,
without a lock; who wants to know of them counts them, under the tally's own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from timerstore.timelog.files.jsonfile import whole
from timerstore.timelog.jit.guards import Lock

RESPONSE_BOUNDS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000),
    *(60_000, 300_000, 900_000),
)
"""Upper ends of the buckets in which response times are counted; one more has what took longer.
900 s is how long a handler may take unless told otherwise."""
RATE_S: Final = 60
"""Rates are of the last so many seconds."""
COUNTERS: Final = ("handled", "failed", "retried", "dead")
"""What is kept over a restart, with when the group read."""
_NOTED_MAX: Final = 256
"""So many responses at most are not counted yet."""
READ_STEP_MS: Final = 3_600_000
"""That is kept to the hour, so that a group which only waits has no file written."""


@dataclass(frozen=True, slots=True)
class ResponseStats:
    """How long a group took for a topic's messages, since the store was opened.

    Of a consumer: its handlers, each call counted for each of its messages. Of `pull`: from there
    to the batch's `ack`. `bucket_counts`: how many took up to each of RESPONSE_BOUNDS_MS and longer
    than the one before, and how many longer than the last. Quantiles are estimated inside of
    these buckets.
    """

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    sum_ms: float
    bucket_counts: tuple[int, ...]


class GroupTally:
    """Counts for one group and one topic."""

    __slots__ = (
        *("_buckets", "_done", "_failed", "_lock", "_max_ms", "_noted", "_second_ms", "_seconds"),
        "_sum_ms",
        *("dead", "failed", "handled", "read_ms", "retried"),
    )

    def __init__(self) -> None:
        self.handled = self.failed = self.retried = self.dead = 0
        self.read_ms = 0
        """When the group asked for messages last, epoch ms; 0: not known."""
        self._buckets = [0] * (len(RESPONSE_BOUNDS_MS) + 1)
        self._sum_ms = self._max_ms = 0.0
        self._second_ms = 0.0
        self._done = self._failed = 0  # in this second
        self._seconds = [(-1, 0, 0)] * RATE_S  # the second, how many were done in it, or failed
        self._lock = Lock()
        self._noted: deque[tuple[float, float, int, int]] = deque()

    def respond(self, now_ms: float, elapsed_ms: float, done: int, failed: int = 0) -> None:
        """Note a call that took `elapsed_ms` until now, with what became of its messages."""
        self._noted.append((now_ms, elapsed_ms, done, failed))
        if len(self._noted) >= _NOTED_MAX:
            with self._lock.guard():
                self._count()

    def _count(self) -> None:
        """Count what was noted by now. Under the lock."""
        noted = self._noted
        for _ in range(len(noted)):
            now_ms, elapsed_ms, done, failed = noted.popleft()
            count = done + failed
            self._buckets[bisect_left(RESPONSE_BOUNDS_MS, elapsed_ms)] += count
            self._sum_ms += count * elapsed_ms
            if elapsed_ms > self._max_ms:
                self._max_ms = elapsed_ms
            if not self._second_ms <= now_ms < self._second_ms + 1000:
                self._put_away()
                self._second_ms = now_ms // 1000 * 1000
            self._done += done
            self._failed += failed

    def _put_away(self) -> None:
        """Add this second's counts to what is known of it."""
        second = int(self._second_ms) // 1000
        last, done, failed = self._seconds[second % RATE_S]
        if last != second:
            done = failed = 0
        self._seconds[second % RATE_S] = second, done + self._done, failed + self._failed
        self._done = self._failed = 0

    def per_s(self, now_ms: float) -> tuple[float, float]:
        """Return how many were done a second, and how many failed, over the last RATE_S."""
        with self._lock.guard():
            self._count()
            self._put_away()
            second = int(now_ms) // 1000
            recent = [each for each in self._seconds if second - RATE_S < each[0] <= second]
        return sum(each[1] for each in recent) / RATE_S, sum(each[2] for each in recent) / RATE_S

    def response(self) -> ResponseStats:
        """Return the response times."""
        with self._lock.guard():
            self._count()
            buckets, sum_ms, max_ms = tuple(self._buckets), self._sum_ms, self._max_ms
        return ResponseStats(
            sum(buckets),
            response_quantile_ms(buckets, 0.5, max_ms),
            response_quantile_ms(buckets, 0.99, max_ms),
            max_ms,
            sum_ms,
            buckets,
        )

    # --- over a restart

    def counters(self) -> dict[str, int]:
        """Return what is kept over a restart."""
        kept = {name: getattr(self, name) for name in COUNTERS}
        read_ms = self.read_ms // READ_STEP_MS * READ_STEP_MS
        return kept | ({"readMs": read_ms} if read_ms else {})

    def go_on_from(self, counters: dict[str, Any]) -> None:
        """Take what was kept; raises ValueError for what cannot have been."""
        for name in COUNTERS:
            setattr(self, name, whole(counters.get(name, 0)))
        self.read_ms = whole(counters.get("readMs", 0))


def response_quantile_ms(buckets: tuple[int, ...], share: float, max_ms: float) -> float:
    """Return a quantile, as if times were spread evenly in their bucket; `max_ms` at most.

    >>> response_quantile_ms((0, 4, *[0] * 16), 0.5, 9)  # four took 1 to 2 ms
    1.5
    """
    wanted, before = share * sum(buckets), 0
    if wanted == 0:
        return 0.0
    for i, count in enumerate(buckets):
        if count and before + count >= wanted:
            if i == len(RESPONSE_BOUNDS_MS):
                return max_ms
            low, high = RESPONSE_BOUNDS_MS[i - 1] if i else 0, RESPONSE_BOUNDS_MS[i]
            return min(max_ms, low + (high - low) * (wanted - before) / count)
        before += count
    return max_ms
