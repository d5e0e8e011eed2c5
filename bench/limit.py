"""How near whole lives come to a plain program that appends as many bytes with as many syncs.

Which of two things limits a rate wanders with the machine: the disk, or the processors. So both are
told beside that program: bytes a second, and the processor time of all threads for a timer.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
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

    @property
    def share(self) -> float:
        return self.lives_per_second * self.bytes_each / self.disk_bytes_per_second


class Limited:
    """Plays rounds, each followed by a plain program that appends as many bytes to a file."""

    def __init__(
        self, path: Path, play: Callable[[TimerStore, list[bytes]], ours.Rate], durability: str
    ) -> None:
        self._path, self._play, self._durability = path, play, durability
        self.rounds = list[Beside]()

    def play(self, store: TimerStore, bodies: list[bytes]) -> ours.Rate:
        before, begun_s = store.stats().sync_count, bare.cpu_s()
        rate = self._play(store, bodies)
        cpu_ns = (bare.cpu_s() - begun_s) * 1e9 / len(bodies)
        syncs = store.stats().sync_count - before if self._durability == "group" else None
        plain = bare.append(self._path, round(rate.bytes_each * len(bodies)), syncs)
        plain_ns = plain.cpu_ns * rate.bytes_each
        each = Beside(rate.per_second, rate.bytes_each, plain.per_second, cpu_ns, plain_ns)
        self.rounds.append(each)
        return rate

    def told(self) -> tuple[str, dict[str, Any]]:
        """Say how near to the disk's rate it was; the first round is left out."""
        return told(self.rounds[1:])


def told(rounds: list[Beside]) -> tuple[str, dict[str, Any]]:
    """Say how near to the disk's rate rounds came, by medians."""
    names = ("share", "disk_bytes_per_second", "cpu_ns", "plain_cpu_ns")
    of = {name: statistics.median(getattr(each, name) for each in rounds) for name in names}
    words = f"; {of['share']:.2f} × the disk's rate; {of['cpu_ns']:,.0f} ns of processor time each"
    words += f", beside {of['plain_cpu_ns']:,.0f} for a plain write"
    return words, of
