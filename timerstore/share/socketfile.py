"""A Unix socket in a store's folder: listened at by who has the store open, found by the others."""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from timerstore.errors import StoreAccessError
from timerstore.jit import host
from timerstore.jit.guards import Lock
from timerstore.timelog.files.folders import HeldFolder

LOOK_S: Final = 1.0
"""So often a listener looks whether its file is there."""
_QUEUE_S: Final = 10.0
_QUEUE_COUNT: Final = 128
"""So many may have connected, and wait to be accepted."""


class Listener:
    """Listens in a store's folder, whose lock is held; a file that was removed is made again.

    One thread accepts; any may close, more than once.
    """

    def __init__(self, held: HeldFolder, name: str) -> None:
        """Listen in the store's folder; raises OSError if the file system knows no sockets."""
        self._name, self._lock, self._closed = name, Lock(), False
        self._held, self._folder = held, held.fd  # which is open as long as we hold it
        self._socket, self._file = self._listen()

    def _listen(self) -> tuple[socket.socket, tuple[int, ...]]:
        """Put a file in place of what is there, which a killed life may have left.

        It gets its name once it listens, so that nobody who finds it is refused.
        """
        unnamed = self._name + ".new"
        with suppress(FileNotFoundError):
            os.unlink(unnamed, dir_fd=self._folder)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A path has 108 bytes at most.
            folder = folder_name(self._folder, self._held.path)
            host.bind_privately(listening, f"{folder}/{unnamed}")
            listening.listen(_QUEUE_COUNT)
            listening.settimeout(LOOK_S)
            made = self._find(unnamed)
            if made is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), unnamed)
            os.replace(unnamed, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            listening.close()
            with suppress(OSError):
                os.unlink(unnamed, dir_fd=self._folder)
            raise
        return listening, made

    def _find(self, name: str) -> tuple[int, ...] | None:
        """Return which file stands there; a number may be another file's by now."""
        try:
            status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return None
        return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode), status.st_mtime_ns

    def accept(self) -> socket.socket | None:
        """Return who comes; None if nobody did for a moment. Raises OSError once closed."""
        try:
            return self._socket.accept()[0]
        except TimeoutError:
            self._look()
            return None

    def _look(self) -> None:
        """Make the file again if it is not ours any more; if that fails, look again later."""
        with self._lock.guard(), suppress(OSError):
            if not self._closed and self._find(self._name) != self._file:
                before = self._socket
                self._socket, self._file = self._listen()
                before.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, −1 once it is closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let nobody in any more, also under an `accept` that waits, and remove the file."""
        with self._lock.guard():
            self._closed = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            if self._find(self._name) == self._file:
                with suppress(OSError):
                    os.unlink(self._name, dir_fd=self._folder)

    def forget(self) -> None:
        """Close what a forked child inherited; the file is the parent's."""
        self._lock, self._closed = Lock(), True
        self._socket.close()


def folder_name(fd: int, path: Path) -> str:
    """Return a short name of an open folder; raises StoreAccessError where there is no /proc."""
    name = host.name_of(fd, path)
    if not os.path.exists(name):
        raise StoreAccessError(
            "/proc is not mounted here, and timerstore finds a store's socket through it. Mount "
            "/proc, or use the store in one process, without share=True."
        )
    return name


def is_allowed(guest: socket.socket) -> bool:
    """Tell whether it is our own user, or the superuser."""
    return host.uid_of(guest) in (0, os.geteuid())


def connect(path: Path, name: str, timeout_s: float | None) -> socket.socket:
    """Return a socket connected to the one of a folder; raises OSError if nobody listens."""
    folder = os.open(path, host.FOLDER_ONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            _connect(sock, f"{folder_name(folder, path)}/{name}")
        except BaseException:
            sock.close()
            raise
    finally:
        os.close(folder)
    return sock


def _connect(sock: socket.socket, file: str) -> None:
    """Connect; if many do at once, the kernel's queue may be full for a moment."""
    until_s = time.monotonic() + _QUEUE_S
    while True:
        try:
            return sock.connect(file)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
        time.sleep(0.01)
