"""Writing a file outside a store: it appears under its name once it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from timerstore.jit.host import open_unnamed

_DESCRIPTORS: Final = "/proc/self/fd"


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of `path` when the block ends; durable on return.

    Until then it has no name, so that nothing is left if the process is killed. Where the system
    knows no such files it is called `.part`, and the next one overwrites it. Two fsyncs.
    """
    part = path.with_name(path.name + ".part")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = open_unnamed(path.parent) if os.path.isdir(_DESCRIPTORS) else None
        with part.open("wb") if fd is None else os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fd is not None:
                part.unlink(missing_ok=True)
                os.link(f"{_DESCRIPTORS}/{fd}", part, src_dir_fd=folder, follow_symlinks=True)
        part.replace(path)
        os.fsync(folder)
    finally:
        os.close(folder)
        part.unlink(missing_ok=True)


def sync(path: str | os.PathLike[str]) -> None:
    """Make a file, or a folder's names, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, text: str) -> None:
    """Put `text` in the place of a file; durable on return."""
    with appearing(path) as file:
        file.write(text.encode())
