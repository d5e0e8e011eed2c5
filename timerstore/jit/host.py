"""What differs between systems: each call that only Linux has, and what stands in for it elsewhere.

The second branch is that of macOS, and of a test of it on Linux (PORTABLE=1). It is right, and
slower. No other file asks which system it runs on.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Final

PORTABLE: Final = sys.platform != "linux" or os.environ.get("PORTABLE") == "1"
IS_MAC: Final = sys.platform == "darwin"
MS_SYNC: Final = 0x10 if IS_MAC else 4
ERRNO_PLACE: Final = "__error" if IS_MAC else "__errno_location"
"""The function of C that says where `errno` is."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_BLOCK_BYTES: Final = 4_096
_PIECE_BYTES: Final = 1 << 20
_ONE: Final = (1).to_bytes(8, sys.byteorder)

FOLDER_ONLY: int
"""Opens a folder that need not be readable."""
FUTEX: int
"""The system call's number; if it is not known, who would sleep naps instead."""
MADV_POPULATE_WRITE: int
MAP_NORESERVE: int
SYNC_RANGE: Any
RENAME: Any
"""`sync_file_range` and `renameat2` of C, or None."""

if sys.platform == "linux" and not PORTABLE:
    FOLDER_ONLY = os.O_PATH
    FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
    MADV_POPULATE_WRITE = 23
    MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on
    SYNC_RANGE = getattr(_LIBC, "sync_file_range", None)
    RENAME = getattr(_LIBC, "renameat2", None)

    def open_event() -> int:
        """Return a descriptor that a write makes readable; nobody blocks at it."""
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def open_in_memory(name: str) -> int:
        """Return the descriptor of an empty file that nobody else can open."""
        return os.memfd_create(name)

    def open_unnamed(folder: Path) -> int | None:
        """Return the descriptor of a file without a name; None if the folder can have none."""
        try:
            return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        except OSError as e:
            if e.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS):
                return None
            raise

    def name_of(fd: int, path: Path) -> str:
        """Return a name of the open file `fd`, which was at `path`."""
        return f"/proc/self/fd/{fd}"

    def reserve(fd: int, start: int, length: int) -> None:
        """Take the disk's blocks for bytes of a file, without changing any."""
        os.posix_fallocate(fd, start, length)

    def sync_data(fd: int) -> None:
        """Make a file's bytes durable."""
        os.fdatasync(fd)

    def copy_bytes(target: int, source: int, at: int, count: int) -> int:
        """Copy bytes to the same place of another file, whose position is there; return how many.

        0 at the source's end.
        """
        return os.sendfile(target, source, at, count)

    def bind_privately(listening: socket.socket, name: str) -> None:
        """Bind a Unix socket to a file of this user alone."""
        os.fchmod(listening.fileno(), 0o600)  # what the file will have
        listening.bind(name)

    def uid_of(guest: socket.socket) -> int:
        """Return whose process is at the other end of a Unix socket."""
        packed = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", packed)[1])

    def processor_count() -> int:
        """Return how many processors this process may use."""
        return len(os.sched_getaffinity(0))

else:
    FOLDER_ONLY = os.O_RDONLY
    FUTEX = -1
    MADV_POPULATE_WRITE = -1  # the system refuses it, and that is no fault
    MAP_NORESERVE = 0
    SYNC_RANGE = RENAME = None

    def open_event() -> int:
        """Open a FIFO for both ends."""
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "event")
            os.mkfifo(name, 0o600)
            return os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def open_in_memory(name: str) -> int:
        """Make a file that lies on the disk, and take its name away."""
        import tempfile

        fd, path = tempfile.mkstemp()
        os.unlink(path)
        return fd

    def open_unnamed(folder: Path) -> int | None:
        """Say that there is none."""
        return None

    def name_of(fd: int, path: Path) -> str:
        """Return the path, whoever is there by now."""
        return os.fspath(path.absolute())

    def reserve(fd: int, start: int, length: int) -> None:
        """Write a zero to each block of a hole; F_PREALLOCATE would fill none.

        Nothing is read: Linux would read ahead into folios that reach beyond what is reserved, and
        on a full disk no page of those can be written to.
        """
        at, stop, block_bytes = start, start + length, min(_BLOCK_BYTES, os.fstatvfs(fd).f_frsize)
        if os.fstat(fd).st_size < stop:
            os.ftruncate(fd, stop)
        while at < stop and (at := os.lseek(fd, at, os.SEEK_HOLE)) < stop:
            os.pwrite(fd, b"\0", at)
            at += block_bytes - at % block_bytes

    def sync_data(fd: int) -> None:
        """Have the drive itself write, which fsync of macOS does not."""
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)

    def copy_bytes(target: int, source: int, at: int, count: int) -> int:
        """Read and write."""
        return os.pwrite(target, os.pread(source, min(count, _PIECE_BYTES), at), at)

    def bind_privately(listening: socket.socket, name: str) -> None:
        """Bind it, and change the file before anybody can connect."""
        listening.bind(name)
        os.chmod(name, 0o600)

    def uid_of(guest: socket.socket) -> int:
        """Ask `getpeereid`; where a test of Linux has none, the file lets in this user alone."""
        uid, gid = ctypes.c_uint(os.geteuid()), ctypes.c_uint()
        ask = getattr(_LIBC, "getpeereid", None)
        if ask is not None and ask(guest.fileno(), ctypes.byref(uid), ctypes.byref(gid)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return uid.value

    def processor_count() -> int:
        """Return how many there are."""
        return os.cpu_count() or 1


def wake_event(fd: int) -> None:
    """Make an event readable."""
    os.write(fd, _ONE)


def drain_event(fd: int) -> None:
    """Take the wake-ups of an event; raises BlockingIOError if there is none."""
    os.read(fd, _BLOCK_BYTES)
