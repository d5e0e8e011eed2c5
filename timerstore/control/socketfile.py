"""A Unix socket in a store's folder: listened at by who has the store open, found by the others."""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_QUEUE_S: Final = 10.0


def listen(path: Path, name: str) -> socket.socket:
    """Return a socket of the folder that its owner alone may use; the store's lock is held."""
    file = path / name
    file.unlink(missing_ok=True)  # of a life that was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        os.fchmod(listening.fileno(), 0o600)  # what the file will have
        folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listening.bind(f"/proc/self/fd/{folder}/{name}")  # a path has 108 bytes at most
        finally:
            os.close(folder)
        listening.listen(128)
    except BaseException:
        listening.close()
        raise
    return listening


def end_listening(listening: socket.socket, path: Path, name: str) -> None:
    """Close a socket of the folder, also under an `accept` that waits, and remove its file."""
    with suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    with suppress(OSError):
        (path / name).unlink()


def is_allowed(guest: socket.socket) -> bool:
    """Tell whether it is our own user, or the superuser."""
    packed = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid = struct.unpack("3i", packed)[1]
    return uid in (0, os.geteuid())


def connect(path: Path, name: str, timeout_s: float | None) -> socket.socket:
    """Return a socket connected to the one of a folder; raises OSError where nobody listens."""
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(timeout_s)
        _connect(sock, f"/proc/self/fd/{folder}/{name}")
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock


def _connect(sock: socket.socket, file: str) -> None:
    """Connect; where many do at once, the kernel's queue may be full for a moment."""
    until_s = time.monotonic() + _QUEUE_S
    while True:
        try:
            return sock.connect(file)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
        time.sleep(0.01)
