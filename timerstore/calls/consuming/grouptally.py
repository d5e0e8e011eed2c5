"""Tallies: what became of the messages that one group read of one topic.

Ground rules: `failed`, `retried`, `dead` and `expired` are changed under the lock of the group.
`handled` and response times are changed by kernels that keep the GIL, or in a client, which has
none, under the tally's own lock. Who reads for statistics takes none, and may see one without the
other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.guards import Lock
from timerstore.jit.kernel import caller_on, inlined, kernel_ahead_with_gil
from timerstore.jit.record import Words, record, record_at
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, sealed, understood, whole, write_json
from timerstore.timelog.writing.consumequeue import ConsumeQueues

RESPONSE_BOUNDS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000),
    *(60_000, 300_000, 900_000),
)
"""Upper ends of the buckets in which response times are counted; one more has what took longer.
900 s is how long a handler may take unless told otherwise."""
RATE_S: Final = 60
"""Rates are of the last so many seconds."""
COUNTERS: Final = ("handled", "failed", "retried", "dead", "expired")
"""What is kept over a restart, with when the group read, and whose turns are taken."""
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


@record
class Counts:
    """What a tally counts."""

    buckets: Words  # int64[n + 1]: see ResponseStats.bucket_counts
    bounds_us: Words  # int64[n]: RESPONSE_BOUNDS_MS
    seconds: Words  # int64[3 * RATE_S]: which second it was, how many were done in it, or failed
    handled: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    expired: int = 0
    read_ms: int = 0
    sum_us: int = 0
    max_us: int = 0


_counts_at = record_at(Counts)


def _count(counts: Counts, now_us: int, elapsed_us: int, done: int, failed: int) -> int:
    """Count a call that took `elapsed_us` until now, with what became of its messages. O(1)."""
    bounds_us, seconds, i = counts.bounds_us, counts.seconds, 0
    while i < len(bounds_us) and elapsed_us > bounds_us[i]:
        i += 1
    counts.buckets[i] += done + failed
    counts.sum_us += (done + failed) * elapsed_us
    counts.max_us = max(counts.max_us, elapsed_us)
    second = now_us // 1_000_000
    at = 3 * (second % RATE_S)
    if seconds[at] != second:
        seconds[at] = second
        seconds[at + 1] = seconds[at + 2] = 0
    seconds[at + 1] += done
    seconds[at + 2] += failed
    return 0


count_response = inlined(_count)


@kernel_ahead_with_gil
def _respond(address: int, now_us: int, elapsed_us: int, done: int, failed: int) -> int:
    return count_response(_counts_at(address), now_us, elapsed_us, done, failed)


class GroupTally:
    """Counts for one group and one topic."""

    def __init__(self) -> None:
        bounds_us = 1_000 * np.array(RESPONSE_BOUNDS_MS, np.int64)
        seconds = np.full(3 * RATE_S, -1, np.int64)
        self.counts = Counts(np.zeros(len(bounds_us) + 1, np.int64), bounds_us, seconds)
        self.full_ns: dict[str, int] = {}
        """By key, when it has its whole burst of turns again, epoch ns (`turns.py`)."""
        self._lock = Lock()
        self._respond: Callable[..., int] | None = None

    def count_by_kernel(self) -> None:
        """Count by a kernel from now on: the store is open, so it is at hand."""
        self._respond = caller_on(_respond, self.counts)

    def respond(self, now_ms: float, elapsed_ms: float, done: int, failed: int = 0) -> None:
        """Note a call that took `elapsed_ms` until now, with what became of its messages."""
        given = round(now_ms * 1000), round(elapsed_ms * 1000), done, failed
        if self._respond is not None:
            self._respond(*given)
            return
        with self._lock.guard():
            _count(self.counts, *given)

    def per_s(self, now_ms: float) -> tuple[float, float]:
        """Return how many were done a second, and how many failed, over the last RATE_S."""
        second, seconds = int(now_ms) // 1000, self.counts.seconds.reshape(RATE_S, 3)
        recent = seconds[(second - RATE_S < seconds[:, 0]) & (seconds[:, 0] <= second)]
        return float(recent[:, 1].sum()) / RATE_S, float(recent[:, 2].sum()) / RATE_S

    def response(self) -> ResponseStats:
        """Return the response times."""
        counts = self.counts
        buckets, max_ms = tuple(counts.buckets.tolist()), counts.max_us / 1000
        return ResponseStats(
            sum(buckets),
            response_quantile_ms(buckets, 0.5, max_ms),
            response_quantile_ms(buckets, 0.99, max_ms),
            max_ms,
            counts.sum_us / 1000,
            buckets,
        )

    # --- over a restart

    def counters(self, now_ms: int) -> dict[str, Any]:
        """Return what is kept over a restart: of turns, those that are not free again."""
        kept: dict[str, Any] = {name: getattr(self.counts, name) for name in COUNTERS}
        read_ms = self.counts.read_ms // READ_STEP_MS * READ_STEP_MS
        full_ns = self.full_ns.copy()  # others change it meanwhile
        turns = {key: each for key, each in full_ns.items() if each > 1_000_000 * now_ms}
        return kept | ({"readMs": read_ms} if read_ms else {}) | ({"turns": turns} if turns else {})

    def go_on_from(self, counters: dict[str, Any]) -> None:
        """Take what was kept; raises ValueError for what cannot have been."""
        for name in COUNTERS:
            setattr(self.counts, name, whole(counters.get(name, 0)))
        self.counts.read_ms = whole(counters.get("readMs", 0))
        turns = counters.get("turns", {}).items()
        self.full_ns = {key: whole(full_ns) for key, full_ns in turns}


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


# --- that, over a restart
#
# A file of ours, which a broker leaves alone. It is written with a checkpoint, at most every few
# seconds: after a crash its counters lack what came since. They are for people, nothing is decided
# by them; so a file that is damaged is begun anew.
#
# Beside them stand the dead letters that were put back one by one, behind others that stay: an
# index that is committed cannot say that. They are written at once. If the file is lost, these
# letters are there again.
#
# And what an ordered consumer holds back, with how often it failed; that is written with the
# counters. If it is lost, a message may fail more often before it is given up.


log = logging.getLogger("timerstore")

TALLY_FILE: Final = "timerstoreGroups.json"
WRITE_EVERY_S: Final = 5.0
"""A file more to fsync in each checkpoint would be felt by those who wait for theirs."""
_NAME_END: Final = "@"

Tallies = dict[tuple[str, str], GroupTally]
HeldBack = dict[tuple[int, int], tuple[int, int, int, int]]
"""By queue id and index: how often a message failed, when first, when it is to come again, and how
long that was to take: a clock that was set back holds it no longer than that."""
AllHeldBack = dict[tuple[str, str], HeldBack]


class TallyFile:
    """The file of one store; several threads may flush at once."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk, self._path = disk, path
        self._written: dict[str, Any] = {}
        self._written_s = time.monotonic()
        self._lock = Lock()

    def read(self) -> tuple[Tallies, AllHeldBack]:
        """Return what was kept, by (topic, group); nothing if the file is damaged."""
        try:
            tallies, held = read_tallies(self._path, self._disk)
        except CorruptStoreError as e:
            log.warning("%s: %s; the counters of groups start at 0 again", self._path, e.reason)
            return {}, {}
        self._written = _content(tallies, held, 0)
        return tallies, held

    @property
    def is_due(self) -> bool:
        """Whether some time has passed since it was written."""
        return time.monotonic() - self._written_s >= WRITE_EVERY_S

    def write(self, tallies: Tallies, held: AllHeldBack, now_ms: int) -> None:
        """Write the file if anything changed; durable on return."""
        with self._lock.guard():
            self._written_s = time.monotonic()
            content = _content(tallies, held, now_ms)
            if content != self._written:
                write_json(self._disk, self._path, sealed(content))
                self._written = content


def read_tallies(path: Path, disk: Disk) -> tuple[Tallies, AllHeldBack]:
    """Read the file; CorruptStoreError if it is damaged."""
    content = read_json(path, disk.read) or {}
    tallies: Tallies = {}
    held: AllHeldBack = {}
    with understood(path.name):
        for name, counters in content.get("groups", {}).items():
            tally = tallies[_pair(name)] = GroupTally()
            tally.go_on_from(counters)
        for name, rows in content.get("heldBack", {}).items():
            held[_pair(name)] = dict(_held_back([whole(each) for each in row]) for row in rows)
    return tallies, held


def cut_held(held: AllHeldBack, queues: ConsumeQueues) -> bool:
    """Forget what lies behind the end of its queue; tell whether anything did.

    A power cut may have taken entries: what comes in their place is another message.
    """
    cut = False
    for (topic, _), places in held.items():
        rows = queues.rows(topic.encode("utf-8", "surrogateescape"))
        ends = {int(queues.table.queue_id[row]): queues.next_index(row) for row in rows}
        gone = [(queue_id, i) for queue_id, i in places if i >= ends.get(queue_id, 0)]
        cut |= bool(gone)
        for place in gone:
            del places[place]
    return cut


def _pair(name: str) -> tuple[str, str]:
    topic, _, group = name.rpartition(_NAME_END)
    return topic, group


def _held_back(row: list[int]) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    queue_id, index, count, first_ms, again_ms, wait_ms = row
    return (queue_id, index), (count, first_ms, again_ms, wait_ms)


def _content(tallies: Tallies, held: AllHeldBack, now_ms: int) -> dict[str, Any]:
    """Return what the file says; nothing if nothing was ever done."""
    counted = {
        _NAME_END.join(pair): each.counters(now_ms) for pair, each in sorted(tallies.items())
    }
    content = {
        "groups": {name: counters for name, counters in counted.items() if any(counters.values())},
        "heldBack": {
            _NAME_END.join(pair): [[*place, *each] for place, each in sorted(places.items())]
            for pair, places in sorted(held.items())
            if places
        },
    }
    return {name: entries for name, entries in content.items() if entries}
