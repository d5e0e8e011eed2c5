"""How near whole lives come to a plain program that appends as many bytes with as many syncs.

Which of two things limits a rate wanders with the machine: the disk, or the processors. So both are
told beside that program: bytes a second, and the processor time of all threads for a timer.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import bare
import ours

from timerstore import TimerStore


@dataclass(frozen=True)
class Beside:
    """One round of ours, and what the disk did just after it."""

    lives_per_second: float
    bytes_each: float
    disk_bytes_per_second: float
    cpu_ns: float
    """Processor time of all threads for a timer, user and system, all flushed."""
    plain_cpu_ns: float
    """The same of the plain program, for as many bytes as a timer takes."""
    load: float
    """Of the machine, over the last minute."""

    @property
    def share(self) -> float:
        """Which part of the disk's rate it is."""
        return self.lives_per_second * self.bytes_each / self.disk_bytes_per_second


class Limited:
    """Plays rounds, each followed by a plain program that appends as many bytes."""

    def __init__(
        self, path: Path, play: Callable[[TimerStore, list[bytes]], ours.Rate], durability: str
    ) -> None:
        """Append to files beside `path`, with as many syncs as a store of this durability."""
        self._path, self._play, self._durability = path, play, durability
        self._numbers, self._rounds = count(), list[Beside]()

    def play(self, store: TimerStore, bodies: list[bytes]) -> ours.Rate:
        """Play a round; return its rate."""
        before, begun = store.stats().sync_count, bare.cpu_s()
        rate = self._play(store, bodies)
        cpu_ns = (bare.cpu_s() - begun) * 1e9 / len(bodies)
        syncs = store.stats().sync_count - before if self._durability == "group" else None
        path = self._path.with_name(f"{self._path.name}-{next(self._numbers)}")
        plain = bare.append(path, round(rate.bytes_each * len(bodies)), syncs)
        self._rounds.append(
            Beside(
                *(rate.per_second, rate.bytes_each, plain.per_second),
                *(cpu_ns, plain.cpu_ns * rate.bytes_each, os.getloadavg()[0]),
            )
        )
        return rate

    def figures(self) -> dict[str, Any]:
        """Return the medians with the range of the share; the first round is left out."""
        return figures(self._rounds[1:])


def figures(rounds: list[Beside]) -> dict[str, Any]:
    """Return medians of rounds, with the range of the share."""
    shares = [each.share for each in rounds]
    return {
        "share": statistics.median(shares),
        "least_share": min(shares),
        "most_share": max(shares),
        "disk_bytes_per_second": statistics.median(each.disk_bytes_per_second for each in rounds),
        "cpu_ns": statistics.median(each.cpu_ns for each in rounds),
        "plain_cpu_ns": statistics.median(each.plain_cpu_ns for each in rounds),
        "load": max(each.load for each in rounds),
    }


def words(figures: dict[str, Any] | None) -> str:
    """Say how near to the disk's rate it is, or nothing if that was not measured."""
    if figures is None:
        return ""
    return (
        f"; {figures['share']:.2f} × the disk's rate; {figures['cpu_ns']:,.0f} ns of "
        f"processor time each, beside {figures['plain_cpu_ns']:,.0f} for a plain write"
    )
