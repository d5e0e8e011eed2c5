"""The folders in which the machine code of kernels is cached.

That is the one that NUMBA_CACHE_DIR names. Without it: `kernels` within the package, then one in
the user's cache. Code is read from whichever has it, so an image or a zip archive that cannot be
written serves as well, and is written to the first that can be. A file's name has a digest of all
that decides the code, so it is never out of date; before the code stands a checksum. What lies
there is run. If there is no folder, each process compiles anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any, Final
from zipimport import zipimporter

# --- Where this package is installed: a folder, or a zip archive.

PACKAGE: Final = str(Path(os.path.abspath(__file__)).parents[1])
IN_ARCHIVE: Final = not os.path.isdir(PACKAGE)
"""Whether the package was imported from a zip archive."""

_LOADER: Any = __spec__.loader
# A Spark worker names the archive by a relative path.
_FOLDER: Final = os.getcwd() if IN_ARCHIVE else ""
_READER: Any = zipimporter(os.path.abspath(_LOADER.archive)) if IN_ARCHIVE else _LOADER


def content_of(path: str) -> bytes:
    """Return the content of a file, also of one in the archive that the package is in."""
    if IN_ARCHIVE:
        path = os.path.normpath(os.path.join(_FOLDER, path))
    data: bytes = _READER.get_data(path)
    return data


log = logging.getLogger("timerstore")

SWITCH: Final = "NUMBA_CACHE_DIR"
FOLDER: Final = "kernels"
_KEPT: Final = 8
"""Files of one kernel: of other Pythons, processors, sources."""
_DIGEST_BYTES: Final = 32


def read(symbol: str) -> bytes | None:
    """Return the machine code of that name; None if no folder has it whole."""
    content = content_in_cache(symbol)
    return None if content is None else content[_DIGEST_BYTES:]


def content_in_cache(symbol: str) -> bytes | None:
    """Return what the file has that `file_name` names; None if no folder has it whole."""
    for folder in _folders():
        try:
            content = content_of(os.path.join(folder, file_name(symbol)))
        except OSError:
            continue
        if hashlib.sha256(content[_DIGEST_BYTES:]).digest() == content[:_DIGEST_BYTES]:
            return content
    return None


def file_name(symbol: str) -> str:
    """Return the name of the file of a kernel's machine code."""
    return f"{symbol}.o"


def keep(symbol: str, code: bytes) -> None:
    """Keep machine code for the next process; if it cannot be written, go on without."""
    folder = folder_to_write()
    if folder is None:
        return
    path = os.path.join(folder, file_name(symbol))
    try:
        with open(f"{path}.{os.getpid()}", "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(file.name, path)
        name = symbol.rpartition("-")[0]
        files = sorted(Path(folder).glob(f"{name}-*"), key=lambda file: -file.stat().st_mtime)
        for old in files[_KEPT:]:
            old.unlink(missing_ok=True)
    except FileNotFoundError:  # another process has removed one
        pass
    except OSError as e:
        _tell(f"a compiled kernel could not be stored in {folder} ({e.strerror or e})")


@cache
def folder_to_write() -> str | None:
    """Return the folder for what is compiled, made if needed; None if there is none.

    A line in the log says so.
    """
    import tempfile  # what is compiled already needs none

    reason = ""
    for folder in _folders():
        try:
            os.makedirs(folder, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            return folder
        except OSError as e:
            reason = e.strerror or str(e)
    _tell(f"no folder in which kernels could be cached can be written ({reason})")
    return None


@cache
def _folders() -> list[str]:
    own = os.path.join(PACKAGE, FOLDER)
    chosen = os.environ.get(SWITCH)
    if chosen:
        return [own] * IN_ARCHIVE + [os.path.abspath(chosen)]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [own, os.path.join(home, "timerstore", FOLDER)]


def has_failed() -> bool:
    """Tell whether something could not be kept."""
    return bool(_told)


_told: Final[list[str]] = []


def _tell(what: str) -> None:
    if _told:
        return
    _told.append(what)
    log.warning(
        "%s, so each process compiles the kernels again. Make room, or set %s to a folder that can "
        "be written.",
        what,
        SWITCH,
    )
