"""A store's folder, held by a descriptor: its files are made there, wherever it lies by now.

A folder may be moved, or replaced by another one, while a store is open; a program may change its
working directory. So files are reached relative to the descriptor, and never by the path again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from timerstore.errors import NotAStoreError, StoreAccessError
from timerstore.jit.host import FOLDER_ONLY
from timerstore.timelog.files.oserrors import store_error

_FLAGS: Final = FOLDER_ONLY | os.O_DIRECTORY | os.O_CLOEXEC


class HeldFolder:
    """A folder and its descriptor, which is closed with the last reference."""

    fd = -1

    def __init__(self, path: Path, *, follows: bool = False) -> None:
        """Take hold of a folder; raises OSError if it is none, or a link and not `follows`."""
        self.path, self._name, self._prefix = path, os.fspath(path), os.path.join(path, "")
        self._absolute = path.absolute()  # a `..` stays: behind a link it leads elsewhere
        self.fd = os.open(path, _FLAGS if follows else _FLAGS | os.O_NOFOLLOW)
        self._identity = _identity(os.fstat(self.fd))

    def __del__(self) -> None:
        """Close the descriptor."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def at(self, path: Path) -> tuple[str, int | None]:
        """Return a path as the system is to be asked for it: a name, and a folder's descriptor."""
        name = os.fspath(path)
        if name.startswith(self._prefix):
            return name[len(self._prefix) :], self.fd
        return (".", self.fd) if name == self._name else (name, None)

    def is_in_place(self) -> bool:
        """Tell whether its path still leads to it."""
        try:
            return _identity(os.stat(self._absolute)) == self._identity
        except OSError:
            return False

    def check_place(self) -> None:
        """Raise StoreAccessError if its path does not lead to it any more."""
        if not self.is_in_place():
            raise StoreAccessError(
                f"{self.path} was moved, removed or replaced while the store was open, so the "
                "store has stopped. What was acknowledged is in the folder that was opened: open "
                "the store where that lies now."
            )


def hold_to_read(path: Path) -> HeldFolder:
    """Return a store's folder, held; raises NotAStoreError if there is none."""
    try:
        return HeldFolder(path, follows=True)
    except (FileNotFoundError, NotADirectoryError):
        raise no_store(path) from None
    except OSError as e:
        raise store_error(e, path) from e


def no_store(path: Path) -> NotAStoreError:
    """Return the error for a folder that is no store's."""
    return NotAStoreError(f"{path} holds no commit log. Pass the folder of a store.")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
