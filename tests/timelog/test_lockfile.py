"""The lock: other processes are refused, forks leave it alone, descriptors are not leaked."""

import fcntl
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.interrupting import Interrupt, interrupted
from tests.rigs.program import python
from tests.rigs.warm import Warm
from timerstore.errors import StoreLockedError
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.lockfile import LockFile

TRY = """
import sys
from pathlib import Path
from timerstore.errors import StoreLockedError
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.lockfile import LockFile
try:
    LockFile(Disk(), Path(sys.argv[1]))
except StoreLockedError as e:
    print("refused:", e)
else:
    print("taken")
"""

# The same without importing anything of ours, which takes a second.
TRY_BOTH = """
import fcntl, os, sys
fd = os.open(sys.argv[1] + "/lock", os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print("refused")
else:
    print("taken")
"""

# As a broker does: Java's FileChannel.tryLock is an fcntl lock.
HOLD = """
import fcntl, sys
file = open(sys.argv[1] + "/lock", "r+")
if sys.argv[2] == "fcntl":
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
else:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


def elsewhere(folder: Path, script: str = TRY_BOTH) -> str:
    """What another process gets when it takes the lock."""
    return python("-c", script, folder, timeout_s=60, popen=Warm)


@contextmanager
def held_elsewhere(folder: Path, how: str) -> Iterator[None]:
    command = [sys.executable, "-c", HOLD, str(folder), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.communicate()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_another_process_is_refused_with_the_pid(tmp_path: Path) -> None:
    lock = LockFile(Disk(), tmp_path)
    answer = elsewhere(tmp_path, TRY)
    assert answer.startswith("refused:")
    assert ". Stop that process, or wait. If several " in answer
    (tmp_path / "abort").write_text(f"{os.getpid()}\n")
    assert f"(pid {os.getpid()})" in elsewhere(tmp_path, TRY)
    (tmp_path / "abort").write_text("")  # a broker's may be empty
    assert "pid" not in elsewhere(tmp_path, TRY)
    lock.release()
    lock.release()
    assert elsewhere(tmp_path, TRY) == "taken\n"


@pytest.mark.parametrize("how", ["fcntl", "flock"])
def test_either_kind_of_lock_refuses_us(tmp_path: Path, how: str) -> None:
    (tmp_path / "lock").write_bytes(b"lock")
    before = open_files()
    with held_elsewhere(tmp_path, how):
        inside = open_files()
        for _ in range(3):
            with pytest.raises(StoreLockedError, match="another process"):
                LockFile(Disk(), tmp_path)
        assert open_files() == inside
    assert open_files() == before
    lock = LockFile(Disk(), tmp_path)
    lock.release()
    assert (tmp_path / "lock").read_bytes() == b"lock"
    assert open_files() == before


def test_we_hold_both_kinds(tmp_path: Path) -> None:
    lock = LockFile(Disk(), tmp_path)
    tries = """
import fcntl, sys
file = open(sys.argv[1] + "/lock", "r+")
for take in (fcntl.flock, lambda f, how: fcntl.lockf(f, how, 1, 0)):
    try:
        take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("taken")
    except OSError:
        print("refused")
"""
    assert elsewhere(tmp_path, tries).split() == ["refused", "refused"]
    lock.release()


def test_once_in_a_process(tmp_path: Path) -> None:
    lock = LockFile(Disk(), tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "link", tmp_path / "."):
        with pytest.raises(StoreLockedError, match=f"this process \\(pid {os.getpid()}\\)"):
            LockFile(Disk(), path)
    # A second descriptor that is closed would have dropped the fcntl lock.
    assert elsewhere(tmp_path).startswith("refused")
    lock.release()
    LockFile(Disk(), tmp_path).release()


def test_a_release_that_was_interrupted_and_goes_on_takes_nobody_s_lock(tmp_path: Path) -> None:
    """Somebody else may have taken the lock in between, who keeps it."""
    taken = 0
    for at in range(100):
        lock = LockFile(Disk(), tmp_path)
        with suppress(Interrupt), interrupted(at, "files/lockfile.py") as count:
            lock.release()
        try:
            other = LockFile(Disk(), tmp_path)
        except StoreLockedError:
            lock.release()
            continue
        taken += count.raised
        lock.release()
        with pytest.raises(StoreLockedError, match="this process"):
            LockFile(Disk(), tmp_path)
        other.release()
        if not count.raised:
            break
    assert taken


def in_a_fork(act: object) -> int:
    """Start a child that acts, then waits; returns the end of a pipe that lets it go."""
    read, write = os.pipe()
    ready_read, ready_write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # later Pythons warn of threads
        pid = os.fork()
    if pid == 0:
        try:
            os.close(write)
            act()  # type: ignore[operator]
            os.write(ready_write, b"done")
            os.read(read, 1)
        finally:
            os._exit(0)
    os.close(read)
    os.close(ready_write)
    assert os.read(ready_read, 4) == b"done"
    os.close(ready_read)
    return write


def test_a_forked_child_cannot_unlock_the_parent(tmp_path: Path) -> None:
    lock = LockFile(Disk(), tmp_path)
    gate = in_a_fork(lock.release)
    assert elsewhere(tmp_path).startswith("refused")
    os.close(gate)
    os.wait()
    assert elsewhere(tmp_path).startswith("refused")
    lock.release()
    assert elsewhere(tmp_path) == "taken\n"


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = LockFile(Disk(), tmp_path)
    gate = in_a_fork(lambda: None)
    lock.release()
    assert elsewhere(tmp_path) == "taken\n"  # though the child lives
    again = LockFile(Disk(), tmp_path)
    os.close(gate)
    os.wait()
    assert elsewhere(tmp_path).startswith("refused")
    again.release()


def test_a_forked_child_is_refused_as_another_process(tmp_path: Path) -> None:
    lock = LockFile(Disk(), tmp_path)

    def tries() -> None:
        with pytest.raises(StoreLockedError, match="another process"):
            LockFile(Disk(), tmp_path)

    gate = in_a_fork(tries)
    os.close(gate)
    os.wait()
    lock.release()


def test_a_lock_that_is_taken_is_no_other_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = LockFile(Disk(), tmp_path / "a"), LockFile(Disk(), tmp_path / "b")
    first.release()
    assert elsewhere(tmp_path / "a") == "taken\n"
    assert elsewhere(tmp_path / "b").startswith("refused")
    assert fcntl.fcntl(second.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    second.release()
