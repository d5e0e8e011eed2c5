"""Counts of a topic's timers, said slowly: the twin of `timelog/writing/tally.py`."""

from dataclasses import dataclass, field

BUCKETS_MS = [1_024 * 8**ring for ring in range(8)]
NO_TIME = 1 << 62


def bucket_maxima(count: int) -> list[int]:
    """The largest value of each bucket of a histogram."""
    maxima = [0, 1, 2]
    while len(maxima) < count:
        maxima += [maxima[-1] * 3 // 2, maxima[-1] * 2]
    return maxima[:count]


MAXIMA = bucket_maxima(96)


def histogram(values: list[int]) -> dict[int, int]:
    """How many values stand in which bucket, by the bucket's largest."""
    found: dict[int, int] = {}
    for value in values:
        top = next((each for each in MAXIMA if value <= each), MAXIMA[-1])
        found[top] = found.get(top, 0) + 1
    return found


def bucket_of(due_ms: int, born_ms: int) -> tuple[int, int] | None:
    """Where the timer's bucket begins and ends; None where it is due too far ahead."""
    for length_ms in BUCKETS_MS:
        if (due_ms - born_ms) // length_ms < 448:
            start_ms = due_ms // length_ms * length_ms
            return start_ms, start_ms + length_ms
    return None


@dataclass
class NaiveTally:
    """One topic, its timers in lists."""

    pending: list[tuple[int, int, int]] = field(default_factory=list)  # due, born, bytes
    delays_ms: list[int] = field(default_factory=list)
    lateness_ms: list[int] = field(default_factory=list)
    cancelled_count: int = 0

    def put(self, timer: tuple[int, int, int], now_ms: int) -> None:
        self.pending.append(timer)
        self.delays_ms.append(max(0, timer[0] - now_ms))

    def fire(self, timer: tuple[int, int, int], now_ms: int) -> None:
        self.pending.remove(timer)
        self.lateness_ms.append(max(0, now_ms - timer[0]))

    def cancel(self, timer: tuple[int, int, int]) -> None:
        self.pending.remove(timer)
        self.cancelled_count += 1

    def within(self, now_ms: int, within_ms: int) -> tuple[int, int]:
        """The fewest and the most that may be said to fall due in [now, now + within)."""
        spans = [bucket_of(due, born) for due, born, _ in self.pending]
        stop_ms = now_ms + within_ms
        surely = sum(now_ms <= s[0] and s[1] <= stop_ms for s in spans if s is not None)
        perhaps = sum(s[1] > now_ms and s[0] < stop_ms for s in spans if s is not None)
        return surely, perhaps
