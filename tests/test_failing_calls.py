"""System calls of a program fail, below its disk: nothing is lost, nothing hangs, errors are clear.

strace has the k-th call of a kind fail in each thread of a life, from the moment on at which it
opens its store. The life ends in an error that names what failed, or goes on; then the store
holds what was acknowledged. `FAILING_CALLS` says how many lives there are for each call, `SEED`
which k the first one has.
"""

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from tests.rigs import orders
from tests.tiers import SEED, Told, how_many
from timerstore.testing import Program, say
from timerstore.testing.kills import load_kernels

TRACE = shutil.which("strace") or ""


def may_attach() -> bool:
    """Tell whether strace is there, and the system lets it attach to a process that runs."""
    if not TRACE:
        return False
    with subprocess.Popen(["sleep", "60"]) as asleep:
        command = [TRACE, "-e", "trace=none", "-p", str(asleep.pid)]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as trace:
            assert trace.stderr is not None
            said = trace.stderr.readline()
            trace.kill()
        asleep.kill()
    return b"attached" in said


NO_TRACE = "strace is not installed, or may not attach: no system call fails"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.linux,
    pytest.mark.skipif(not may_attach(), reason=NO_TRACE),
]
LIVES = how_many("FAILING_CALLS", 1, 10)

FULL, BROKEN, READ_ONLY = ("ENOSPC", "EDQUOT"), ("EIO",), ("EROFS", "EACCES")
CALLS = {
    "openat": (*FULL, *BROKEN, *READ_ONLY, "EMFILE", "ENFILE", "EINTR"),
    "mmap": ("ENOMEM", "EAGAIN"),
    "fallocate": (*FULL, *BROKEN, "EINTR", "EOPNOTSUPP"),
    "ftruncate": (*FULL, *BROKEN, "EINTR"),
    "fdatasync": (*FULL, *BROKEN, "EINTR"),
    "fsync": (*FULL, *BROKEN, "EINTR"),
    "msync": (*BROKEN, "ENOMEM"),
    "renameat": (*FULL, *BROKEN, *READ_ONLY),
    "unlinkat": (*BROKEN, *READ_ONLY),
    "mkdirat": (*FULL, *BROKEN, *READ_ONLY),
    "pwrite64": (*FULL, *BROKEN, "EINTR"),
    "pread64": (*BROKEN, "EINTR"),
    "newfstatat": (*BROKEN, "EACCES", "ENOMEM"),
    "getdents64": BROKEN,
    "madvise": ("EAGAIN", "EINVAL"),
    "flock": ("EINTR", "ENOLCK"),
    "eventfd2": ("EMFILE", "ENFILE"),
    "clone3": ("EAGAIN",),
    "ppoll": ("EINTR",),
    "lseek": BROKEN,
}
"""Which errors a call may fail with. `futex` and `munmap` end a process by glibc and pyarrow."""


def prepare() -> None:
    """Load what a life needs, so that only its store's calls are counted."""
    load_kernels()
    with tempfile.TemporaryDirectory() as folder:
        timerstore.open(folder, config=orders.config_of("process")).close()


def work(path: str, call: str, error: str, number: str) -> None:
    """Do as `orders.work`, while calls fail; say how it ended."""
    inject = f"inject={call}:error={error}:when={number}"
    options = ["-f", "-o", f"{path}.trace", "-e", f"trace={call}", "-e", inject]
    command = [TRACE, *options, "-p", str(os.getpid())]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as trace:
        assert trace.stderr is not None
        assert b"attached" in trace.stderr.readline()
        try:
            orders.work(path, "group")
        except timerstore.TimerStoreError as e:
            say("refused", type(e).__name__, str(e).replace("\n", " "))
        finally:
            trace.kill()


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with Program(work, prepare=prepare, timeout_s=30) as program:
        yield program


@pytest.mark.timeout(120 + 60 * LIVES)
@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_lost(
    program: Program, tmp_path: Path, call: str, record_property: Told
) -> None:
    rnd, config = random.Random(f"{SEED} {call}"), orders.config_of("group")
    for number in range(LIVES):
        error = rnd.choice(CALLS[call])
        when = rnd.choice((1, 2, 3, rnd.randrange(4, 12), rnd.randrange(1, 100)))
        path = tmp_path / f"{number}"
        again = rnd.random() < 0.5
        if again:
            program.run(path, call, error, "9999")
        life = program.run(path, call, error, str(when))
        print(call, error, when, *life.said[-1:])
        for line in life.said:
            if line.startswith("refused"):
                assert str(tmp_path) in line or "no memory" in line
        program.check(path, config=config)
    record_property("calls", LIVES)
