"""A nursery: a process that forks those that are to be killed, so that each is spared the imports.

The one who kills says `Nursery(worker).run(…)`. The worker says `nurse(work)`, which forks a child
for each line that it reads. A child says what it is about to do, then what was acknowledged, a line
each, on stdout, and works until it is killed.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

_RUN = (
    "import runpy, sys; sys.path.append(sys.argv[1]); runpy.run_path(sys.argv[2], {}, '__main__')"
)


class Nursery:
    """The process that forks those to be killed."""

    def __init__(self, worker: str, **environment: str) -> None:
        """`worker`: a module of `tests/rigs/`."""
        path = str(Path(__file__).with_name(f"{worker}.py"))
        command = [sys.executable, "-P", "-c", _RUN, str(Path(__file__).parents[2]), path]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **environment},
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the nursery died"
        return line.strip()

    def run(self, path: Path, seed: int, kill_s: float, *more: str) -> list[str]:
        """Let a child work, kill it after `kill_s`; return what it said."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join([str(path), str(seed), *more]) + "\n")
        self.process.stdin.flush()
        said: list[str] = []
        pid = 0
        while not pid:
            said.append(self.line())
            if said[-1].startswith("child"):
                pid = int(said.pop().split()[1])
        # The child's words wait in the pipe, 64 KiB at most: read on while it works.
        os.set_blocking(self.process.stdout.fileno(), True)  # type: ignore[union-attr]
        killer = subprocess.Popen(self.killer(pid, kill_s))  # outlives a blocked read
        while not said or not said[-1].startswith("ended"):
            said.append(self.line())
        assert killer.wait() == 0
        self.check_end(said.pop())
        return said

    def killer(self, pid: int, kill_s: float) -> list[str]:
        """The command that ends a child."""
        return ["sh", "-c", f"sleep {kill_s:.3f}; kill -KILL {pid}"]

    def check_end(self, ended: str) -> None:
        """What the nursery says of a child's end must be as it should."""
        assert ended == f"ended {-signal.SIGKILL}"

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for its end."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


# --- in the nursery's process


def say(*words: object) -> None:
    """One line to the one who kills; what was written before the kill is read."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def nurse(work: Callable[..., object]) -> None:
    """Fork a child for each line, which does `work(path, seed, *more)` until it is killed."""
    say("ready")
    for line in sys.stdin:
        path, seed, *more = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                work(path, int(seed), *more)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        say("child", pid)
        _, status = os.waitpid(pid, 0)
        say("ended", os.waitstatus_to_exitcode(status))
