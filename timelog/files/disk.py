"""The one place through which bytes reach a disk.

Files are made, mapped, written, made durable, renamed and removed only here, so that a test can
watch every such step, or interrupt it, by overriding `Disk.event`. Mapped files are changed in
memory by kernels; `Disk.sync` is what makes those bytes durable.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from timerstore.errors import FlushFailedError, NotAStoreError, StoreFullError, TimerStoreError
from timerstore.jit import host
from timerstore.jit.mapping import (
    PAGE_BYTES,
    MapOwner,
    bytes_from,
    expect_random_reads,
    map_bytes,
    note_of_store,
    open_pages,
    read_ahead,
    release_pages,
    sync_mapping,
)
from timerstore.jit.record import Bytes
from timerstore.timelog.files.folders import FolderAlone, HeldFolder
from timerstore.timelog.files.names import INT64_MAX
from timerstore.timelog.files.oserrors import kind_of, store_error
from timerstore.timelog.files.reader_end import list_names, ranges_of, read_file
from timerstore.timelog.files.smallfile import open_at, status_at

_SYNC_RANGE_WRITE = 2
_RENAME_NOREPLACE = 1
_AT_CWD = -100
FILE_MODE = 0o600
FOLDER_MODE = 0o700
SPARE_BYTES = 1 << 20
"""A checkpoint with all small files fits into it many times over."""
SEGMENT_SIZES = "Open the store with the segment sizes with which it was made."


class WrongSizeError(NotAStoreError):
    """A file has another size than the store was made with."""

    def __init__(self, path: Path, size: int, expected: int, setting: str) -> None:
        """Name the file; `setting`: what to open the store with, if it is the setting's fault."""
        self.path, self.offset = path, min(size, expected)
        self.reason = f"the file has {size} bytes, but {expected} were expected"
        super().__init__(f"{path} has {size} bytes, but {expected} were expected. {setting}")


class MappedFile:
    """A file and its writable mapping.

    `pyarrow.memory_map` makes the mapping; its buffers are read-only for NumPy, so the writable
    view is made from a buffer's address, and owns the buffer, as does each view of it (see
    mapping.py). The buffer is of one byte: Arrow has the system read all of which it makes one, or
    8 MiB if a disk is set so, and after opening what is due first would wait for that. No
    descriptor is kept: there is a file for each topic, and a process may have 1,024 open. Arrow
    opens files by name alone: where there is no `/proc` that names an open file, the system is
    asked without Arrow.
    """

    owner: MapOwner
    """What all arrays over the bytes keep: as long as it lives, somebody may read them."""

    allocated_bytes = 0
    """So many bytes from its beginning on have their blocks, as far as this process knows. Zeros
    behind that may be a hole, which must not be written to."""

    def __init__(self, path: Path, fd: int, length: int) -> None:
        """Map `length` bytes of the open file `fd`, which may be closed then."""
        self.length, name = length, host.name_of(fd, path)
        if not host.PORTABLE and os.path.exists(name):
            with pa.memory_map(name, "r+") as mapped:
                buffer = mapped.read_buffer(1)
            self.owner = MapOwner(buffer, path)
            self.view: Bytes = bytes_from(buffer, length, self.owner)
        else:
            self.owner = MapOwner(None, path)
            self.view = map_bytes(fd, length, private=False, owner=self.owner)
        note_of_store(self.owner, self.view)

    @property
    def path(self) -> Path:
        """Whose bytes these are; a file that is renamed is told here."""
        assert self.owner.path is not None
        return self.owner.path

    @path.setter
    def path(self, path: Path) -> None:
        self.owner.path = path

    def unfault(self, start: int, stop: int) -> None:
        """Take whole pages in [start, stop) out of the page table; they stay in the page cache.

        Else fdatasync has to write-protect each one that is mapped, with an interrupt to the other
        processors for each: 213 against 105 ms for 256 MiB.
        """
        start, stop = -(-start // PAGE_BYTES) * PAGE_BYTES, stop // PAGE_BYTES * PAGE_BYTES
        if stop > start:
            release_pages(self.view[start:stop])

    def expect_random_reads(self) -> None:
        """Have a page that is missing read alone."""
        expect_random_reads(self.view)

    def sync(self) -> None:
        """Make the whole file durable; raises OSError."""
        sync_mapping(self.view)


class Zeros(MappedFile):
    """Zeros in the place of a file that is missing."""

    def __init__(self, path: Path, length: int) -> None:
        """Make `length` zeros, which take memory only if they are read."""
        self.length = self.allocated_bytes = length
        self.view: Bytes = np.zeros(length, np.uint8)
        self.owner = MapOwner(self.view, path)

    def unfault(self, start: int, stop: int) -> None:
        """Do nothing: there is no file behind it."""

    def sync(self) -> None:
        """Do nothing."""


class Disk:
    """The operating system's file calls that a store uses."""

    writes = True
    """False: nothing is written, and what is read may be another process's."""
    is_shared = False
    """True: another process may write to these files meanwhile."""
    doubts_damage = False
    """True: what looks like damage is looked at again first, because another process writes."""
    spare: Path | None = None
    """A file that keeps SPARE_BYTES of the disk; it is given up for what makes room elsewhere."""
    spare_bytes = 0
    change_count = 0
    """Grows whenever a segment takes blocks, or gives some back."""
    is_opening = False
    """True: what a store needs to open may take the spare file's room."""
    wait_for_log: Callable[[int], int] = staticmethod(lambda offset: INT64_MAX)
    """Returns how far the commit log can be read, once that is behind an offset: a restore may
    still be laying it down."""

    folder: HeldFolder | None = None
    """The store's folder, while it is open: its files are reached from there."""

    def __init__(self, folder: HeldFolder | None = None) -> None:
        """Reach files by their paths, or those of a folder from there."""
        self.folder = folder

    def event(self, kind: str, path: Path) -> None:
        """Do nothing; tests override this to watch or to interrupt."""

    def hold(self, path: Path) -> None:
        """Reach what lies in a folder by its descriptor from now on."""
        try:
            self.folder = HeldFolder(path)
        except OSError as e:
            raise self.full(e, path) from e

    def at(self, path: Path) -> tuple[str, int | None]:
        """Return a path as the system is to be asked for it; see `HeldFolder.at`."""
        folder = self.folder
        return (os.fspath(path), None) if folder is None else folder.at(path)

    def check_place(self) -> None:
        """Raise StoreAccessError if the store's folder is not where it was opened any more."""
        if self.folder is not None:
            self.folder.check_place()

    def status(self, path: Path) -> os.stat_result:
        """Return what the system knows of a file, or of a symbolic link; raises OSError."""
        return status_at(path, self.at)

    def mode(self, path: Path) -> int:
        """Return the mode of a file, or of a symbolic link; 0 if there is none."""
        try:
            return self.status(path).st_mode
        except FileNotFoundError:
            return 0
        except OSError as e:
            raise self.full(e, path) from e

    def exists(self, path: Path) -> bool:
        """Tell whether there is anything of that name."""
        return self.mode(path) != 0

    def make_folder(self, path: Path) -> None:
        """Create a folder (and its parents) for its owner only; it must not be a symbolic link."""
        mode = self.mode(path)
        if stat.S_ISLNK(mode):
            raise NotAStoreError(f"{path} is a symbolic link. Pass the folder that it points to.")
        if stat.S_ISDIR(mode):
            return
        try:
            self.event("mkdir", path)
            missing = [path]
            while not self.exists(missing[-1].parent):
                missing.append(missing[-1].parent)
            for folder in reversed(missing):
                name, above = self.at(folder)
                with suppress(FileExistsError):
                    os.mkdir(name, FOLDER_MODE, dir_fd=above)
                self.sync_folder(folder.parent)
        except OSError as e:
            raise self.full(e, path) from e

    def read(self, path: Path) -> bytes | None:
        """Return a small file's content; None if there is none."""
        return read_file(path, self.at)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a log's folder."""
        return list_names(folder, self.at)

    def block_bytes(self, path: Path) -> int:
        """Return how much of the disk a file takes; 0 if there is none."""
        try:
            return self.status(path).st_blocks * 512
        except OSError:  # it went meanwhile
            return 0

    def size(self, path: Path) -> int:
        """Return how many bytes a segment's file has."""
        try:
            return self.status(path).st_size
        except OSError as e:
            raise self.full(e, path) from e

    def open_file(self, path: Path, *, create: bool = False, is_new: bool = False) -> int:
        """Open a file to read and write, through no link; `is_new`: there must be none so far."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create or is_new else 0)
        flags |= os.O_EXCL if is_new else 0
        name, folder = self.at(path)
        try:
            return os.open(name, flags, FILE_MODE, dir_fd=folder)
        except OSError as e:
            raise self.full(e, path) from e

    def create_mapped(self, path: Path, length: int) -> MappedFile:
        """Create a zero-filled file without any block, and map it; see `allocate`.

        What an interrupted renaming left there loses its name: a reader may have it mapped.
        """
        fd = -1
        try:
            self.event("create", path)
            if self.exists(path):
                os.close(self.open_file(path))  # it refuses what is no file
                self.unlink(path)
            fd = self.open_file(path, is_new=True)
            os.ftruncate(fd, length)
            return MappedFile(path, fd, length)
        except OSError as e:
            if fd >= 0:
                self.unlink(path)
            raise self.full(e, path) from e
        finally:
            if fd >= 0:
                os.close(fd)

    def allocate(self, file: MappedFile, stop: int) -> None:
        """Allocate a file's blocks up to byte `stop`, which may then be written to.

        So a full disk is an error here, StoreFullError, and never a SIGBUS later. What has its
        blocks already stays as it is.
        """
        start = file.allocated_bytes
        if stop <= start:
            return
        fd = -1
        try:
            self.event("allocate", file.path)
            fd = self.open_file(file.path)
            self._allocate(fd, start, stop, file)
        except OSError as e:
            raise self.full(e, file.path) from e
        finally:
            if fd >= 0:
                os.close(fd)
        file.allocated_bytes = stop
        self.change_count += 1

    def _allocate(self, fd: int, start: int, stop: int, file: MappedFile) -> None:
        wanted_bytes = 0 if self.spare is None else SPARE_BYTES - self.spare_bytes
        try:
            # What fails half-way keeps what it got; a checkpoint is to find that room instead.
            if start and _free_bytes(fd) < stop - start + wanted_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.path))
            host.reserve(fd, start, stop - start)
        except OSError as e:
            # XFS wants room for blocks, too, that a file has from an earlier life. Were one of them
            # missing, the system would not open its page.
            has_blocks = stop < file.length and os.fstat(fd).st_blocks * 512 >= stop
            if e.errno != errno.ENOSPC or not (has_blocks or self.is_opening):
                raise
            if not has_blocks:
                if not self.give_up_spare():
                    raise
                host.reserve(fd, start, stop - start)
                self.keep_spare()

    def open_pages(self, file: MappedFile, start: int, stop: int) -> None:
        """Let bytes [start, stop) that have their blocks be written to now; see the mapping's.

        Raises StoreFullError, if the write would be a SIGBUS.
        """
        if file.allocated_bytes < file.length and stop > start:
            if not open_pages(file.view, start, stop - start):
                raise self.full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), file.path)

    def read_ahead(self, file: MappedFile, start: int, stop: int) -> None:
        """Have bytes [start, stop), page by page, in the page cache before they are written to."""
        read_ahead(file.view, start, stop - start)

    def map_existing(self, path: Path, length: int) -> MappedFile:
        """Map a file that must be exactly `length` bytes long.

        One that is shorter and all zeros was about to be made when a process ended; it is finished.
        """
        fd = self.open_file(path)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise NotAStoreError(
                    f"{path} is {kind_of(status.st_mode)}, but must be a file. Move it away."
                )
            if status.st_size > length or (status.st_size < length and _has_content(fd)):
                raise WrongSizeError(path, status.st_size, length, SEGMENT_SIZES)
            if status.st_size < length:
                os.ftruncate(fd, length)
            return MappedFile(path, fd, length)
        except OSError as e:
            raise self.full(e, path) from e
        finally:
            os.close(fd)

    def used_ranges(self, file: MappedFile) -> list[tuple[int, int]]:
        """Return the ranges of a mapped file that are no holes, which read as zeros.

        If files lie in memory, reading a hole through a map takes a page of it: on a full tmpfs
        that is a SIGBUS.
        """
        fd = self.open_file(file.path)
        try:
            return list(ranges_of(fd, 0, file.length))
        finally:
            os.close(fd)

    def full(self, error: OSError, path: Path) -> Exception:
        """Return the error to raise if allocating or writing failed."""
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and self.folder is not None:
            try:
                self.check_place()
            except TimerStoreError as e:
                return e
        if error.errno is None and "mapping" in str(error):  # Arrow does not say why
            error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return store_error(error, path)

    def sync(self, file: MappedFile | int, path: Path) -> None:
        """Make everything written to a file durable; a failure is final, see FlushFailedError."""
        try:
            self.event("sync", path)
            if isinstance(file, int):
                host.sync_data(file)
            else:
                file.sync()
        except OSError as e:
            raise FlushFailedError(
                f"{path} could not be made durable ({e.strerror}). Check the disk, then open the "
                "store again: it keeps what was flushed before."
            ) from e

    def begin_writing(self, fd: int, start: int, count: int) -> None:
        """Have the disk begin to write a range of a file; nothing is durable before `sync`.

        A sync at the end would else find all of it still to be written: 1.4 against 0.8 s of
        628 MB that were laid down.
        """
        if host.SYNC_RANGE is not None:
            begin, length = ctypes.c_int64(start), ctypes.c_int64(count)
            host.SYNC_RANGE(fd, begin, length, ctypes.c_uint(_SYNC_RANGE_WRITE))

    def renew(self, path: Path) -> None:
        """Make a file as young as if it were written now, durably; no byte of it changes."""
        try:
            fd = open_at(path, self.at)
        except OSError as e:
            raise self.full(e, path) from e
        try:
            self.event("renew", path)
            os.utime(fd)
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable.

        Raises StoreFullError if no descriptor is left: then nothing is lost, and it can be tried
        again.
        """
        try:
            name, folder = self.at(path)
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        except OSError as e:
            raise self.full(e, path) from e
        try:
            self.event("sync_folder", path)
            os.fsync(fd)
        except OSError as e:
            raise FlushFailedError(
                f"{path} could not be made durable ({e.strerror}). Check the disk, then open the "
                "store again."
            ) from e
        finally:
            os.close(fd)

    def find_spare(self, path: Path) -> None:
        """Say which file is the spare one; it may be there."""
        self.spare, self.spare_bytes = path, 0
        if stat.S_ISREG(self.mode(path)):
            self.spare_bytes = self.size(path)
            if _free_bytes(path) < SPARE_BYTES:
                self.give_up_spare()  # opening needs it, if only to read holes: see `used_ranges`

    def keep_spare(self) -> None:
        """Take SPARE_BYTES of the disk for when nothing else is left, or as much as there is."""
        if self.spare is None or self.spare_bytes >= SPARE_BYTES:
            return
        try:
            fd = self.open_file(self.spare, create=True)
        except (OSError, TimerStoreError):  # it is kept if that is possible
            return
        try:
            size = SPARE_BYTES
            while size > max(self.spare_bytes, PAGE_BYTES):
                try:
                    host.reserve(fd, 0, size)
                    self.spare_bytes = size
                except OSError:
                    os.ftruncate(fd, self.spare_bytes)
                    size //= 2
        finally:
            os.close(fd)

    def give_up_spare(self) -> bool:
        """Give the room back that `keep_spare` took; False if there was none."""
        if self.spare is None or not self.spare_bytes:
            return False
        self.spare_bytes = 0
        self.unlink(self.spare)
        return True

    def write_at(self, fd: int, data: bytes | Bytes, at: int, path: Path) -> None:
        """Write all of `data` at a position of an open file."""
        view = memoryview(data)  # type: ignore[arg-type]
        try:
            self.event("write", path)
            while len(view):
                try:
                    written = os.pwrite(fd, view, at)
                except OSError as e:
                    if e.errno != errno.ENOSPC or not self.give_up_spare():
                        raise
                    written = os.pwrite(fd, view, at)
                    self.keep_spare()
                view, at = view[written:], at + written
        except OSError as e:
            raise self.full(e, path) from e

    def replace(self, path: Path, data: bytes, temporary: Path | None = None) -> None:
        """Replace a small file so that at any moment either the old or the new content is there.

        `temporary`: the name that it is written under, if others may write that file as well.
        """
        temporary = temporary or path.with_name(path.name + ".tmp")
        try:
            self._replace(path, data, temporary)
        except StoreFullError:
            if not self.give_up_spare():
                raise
            self._replace(path, data, temporary)
            self.keep_spare()

    def _replace(self, path: Path, data: bytes, temporary: Path) -> None:
        try:
            self.event("replace", path)
            fd = self.open_file(temporary, create=True)
            try:
                os.ftruncate(fd, 0)
                self.write_at(fd, data, 0, temporary)
                self.sync(fd, temporary)
            finally:
                os.close(fd)
            (before, folder), (after, _) = self.at(temporary), self.at(path)
            os.rename(before, after, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as e:
            raise self.full(e, path) from e
        self.sync_folder(path.parent)

    def take_over(self, path: Path, name: Path) -> bool:
        """Give a log's file another name in its folder, durably on return.

        False, and nothing has changed, if somebody else may look into it, there is such a name
        already, or the file system cannot do it in one step. Raises StoreFullError,
        FlushFailedError.
        """
        with FolderAlone(*self.at(path.parent)) as is_alone:
            if not is_alone:
                return False
            try:
                if not self._is_sole(path):
                    return False
                self.event("rename", path)
                if not self.rename(path, name):
                    return False
            except OSError as e:
                raise self.full(e, path) from e
        self.sync_folder(path.parent)
        return True

    def rename(self, path: Path, name: Path) -> bool:
        """Rename a file unless that name exists; False if it cannot be done."""
        if host.RENAME is None:
            return False
        (before, folder), (after, _) = self.at(path), self.at(name)
        at = _AT_CWD if folder is None else folder
        if not host.RENAME(at, os.fsencode(before), at, os.fsencode(after), _RENAME_NOREPLACE):
            return True
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
            raise OSError(code, os.strerror(code), str(path))
        return False

    def move(self, path: Path, name: Path) -> None:
        """Give a file another name, in any folder; durable once both folders are synced."""
        try:
            self.event("rename", path)
            (before, folder), (after, _) = self.at(path), self.at(name)
            os.rename(before, after, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as e:
            raise self.full(e, path) from e

    def remove(self, path: Path) -> None:
        """Remove a file."""
        try:
            self.event("remove", path)
            self.unlink(path)
            self.change_count += 1
            self.keep_spare()
        except OSError as e:  # also to remove takes room, if files are copied on write
            raise self.full(e, path) from e

    def unlink(self, path: Path) -> None:
        """Take a name away, if it is there; raises OSError."""
        name, folder = self.at(path)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)

    def _is_sole(self, path: Path) -> bool:
        """Tell whether a name is a file's only one."""
        try:
            status = self.status(path)
        except FileNotFoundError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _free_bytes(place: int | Path) -> int:
    """Return how many bytes a file system has left for the user of this process."""
    status = os.statvfs(place)
    return (status.f_bfree if os.geteuid() == 0 else status.f_bavail) * status.f_frsize


def _has_content(fd: int) -> bool:
    """Tell whether an open file holds anything but zeros."""
    at = 0
    while chunk := os.pread(fd, 1 << 20, at):
        if chunk.strip(b"\0"):
            return True
        at += len(chunk)
    return False
