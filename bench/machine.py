"""What a fair measurement asks of the machine: warm memory, counted bytes, folders that go away."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType

MADV_HUGEPAGE = 14
PAGE_BYTES = 4_096
_PR_SET_NAME = 15


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
class ThreadTime:
    """What a thread has taken since it began, or all threads of one name together."""

    ns: int = 0
    """Processor time, to the nanosecond."""
    user_ticks: int = 0
    system_ticks: int = 0

    def __add__(self, other: ThreadTime) -> ThreadTime:
        return ThreadTime(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: ThreadTime) -> ThreadTime:
        return ThreadTime(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def split_ns(self, count: int) -> tuple[float, float]:
        """Return user and system ns for each of `count`: the exact sum, shared out by ticks."""
        ticks = self.user_ticks + self.system_ticks
        share = self.system_ticks / ticks if ticks else 0.0
        return (1 - share) * self.ns / count, share * self.ns / count


def thread_times() -> dict[str, ThreadTime]:
    """Return what each thread of this process has taken, by name."""
    found: dict[str, ThreadTime] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            ns = int((task / "schedstat").read_text().split()[0])
            stat = _stat(task)
        except OSError:  # it has ended
            continue
        taken = ThreadTime(ns, int(stat[11]), int(stat[12]))
        found[name] = found.get(name, ThreadTime()) + taken
    return found


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


def fault_count() -> int:
    """Return how many page faults this process has had that no disk was asked for."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def name_thread(name: str) -> None:
    """Name the calling thread as /proc shows it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


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


def headline(*more: str) -> str:
    """Return what stands over a table: the machine, the day, how busy it is already, and more."""
    load = f"load {os.getloadavg()[0]:.1f} at the beginning"
    return "; ".join([describe(), time.strftime("%Y-%m-%d"), load, *more]) + "."


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
