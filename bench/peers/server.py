"""A server that a peer starts on a socket in its own folder, its clients; it ends with the peer."""

from __future__ import annotations

import ctypes
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Self

from peers.timers import MissingError, Timers

_PATIENCE_S = 120.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def program(name: str, package: str, *folders: str) -> str:
    """Return where a program is, or raise MissingError."""
    for path in (None, *folders):
        if found := shutil.which(name, path=path):
            return found
    raise MissingError(f"{name} is missing: apt install {package}")


class Server:
    """A process with a server, ready for its first client."""

    def __init__(
        self,
        command: Sequence[str],
        is_ready: Callable[[], bool],
        *,
        user: str | None = None,
    ) -> None:
        """Start it; wait until it answers. The kernel ends it if this process ends."""
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user,
            preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
        )
        self.pid = self._process.pid
        """Its process, which may have children."""
        _running.add(self)
        stop_s = time.monotonic() + _PATIENCE_S
        while not is_ready():
            if self._process.poll() is not None or time.monotonic() > stop_s:
                raise RuntimeError(f"{command[0]} did not start: {' '.join(command)}")
            time.sleep(0.02)

    def stop(self) -> None:
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


class Client(Timers):
    """A connection to a server's socket file; with `servers`, it stops them when it is closed."""

    def __init__(self, path: Path, *servers: Server) -> None:
        self._path, self._servers = path, servers
        self.pids = [each.pid for each in servers]
        self._socket = connect(path)
        self._file = self._socket.makefile("rb")

    def another(self) -> AbstractContextManager[Self]:
        made = type(self).__new__(type(self))
        Client.__init__(made, self._path)
        return closing(made)

    def close(self) -> None:
        self._file.close()
        self._socket.close()
        for each in self._servers:
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


def says(path: Path, asked: bytes = b"", answer: bytes = b"") -> Callable[[], bool]:
    """Return what tells whether somebody listens on a socket file, and answers if it is asked."""

    def look() -> bool:
        try:
            with connect(path) as asking:
                asking.sendall(asked)
                return not asked or asking.recv(100).startswith(answer)
        except OSError:
            return False

    return look
