"""What a worker takes of the machine, seen from outside."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path

import machine

MORE_SHARE = 0.1
MORE_BYTES = 16 << 20
MORE_DESCRIPTORS = 8
FLAT_S = 60.0
"""A shorter life says nothing: caches and rings fill."""


@dataclass(frozen=True)
class Sample:
    """One look."""

    at_s: float
    life: int
    private_bytes: int
    descriptors: int
    disk_bytes: int


def look(pid: int, folder: Path, at_s: float, life: int) -> Sample | None:
    """Look at a process and its folder; None if it has just ended."""
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        private_bytes = machine.private_bytes(str(pid))
    except (OSError, AssertionError):
        return None
    return Sample(at_s, life, private_bytes, descriptors, disk_bytes(folder))


def disk_bytes(folder: Path) -> int:
    """Return the blocks of all files below a folder."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(above, name)).st_blocks * 512
            except OSError:  # it went meanwhile
                continue
    return total


def growth(samples: list[Sample]) -> list[str]:
    """Return what has grown over the longest life, from its second quarter to its last."""
    longest: list[Sample] = []
    for life in {sample.life for sample in samples}:
        own = [sample for sample in samples if sample.life == life]
        longest = max(longest, own, key=len)
    if not longest or longest[-1].at_s - longest[0].at_s < FLAT_S:
        return []
    quarter = len(longest) // 4
    found = []
    for name, share, more in (
        ("private_bytes", MORE_SHARE, MORE_BYTES),
        ("descriptors", MORE_SHARE, MORE_DESCRIPTORS),
    ):
        values = [getattr(sample, name) for sample in longest]
        before = statistics.median(values[quarter : 2 * quarter])
        after = statistics.median(values[-quarter:])
        if after > before * (1 + share) + more:
            found.append(f"{name} grew from {before:,.0f} to {after:,.0f}")
    return found
