"""The folders in which kernels are cached if Numba's own choice would not do.

Numba takes the first that can be written of these: the one that NUMBA_CACHE_DIR names, one beside
the source, one in the user's home; else it refuses to make a kernel at all. So two places are
added, only for our files. It comes before all others if NUMBA_CACHE_DIR, or the package, cannot be
written, for example in an image or a zip archive, and kernels were compiled there for this kind of
processor. Behind all others: a folder below the system's temporary one. What lies there is run as
machine code, so it must be this user's own and open to nobody else. If there is none either,
kernels are compiled in each process anew.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import numba
import numba.core.caching as caching
from numba import config
from numba.core.registry import cpu_target

from timerstore.timelog.jit.installed import IN_ARCHIVE, PACKAGE, content_of

log = logging.getLogger("timerstore")

_NOWHERE: Final = os.path.join(os.devnull, "timerstore")
"""A folder that is none."""
START_KIND: Final = ".opt-2" if sys.flags.optimize > 1 else ""
"""A part of the names of cached files, as Python names its own: without docstrings a function has
other bytecode, so a start with -OO would take the place of what other starts compiled."""


@cache
def temporary_folder() -> str | None:
    """Return the folder, made if needed; None if there is no safe one. Told of once, in a line.

    It is kept for the next process, which would have to compile all of them again.
    """
    try:
        parent = tempfile.gettempdir()
        path = Path(parent, f"timerstore-{os.geteuid()}")
        path.mkdir(0o700, exist_ok=True)
        reason = _distrusted(path)
        if reason is None:
            tempfile.TemporaryFile(dir=path).close()
    except OSError as e:
        reason = e.strerror or str(e)
    if reason is not None:
        log.warning(
            "each process compiles the kernels again, because no folder in which they could be "
            "cached can be written (%s). Set NUMBA_CACHE_DIR to a folder that can.",
            reason,
        )
        return None
    log.warning(
        "kernels are cached in %s, because neither the package's folder nor a home folder can be "
        "written. Set NUMBA_CACHE_DIR to choose another folder.",
        path,
    )
    return str(path)


def _distrusted(path: Path) -> str | None:
    """Return why another user could have put something into a folder, or None."""
    status, parent = path.lstat(), path.parent.stat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return f"{path} is not this user's"
    if status.st_mode & 0o077:
        return f"{path} is open to others"
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        return f"anybody may replace {path}"
    return None


class _Locator:
    """What Numba asks for the place in which a kernel is cached."""

    _cache_path = _NOWHERE

    def __init__(self, function: Any, file: str) -> None:
        self._py_file, self._lineno = file, function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        """Return the folder."""
        return self._cache_path

    def ensure_cache_path(self) -> None:
        """Do nothing: it is there."""

    def get_source_stamp(self) -> str:
        """Return what stands for the source: `jit/stamp.py` puts the kernel's own in place."""
        return hashlib.sha256(content_of(self._py_file)).hexdigest()

    def get_disambiguator(self) -> str:
        """Return what tells kernels of one name apart."""
        return str(self._lineno)


def _is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(PACKAGE + os.sep)


class WarmLocator(_Locator):
    """Asked before all others: a folder that cannot be written, and need not be."""

    @classmethod
    def from_function(cls, function: Any, file: str) -> WarmLocator | None:
        """Return the place of a kernel of ours that was compiled there; else None."""
        if not _is_ours(file):
            return None
        chosen = config.CACHE_DIR and not IN_ARCHIVE
        kind = "UserProvidedCacheLocator" if chosen else "InTreeCacheLocator"
        try:
            path = getattr(caching, kind)(function, file).get_cache_path()
        except (AttributeError, TypeError):  # another Numba's
            return None
        if os.access(path, os.W_OK) or not holds_file(path, index_name(function, file)):
            return None
        made = cls(function, file)
        made._cache_path = os.path.abspath(path)
        return made


def index_name(function: Any, file: str) -> str:
    """Return the file's name that says which machine code there is of a kernel."""
    name = f"{Path(file).stem}.{function.__qualname__}".replace("<", "").replace(">", "")
    return f"{name}{START_KIND}.py{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}.nbi"


def index_in(content: bytes) -> tuple[str, dict[Any, str]]:
    """Return the stamp of such a file, with which file has which machine code.

    It is laid out as Numba does it, and read here for Numba opens nothing in an archive. Another
    Numba's has none.
    """
    file = io.BytesIO(content)
    if pickle.load(file) != numba.__version__:
        return "", {}
    stamp, codes = pickle.load(file)
    return stamp, codes


def holds_file(folder: str, name: str) -> bool:
    """Tell whether there is machine code for this Numba on this processor."""
    try:
        _, codes = index_in(content_of(os.path.join(folder, name)))
        processor = cpu_target.target_context.codegen().magic_tuple()
        return any(processor in key for key in codes)
    except Exception:  # of any kind: it is nothing to be used
        return False


class LastLocator(_Locator):
    """Asked behind all others: the temporary folder."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        folder = temporary_folder()
        if folder is not None:
            place = os.path.dirname(os.path.abspath(file))
            digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]  # of each installation
            self._cache_path = os.path.join(folder, f"{os.path.basename(place)}-{digest}")

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        if self._cache_path != _NOWHERE:
            os.makedirs(self._cache_path, mode=0o700, exist_ok=True)

    @classmethod
    def from_function(cls, function: Any, file: str) -> LastLocator | None:
        """Return the place for a kernel of ours; None for anybody else's."""
        if not _is_ours(file):
            return None
        made = cls(function, file)
        try:
            made.ensure_cache_path()
        except OSError:
            made._cache_path = _NOWHERE
        return made


def add_locators() -> None:
    """Have Numba ask `WarmLocator` first, and `LastLocator` if it would refuse.

    These are internals of Numba. Without them it chooses and refuses as it always did.
    """
    impl = getattr(caching, "CacheImpl", None) or getattr(caching, "_CacheImpl", None)
    classes = getattr(impl, "_locator_classes", None)
    if isinstance(classes, list) and LastLocator not in classes:
        classes.insert(0, WarmLocator)
        classes.append(LastLocator)


def is_nowhere(made: Any) -> bool:
    """Tell whether a dispatcher's cache has no folder at all."""
    return getattr(made, "_cache_path", None) == _NOWHERE


def without_cache(dispatcher: Any) -> None:
    """Have a dispatcher keep nothing on disk."""
    dispatcher._cache = caching.NullCache()


def tell_unwritten(folder: str, error: OSError) -> None:
    """Log, once for each folder, that a compiled kernel could not be kept."""
    if folder not in unwritten_folders:
        unwritten_folders.add(folder)
        log.warning(
            "a compiled kernel could not be stored in %s (%s), so each process compiles it "
            "again. Make room there, or set NUMBA_CACHE_DIR.",
            folder,
            error.strerror or error,
        )


unwritten_folders: Final[set[str]] = set()
"""The folders in which a kernel could not be kept."""
