"""The file in which Numba caches a kernel's machine code, under the kernel's own digest."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from timerstore.timelog.jit.cachefolder import (
    START_KIND,
    add_locators,
    index_in,
    is_nowhere,
    tell_unwritten,
    without_cache,
)
from timerstore.timelog.jit.installed import IN_ARCHIVE, PACKAGE, content_of
from timerstore.timelog.jit.stamp import stamp_of


class _Stamped:
    """What a cache file becomes: its stamp is the kernel's, found when it is first asked for.

    Not when the kernel is decorated, because the helpers that stand below it are not known then.
    """

    kernel: Callable[..., Any]
    _cache_path: str
    _index_path: str

    def _load_index(self) -> Any:
        """Return what machine code there is; none if the list of it cannot be read.

        An earlier version of ours may have written it, whose records stood in other modules.
        """
        try:
            if not self._is_packed:
                return super()._load_index()  # type: ignore[misc]
            stamp, codes = index_in(content_of(self._index_path))
            return codes if stamp == self._source_stamp else {}
        except Exception:
            return {}

    def _load_data(self, name: str) -> Any:
        """Return machine code."""
        if not self._is_packed:
            return super()._load_data(name)  # type: ignore[misc]
        return pickle.loads(content_of(os.path.join(self._cache_path, name)))

    @property
    def _is_packed(self) -> bool:
        """Tell whether the machine code lies in the archive that the package is in."""
        return IN_ARCHIVE and os.path.abspath(self._cache_path).startswith(PACKAGE)

    def save(self, key: Any, data: Any) -> None:
        """Keep machine code for the next process; if it cannot be written, go on without."""
        try:
            super().save(key, data)  # type: ignore[misc]
        except OSError as e:
            tell_unwritten(self._cache_path, e)

    @property
    def _source_stamp(self) -> str:
        stamp = self.__dict__.get("stamp")
        if stamp is None:
            stamp = self.__dict__["stamp"] = stamp_of(self.kernel)
        return str(stamp)


_stamped_classes: dict[str, type] = {}


def stamped_class(plain: type) -> type:
    """Return the class of a cache file that knows stamps, made once for each of Numba's."""
    made = type("StampedCacheFile", (_Stamped, plain), {})
    return _stamped_classes.setdefault(plain.__qualname__, made)


def use_stamp(dispatcher: Any, function: Callable[..., Any]) -> None:
    """Make a dispatcher's cache depend on what its kernel sees.

    These are internals of Numba. Without them the cache only loses its notice of changes in other
    files, which concerns those who edit kernels.
    """
    if is_nowhere(getattr(dispatcher, "_cache", None)):
        without_cache(dispatcher)
        return
    cache_file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    names = ("_source_stamp", "_index_name", "_index_path", "_data_name_pattern", "_cache_path")
    if cache_file is None or not all(hasattr(cache_file, name) for name in names):
        return
    line = f"-{function.__code__.co_firstlineno}.py{sys.version_info[0]}{sys.version_info[1]}"
    if line in cache_file._index_name:  # else a line above the kernel would recompile it
        for name in ("_index_name", "_index_path", "_data_name_pattern"):
            text = getattr(cache_file, name)
            setattr(cache_file, name, text.replace(line, START_KIND + line[line.rindex(".") :]))
    kind: Any = stamped_class(type(cache_file))
    stamped = dispatcher._cache._cache_file = kind.__new__(kind)
    vars(stamped).update(vars(cache_file), kernel=function)


add_locators()  # before the first kernel is made
