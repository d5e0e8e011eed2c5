"""What a fair measurement asks of the machine: counted bytes, folders that go away."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType


def read_bytes() -> int:
    """Return what this process has had read from disks."""
    return int(_field(Path("/proc/self/io"), "read_bytes"))


def private_bytes(process: str = "self") -> int:
    """Return a process's private memory: RssAnon."""
    return 1_024 * int(_field(Path("/proc") / process / "status", "RssAnon"))


def _field(path: Path, name: str) -> str:
    match = re.search(rf"^{name}:\s+(\d+)", path.read_text(), re.MULTILINE)
    assert match is not None, f"{path} has no {name}"
    return match[1]


@dataclass(frozen=True)
class Usage:
    """What this process, and others with all their children, have taken."""

    processor_s: float
    """Since they began, that of children that have ended included."""
    private_bytes: int
    """With what a server's processes share."""


def usage(pids: Sequence[int]) -> Usage:
    """Look at this process, and at others with all their children."""
    processor_s, private, shared = time.process_time(), private_bytes(), 0
    for pid in with_children(pids):
        try:
            stat = _stat(Path(f"/proc/{pid}"))
            status = Path(f"/proc/{pid}/status")
            private += 1_024 * int(_field(status, "RssAnon"))
            shared = max(shared, 1_024 * int(_field(status, "RssShmem")))
        except (OSError, AssertionError):  # it has ended
            continue
        processor_s += sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")
    return Usage(processor_s, private + shared)


def cpu_s(pid: int) -> float:
    """Return a process's seconds of processor time."""
    return sum(map(int, _stat(Path(f"/proc/{pid}"))[11:13])) / os.sysconf("SC_CLK_TCK")


def with_children(pids: Sequence[int]) -> list[int]:
    """Return processes with all that they have started, directly or not."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int(_stat(path)[1])
        except OSError:
            continue
    found = list(pids)
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    return found


def _stat(path: Path) -> list[str]:
    """Return the fields of a process or thread behind its name."""
    return (path / "stat").read_text().rpartition(")")[2].split()


def disk_bytes(folder: Path) -> int:
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(above, name)).st_blocks * 512
            except OSError:  # it went meanwhile
                continue
    return total


@contextmanager
def scratch_folder(parent: str | None) -> Iterator[Path]:
    """Make a folder for stores, and remove it with all that is in it; see `tidy_end`."""
    with tidy_end():
        folder = Path(tempfile.mkdtemp(prefix="timerstore-bench-", dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def tidy_end() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a block as Ctrl-C does: what it has opened is closed.

    Else Python ends at once, and leaves folders and servers behind. A signal that somebody handles
    or ignores already stays as it is. Only the main thread can change what a signal does.
    """
    is_main = threading.current_thread() is threading.main_thread()
    changed = [
        each
        for each in (signal.SIGTERM, signal.SIGHUP)
        if is_main and signal.getsignal(each) is signal.SIG_DFL
    ]

    def end(number: int, _: FrameType | None) -> None:
        for each in changed:
            signal.signal(each, signal.SIG_IGN)  # nothing stops the closing
        sys.exit(128 + number)

    for each in changed:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in changed:
            signal.signal(each, signal.SIG_DFL)


def headline() -> str:
    """Return what stands over a table: the machine, the day, how busy it is already."""
    load = f"load {os.getloadavg()[0]:.1f} at the beginning."
    return "; ".join([describe(), time.strftime("%Y-%m-%d"), load])


def describe() -> str:
    """Return the machine in one line: processor, cores, memory, kernel, Python."""
    processor = _said_of_processor("model name") or platform.machine()
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{os.cpu_count()} × {processor}, {gib:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def kind() -> str:
    """Return the kind of processor and Python: what ratios of processor time depend on."""
    named = [_said_of_processor(each) for each in ("model name", "cpu family", "model")]
    python = ".".join(platform.python_version_tuple()[:2])
    return f"{' '.join(filter(None, named)) or platform.machine()}, Python {python}"


def _said_of_processor(name: str) -> str | None:
    text = Path("/proc/cpuinfo").read_text()
    match = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else None


@contextmanager
def limited_memory(bytes_max: int, pid: int = 0) -> Iterator[None]:
    """Have this process, or another, in a cgroup with so much memory, the page cache included."""
    above = Path("/sys/fs/cgroup")
    if version_1 := (above / "memory").is_dir():
        above /= "memory"
    group = above / f"timerstore-{pid or os.getpid()}"
    group.mkdir()
    try:
        limit = group / ("memory.limit_in_bytes" if version_1 else "memory.max")
        limit.write_text(str(bytes_max))
        (group / "cgroup.procs").write_text(str(pid or os.getpid()))
        yield
    finally:
        for each in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                (above / "cgroup.procs").write_text(each)
        group.rmdir()
