"""Processor time, memory of a keeper: of this process, of its servers with their children."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import machine


@dataclass(frozen=True)
class Usage:
    """At one moment."""

    processor_s: float
    """Of all processes since they began, those of children that have ended included."""
    private_bytes: int
    """Of all processes, with what a server's processes share."""


def usage(servers: Sequence[int]) -> Usage:
    """Look at this process, and at servers with all their children."""
    processor_s, private_bytes, shared_bytes = time.process_time(), machine.private_bytes(), 0
    for pid in with_children(servers):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # it has ended
            continue
        processor_s += sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")
        private_bytes += _kib(status, "RssAnon") << 10
        shared_bytes = max(shared_bytes, _kib(status, "RssShmem") << 10)
    return Usage(processor_s, private_bytes + shared_bytes)


def with_children(pids: Sequence[int]) -> list[int]:
    """Return processes with all that they have started, directly or not."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = list(pids)
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    return found


def _kib(status: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    return int(match[1]) if match else 0
