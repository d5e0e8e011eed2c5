"""What a fair measurement asks of the machine: warm memory, counted bytes, folders that go away."""

from __future__ import annotations

import mmap
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MADV_HUGEPAGE = 14
PAGE_BYTES = 4_096


def warm_memory(size_bytes: int) -> None:
    """Touch and free memory, so that the pages a round will use are backed by real memory.

    A virtual machine that reports its free pages gives them back to its host after two seconds; the
    first touch then costs 5 to 10 µs for each page instead of less than 1, and a round measures the
    host. What is freed here is what the round's files and arrays get.
    """
    if size_bytes <= 0:
        return
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(MADV_HUGEPAGE)
        for at in range(0, size_bytes, PAGE_BYTES):
            memory[at] = 1


def written_bytes() -> int:
    """Return how many bytes this process passed to write calls."""
    return int(_field(Path("/proc/self/io"), "wchar"))


def private_bytes() -> int:
    """Return the process's private memory: RssAnon."""
    return 1_024 * int(_field(Path("/proc/self/status"), "RssAnon"))


def _field(path: Path, name: str) -> str:
    match = re.search(rf"^{name}:\s+(\d+)", path.read_text(), re.MULTILINE)
    assert match is not None, f"{path} has no {name}"
    return match[1]


@contextmanager
def scratch_folder(parent: str | None) -> Iterator[Path]:
    """Make a folder for stores, and remove it with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix="timerstore-bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def describe() -> str:
    """Return the machine in one line: processor, cores, memory, kernel, Python."""
    text = Path("/proc/cpuinfo").read_text()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    processor = match[1].strip() if match else platform.machine()
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{os.cpu_count()} × {processor}, {gib:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )
