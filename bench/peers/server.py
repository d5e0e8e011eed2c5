"""A server that a peer starts on a socket in its own folder; it ends with the peer."""

from __future__ import annotations

import ctypes
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from peers.timers import MissingError

_PATIENCE_S = 120.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def program(name: str, package: str, *folders: str) -> str:
    """Return where a program is, or raise MissingError."""
    found = shutil.which(name) or next(
        (hit for folder in folders if (hit := shutil.which(name, path=folder))), None
    )
    if found is None:
        raise MissingError(f"{name} is missing: apt install {package}")
    return found


def _end_with_parent() -> None:
    """Have the kernel end this process when its parent has ended, however that came about."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def run(command: Sequence[str], *, user: str | None = None) -> None:
    """Run a command to its end; if that is cut short, let the command end tidily.

    `subprocess.run` would kill it, and what it has started itself, or shares, would stay.
    """
    process = _start(command, user)
    try:
        process.wait()
    except BaseException:
        process.terminate()
        process.wait(_PATIENCE_S)
        raise
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {' '.join(command)}")


def _start(command: Sequence[str], user: str | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
        preexec_fn=_end_with_parent,
    )


class Server:
    """A process with a server, ready for its first client."""

    def __init__(
        self,
        command: Sequence[str],
        is_ready: Callable[[], bool],
        *,
        user: str | None = None,
    ) -> None:
        """Start it; wait until it answers."""
        self._process = _start(command, user)
        _running.add(self)
        stop_s = time.monotonic() + _PATIENCE_S
        while not is_ready():
            if self._process.poll() is not None or time.monotonic() > stop_s:
                raise RuntimeError(f"{command[0]} did not start: {' '.join(command)}")
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """Its process, which may have children."""
        return self._process.pid

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _running.discard(self)


_running = set[Server]()


@contextmanager
def none_left() -> Iterator[None]:
    """Stop all servers that a block has started and not stopped, however it ends."""
    try:
        yield
    finally:
        for each in [*_running]:
            each.stop()


def connect(path: Path) -> socket.socket:
    """Connect to a socket file; who waits for an answer for too long gets TimeoutError."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(_PATIENCE_S)
    try:
        made.connect(str(path))
    except OSError:
        made.close()
        raise
    return made


def answers(path: Path) -> Callable[[], bool]:
    """Return what tells whether somebody listens on a socket file."""

    def look() -> bool:
        try:
            connect(path).close()
        except OSError:
            return False
        return True

    return look
