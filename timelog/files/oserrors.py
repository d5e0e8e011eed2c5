"""What the operating system refuses, told as an error of ours that says what to do."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from timerstore.errors import (
    FlushFailedError,
    MissingFileError,
    NotAStoreError,
    StoreAccessError,
    StoreFullError,
    TimerStoreError,
)

P = ParamSpec("P")
R = TypeVar("R")
_WRONG_KIND: Final = frozenset(
    (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENXIO, errno.ENODEV, errno.ESPIPE)
)
_REFUSED: Final = {
    errno.EROFS: "lies on a read-only file system. Mount it writable, or look at the store with "
    "read_only=True",
    errno.EACCES: "may not be used by this user. Change its rights, or run as its owner",
    errno.EPERM: "may not be used by this user. Change its rights, or run as its owner",
    errno.ENAMETOOLONG: "has too long a name. Use a shorter path",
}


def store_error(error: OSError, path: str | os.PathLike[str]) -> TimerStoreError:
    """Return the error of ours that an error of the operating system means, about a file."""
    if isinstance(error, TimerStoreError):
        return error
    name = os.fspath(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFullError(f"There is no space left for {name}. Free some, then try again.")
    if error.errno == errno.EFBIG:
        return StoreFullError(
            f"{name} would become larger than a file may be. Raise the limit of file sizes "
            "(`ulimit -f`), or use another file system."
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreFullError(
            f"{name} could not be opened, because too many files are open. Raise the limit "
            "(`ulimit -n`), or close files."
        )
    if error.errno == errno.ENOMEM:
        addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
        if addresses != resource.RLIM_INFINITY:
            return StoreFullError(
                f"The address space of this process, {addresses >> 20:,} MiB, has no room left for "
                f"{name}. A store reserves an eighth of the addresses, and 2 GB beside; it takes "
                "little of that as memory. Raise the limit (`ulimit -v`)."
            )
        return StoreFullError(
            f"{name} could not be mapped, because memory is short or the process has too many "
            "mappings. Free memory, raise vm.max_map_count, or use fewer topics in one process."
        )
    if error.errno == errno.ELOOP:
        return NotAStoreError(f"{name} is a symbolic link. Replace it with a file.")
    if error.errno in _WRONG_KIND:
        wrong = _wrong_part(Path(name))
        return NotAStoreError(
            f"{wrong} is {kind_of(_mode(wrong))}, which does not belong in a store. Move it away."
        )
    if error.errno == errno.EIO:
        return FlushFailedError(f"{name} could not be read or written. Check the disk.")
    if error.errno == errno.ENOENT:
        missing = MissingFileError(
            f"{name} is missing. Check the name. If it is a store's file, put it back, or open a "
            "whole copy of the store."
        )
        missing.errno = error.errno
        return missing
    reason = _REFUSED.get(error.errno or 0)
    if reason is None:
        reason = f"could not be used: {error.strerror or error}. Check it, then try again"
    refused = StoreAccessError(f"{name} {reason}.")
    refused.errno = error.errno
    return refused


def _wrong_part(path: Path) -> Path:
    """Return the part of a path that is no folder though others lie below it, or the path."""
    return next((each for each in reversed(path.parents) if each.is_file()), path)


@contextmanager
def told_of(path: Any) -> Iterator[None]:
    """Turn what the operating system refuses within the block into an error of ours.

    If the reader of the output has gone, the code that writes handles that.
    """
    try:
        yield
    except (TimerStoreError, BrokenPipeError):
        raise
    except OSError as e:
        raise error_about(e, path) from e


def error_about(error: OSError, path: Any) -> TimerStoreError:
    """Return the error of ours that one of the operating system means, about the file it names.

    `path`: what it is about if it names none. A name in the folder of an open store is told whole.
    """
    for name in (error.filename2, error.filename):
        if isinstance(name, str | os.PathLike):
            folder = os.path.abspath(str(path))
            if os.path.isdir(folder) and not os.path.abspath(name).startswith(folder):
                name = os.path.join(folder, name)
            return store_error(error, name)
    return store_error(error, str(path))


def telling(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function whose first argument is a store's path in `told_of`."""

    @wraps(function)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        with told_of(args[0] if args else kwargs.get("path", "the store")):
            return function(*args, **kwargs)

    return told


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def kind_of(mode: int) -> str:
    """Return what has such a mode, in words for people; 0 is unknown."""
    if mode == 0:
        return "something"
    kinds = (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
    )
    return next((name for is_kind, name in kinds if is_kind(mode)), "no regular file")
