"""A token bucket that is filled step by step: what turns are to be, slow and obvious.

`Bucket` is the rule; `check_windows` says what it is for, without any bucket: in no window of time
did more come than the rate and the burst allow.
"""

from __future__ import annotations

from collections.abc import Sequence


class Bucket:
    """Tokens of one key, each worth `interval_ns`."""

    def __init__(self, interval_ns: int, burst: int, now_ns: int) -> None:
        self.interval_ns, self.burst, self.now_ns = interval_ns, burst, now_ns
        self.filled_ns = burst * interval_ns

    def advance(self, now_ns: int) -> None:
        """Fill it."""
        self.filled_ns += now_ns - self.now_ns
        self.filled_ns = min(self.filled_ns, self.burst * self.interval_ns)
        self.now_ns = now_ns

    @property
    def is_free(self) -> bool:
        """Whether it has a token."""
        return self.filled_ns >= self.interval_ns

    def take(self) -> None:
        """Take one."""
        assert self.is_free
        self.filled_ns -= self.interval_ns


def check_windows(times_ns: Sequence[int], interval_ns: int, burst: int) -> None:
    """Check that in each window at most its length times the rate came, and a burst."""
    for i, start_ns in enumerate(times_ns):
        for j in range(i, len(times_ns)):
            count, length_ns = j - i + 1, times_ns[j] - start_ns
            assert count <= burst + length_ns // interval_ns, (times_ns[i : j + 1], burst)
