"""Writing a file outside a store: it appears under its name once it is whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)
"""What a file system says that knows no files without a name."""
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
        fd = _open_unnamed(path.parent)
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


def _open_unnamed(folder: Path) -> int | None:
    """Return the descriptor of a file without a name; None if there can be none."""
    if not os.path.isdir(_DESCRIPTORS):
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError as e:
        if e.errno in _UNSUPPORTED:
            return None
        raise


def write_durably(path: Path, text: str) -> None:
    """Put `text` in the place of a file; durable on return."""
    with appearing(path) as file:
        file.write(text.encode())
