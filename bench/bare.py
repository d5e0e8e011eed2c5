"""What the disk alone allows: small writes that each wait for it, or large ones with few syncs.

Which of two things limits the rate of whole lives wanders with the machine: the disk, or the
processors. So both are told beside a plain program that appends as many bytes with as many syncs:
bytes a second, and the processor time of all threads for a timer.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ours

from timerstore import TimerStore

MESSAGE_BYTES = 329
"""What a put of `ours.BODY_BYTES` appends to the commit log."""
_FILE_BYTES = 64 << 20
_MESSAGE = b"x" * MESSAGE_BYTES
CHUNK_BYTES = 1 << 20
SYNC_S = 0.5
"""As often as a store with `durability="process"` syncs its files."""
LEAST_BYTES = 1 << 30
SYNCS_LEAST = 2


class BareFile:
    """A file that was written with zeros, and fsynced, before anything is measured."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        zeros = bytes(1 << 20)
        for _ in range(_FILE_BYTES >> 20):
            os.write(self._fd, zeros)
        os.fsync(self._fd)
        self._end = 0

    def append(self, *, synced: bool = True) -> None:
        """Append once; `synced`: durable on return."""
        if self._end + MESSAGE_BYTES > _FILE_BYTES:
            self._end = 0
        os.pwrite(self._fd, _MESSAGE, self._end)
        if synced:
            os.fdatasync(self._fd)
        self._end += MESSAGE_BYTES

    def per_second(self, count: int) -> float:
        """Append so many times, each durable before the next; return how many a second."""
        start = time.perf_counter()
        for _ in range(count):
            self.append()
        return count / (time.perf_counter() - start)

    def close(self) -> None:
        os.close(self._fd)


class Appended(NamedTuple):
    """What a plain program needs for each byte."""

    per_second: float
    """Bytes a second."""
    cpu_ns: float
    """Processor time for a byte, user and system."""


def cpu_s() -> float:
    """Return the processor time that all threads of this process took, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def append(path: Path, total_bytes: int, sync_count: int | None = None) -> Appended:
    """Append to a new file in writes of CHUNK_BYTES; return what it took.

    It is synced `sync_count` times, evenly; or each SYNC_S, and then at least LEAST_BYTES are
    appended, with SYNCS_LEAST syncs, because what was not synced was only copied. This is the limit
    of a store that writes as many bytes: a program that does nothing but write them is not faster.
    The file is removed.
    """
    chunk = memoryview(b"x" * CHUNK_BYTES)
    if sync_count:
        steps = [round(total_bytes * i / sync_count) for i in range(1, sync_count + 1)]
    else:
        total_bytes, steps = max(total_bytes, LEAST_BYTES), []
    written, synced, synced_bytes = 0, 0, 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        begun_cpu_s, begun_s = cpu_s(), time.perf_counter()
        synced_s, synced_cpu_s = begun_s, begun_cpu_s
        while written < total_bytes or (not steps and synced < SYNCS_LEAST):
            stop = steps[synced] if steps else written + CHUNK_BYTES
            written += os.write(fd, chunk[: stop - written])
            if written == stop if steps else time.perf_counter() - synced_s >= SYNC_S:
                os.fdatasync(fd)
                synced, synced_bytes = synced + 1, written
                synced_s, synced_cpu_s = time.perf_counter(), cpu_s()
        return Appended(
            synced_bytes / (synced_s - begun_s), (synced_cpu_s - begun_cpu_s) * 1e9 / synced_bytes
        )
    finally:
        os.close(fd)
        path.unlink()


# --- whole lives beside it


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
        before, begun_s = store.stats().sync_count, cpu_s()
        rate = self._play(store, bodies)
        cpu_ns = (cpu_s() - begun_s) * 1e9 / len(bodies)
        syncs = store.stats().sync_count - before if self._durability == "group" else None
        plain = append(self._path, round(rate.bytes_each * len(bodies)), syncs)
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
    words = f"; {of['share']:.2f} × the disk's rate; {of['cpu_ns']:,.0f} ns each"
    words += f", a plain write {of['plain_cpu_ns']:,.0f}"
    return words, of
