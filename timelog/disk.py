"""The one place through which bytes reach a disk.

Files are made, mapped, written, made durable, renamed and removed here alone, so that a test can
watch every such step, or interrupt it, by overriding `Disk.event`. Mapped files are changed in
memory by kernels; `Disk.sync` is what makes those bytes durable.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from timerstore.errors import FlushFailedError, NotAStoreError, StoreFullError
from timerstore.timelog.record import Bytes

_PAGE_BYTES = 4_096
_MADV_DONTNEED = 4
_MADVISE = getattr(ctypes.CDLL(None), "madvise", None)
FILE_MODE = 0o600
FOLDER_MODE = 0o700


class MappedFile:
    """A file and its writable mapping.

    `pyarrow.memory_map` makes the mapping; its buffers are read-only for NumPy, so the writable
    view is made from the buffer's address, and the buffer is kept for as long as the view.
    """

    def __init__(self, path: Path, fd: int, length: int) -> None:
        """Map `length` bytes of the open file `fd`, which from then on this object closes."""
        self.path, self.fd, self.length = path, -1, length
        name = str(path)
        if not name.isascii() and os.fsencode(path) != name.encode("utf-8", "replace"):
            name = f"/proc/self/fd/{fd}"  # Arrow takes no name that is not UTF-8
        with pa.memory_map(name, "r+") as mapped:
            self._buffer = mapped.read_buffer(length)
        self.address: int = self._buffer.address
        self.view: Bytes = np.ctypeslib.as_array(
            (ctypes.c_uint8 * length).from_address(self.address)
        )
        self.fd = fd

    def unfault(self, start: int, stop: int) -> None:
        """Take whole pages in [start, stop) out of the page table; they stay in the page cache.

        Else fdatasync has to write-protect each one that is mapped, with an interrupt to the other
        processors for each: 213 against 105 ms for 256 MiB.
        """
        start, stop = -(-start // _PAGE_BYTES) * _PAGE_BYTES, stop // _PAGE_BYTES * _PAGE_BYTES
        if _MADVISE is not None and stop > start and self.fd >= 0:
            address = ctypes.c_void_p(self.address + start)
            _MADVISE(address, ctypes.c_size_t(stop - start), _MADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor; the mapping lives until the last reference to this object goes."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close the descriptor of a file that was dropped."""
        self.close()


class Disk:
    """The operating system's file calls that a store uses."""

    def event(self, kind: str, path: Path) -> None:
        """Do nothing; tests override this to watch or to interrupt."""

    def make_folder(self, path: Path) -> None:
        """Create a folder (and its parents) for the owner alone; it must not be a symbolic link."""
        if path.is_symlink():
            raise NotAStoreError(f"{path} is a symbolic link. Pass the folder it points to.")
        if not path.is_dir():
            self.event("mkdir", path)
            missing = [path]
            while not missing[-1].parent.exists():
                missing.append(missing[-1].parent)
            for folder in reversed(missing):
                folder.mkdir(FOLDER_MODE, exist_ok=True)
                self.sync_folder(folder.parent)

    def open_file(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading and writing, without following a symbolic link."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return os.open(path, flags, FILE_MODE)
        except OSError as e:
            if e.errno == errno.ELOOP:
                raise NotAStoreError(f"{path} is a symbolic link. Replace it with a file.") from e
            raise

    def create_mapped(self, path: Path, length: int) -> MappedFile:
        """Create a zero-filled file whose every block is allocated, and map it.

        Allocation comes first, so that a full disk is an error here and never a SIGBUS later.
        """
        self.event("create", path)
        fd = self.open_file(path, create=True)
        try:
            os.posix_fallocate(fd, 0, length)
            return MappedFile(path, fd, length)
        except OSError as e:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise self.full(e, path) from e

    def map_existing(self, path: Path, length: int) -> MappedFile:
        """Map a file that must be exactly `length` bytes long.

        One that is shorter and all zeros was about to be made when a process ended; it is finished.
        """
        fd = self.open_file(path)
        try:
            status = os.fstat(fd)
            if status.st_size > length or (status.st_size < length and _has_content(fd)):
                raise NotAStoreError(
                    f"{path} has {status.st_size} bytes where {length} were expected. "
                    "Open the store with the segment sizes it was made with."
                )
            if status.st_size < length or status.st_blocks * 512 < length:
                # A copy may have made it sparse; a write into a hole of a full disk is a SIGBUS.
                os.posix_fallocate(fd, 0, length)
            return MappedFile(path, fd, length)
        except OSError as e:
            os.close(fd)
            raise self.full(e, path) from e
        except NotAStoreError:
            os.close(fd)
            raise

    def full(self, error: OSError, path: Path) -> Exception:
        """Return the error to raise where allocating or writing failed."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreFullError(f"No space left for {path}. Free some and try again.")
        return error

    def sync(self, file: MappedFile | int, path: Path) -> None:
        """Make everything written to a file durable; a failure is final, see FlushFailedError."""
        self.event("sync", path)
        try:
            os.fdatasync(file if isinstance(file, int) else file.fd)
        except OSError as e:
            raise FlushFailedError(
                f"{path} could not be made durable ({e.strerror}). "
                "Check the disk, then reopen the store: it keeps what was flushed before."
            ) from e

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        self.event("sync_folder", path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as e:
            raise FlushFailedError(
                f"{path} could not be made durable ({e.strerror}). Check the disk, then reopen."
            ) from e
        finally:
            os.close(fd)

    def write_at(self, fd: int, data: bytes | Bytes, at: int, path: Path) -> None:
        """Write all of `data` at a position of an open file."""
        self.event("write", path)
        view = memoryview(data)  # type: ignore[arg-type]
        while len(view):
            try:
                written = os.pwrite(fd, view, at)
            except OSError as e:
                raise self.full(e, path) from e
            view, at = view[written:], at + written

    def replace(self, path: Path, data: bytes) -> None:
        """Replace a small file so that at any moment either the old or the new content is there."""
        self.event("replace", path)
        temporary = path.with_name(path.name + ".tmp")
        fd = self.open_file(temporary, create=True)
        try:
            os.ftruncate(fd, 0)
            self.write_at(fd, data, 0, temporary)
            self.sync(fd, temporary)
        finally:
            os.close(fd)
        temporary.rename(path)
        self.sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self.event("remove", path)
        path.unlink(missing_ok=True)


def _has_content(fd: int) -> bool:
    """Tell whether an open file holds anything but zeros."""
    at = 0
    while chunk := os.pread(fd, 1 << 20, at):
        if chunk.strip(b"\0"):
            return True
        at += len(chunk)
    return False
