"""What a worker takes of the machine, seen from outside."""

from __future__ import annotations

import ctypes
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import machine

MORE_SHARE = 0.1
MORE_BYTES = 16 << 20
MORE_DESCRIPTORS = 8
FLAT_S = 60.0
"""A shorter life says nothing: caches and rings fill."""

_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Sample:
    """One look."""

    at_s: float
    life: int
    private_bytes: int
    used_bytes: int
    """Of these, what was in use when the process looked last."""
    descriptors: int
    disk_bytes: int


def used_bytes() -> int:
    """Return the private memory of this process without what the allocator keeps, but is free.

    It keeps what was freed in pools, of which threads share some: how much that is depends on
    chance, and it may still grow long after what is in use does not.
    """
    _LIBC.malloc_trim(0)
    return machine.private_bytes()


def look(pid: int, folder: Path, at_s: float, life: int, used_bytes: int) -> Sample | None:
    """Look at a process and its folder; None if it has just ended."""
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        private_bytes = machine.private_bytes(str(pid))
    except (OSError, AssertionError):
        return None
    return Sample(at_s, life, private_bytes, used_bytes, descriptors, machine.disk_bytes(folder))


def judged(samples: list[Sample]) -> list[Sample]:
    """Return the samples of the longest life; if each is short, those of all lives."""
    longest: list[Sample] = []
    for life in {sample.life for sample in samples}:
        own = [sample for sample in samples if sample.life == life]
        longest = max(longest, own, key=len)
    return longest if _span_s(longest) >= FLAT_S else samples


def _span_s(samples: list[Sample]) -> float:
    return samples[-1].at_s - samples[0].at_s if samples else 0.0


def early_and_late(
    samples: list[Sample], name: str, of: Callable[[Sequence[float]], float] = statistics.median
) -> tuple[float, float]:
    """Return the medians of a value over the second quarter of the samples, and over the last."""
    values = [getattr(sample, name) for sample in samples] or [0]
    quarter = max(1, len(values) // 4)
    return of(values[quarter : 2 * quarter] or values), of(values[-quarter:])


def growth(samples: list[Sample]) -> list[str]:
    """Return what has grown from the second quarter of what is judged to its last quarter.

    The lowest values are compared: what is needed for a moment only may be more by chance.
    """
    samples = judged(samples)
    if _span_s(samples) < FLAT_S:
        return []
    found = []
    for name, share, more in (
        ("used_bytes", MORE_SHARE, MORE_BYTES),
        ("descriptors", MORE_SHARE, MORE_DESCRIPTORS),
    ):
        before, after = early_and_late(samples, name, min)
        if after > before * (1 + share) + more:
            found.append(f"{name} grew from {before:,.0f} to {after:,.0f}")
    return found
