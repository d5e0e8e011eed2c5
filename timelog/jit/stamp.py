"""The digest of what a kernel sees: when it changes, the kernel must be compiled anew.

Numba's cache notices a change in a kernel's own file alone, and any change there, a comment's too.
A kernel's machine code depends on less and on more: on its own instructions, on the constants and
helpers that these name, wherever they are declared, and so on down. That is what is walked here.
Code generators (intrinsics, records, CRC) count with the whole text of their files.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import numpy as np

from timerstore.timelog.jit.cachefolder import (
    IN_ARCHIVE,
    PACKAGE,
    add_locators,
    content_of,
    index_in,
    is_nowhere,
    tell_unwritten,
    without_cache,
)

_GENERATORS: Final = ("crc.py", "intrinsics.py", "kernel.py", "linking.py", "record.py")
_OTHERS: Final = ("numpy", "numba", "math")
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


@cache
def generators_digest() -> str:
    """Return a digest over the files whose functions generate machine code themselves."""
    digest = hashlib.sha256()
    for name in _GENERATORS:
        digest.update(content_of(str(Path(__file__).with_name(name))))
    return digest.hexdigest()


def stamp_of(function: Callable[..., Any]) -> str:
    """Return the digest of what a compiled `function` depends on. O(code that it reaches)."""
    digest = hashlib.sha256(generators_digest().encode())
    for part in _parts(function):
        digest.update(part)
    return digest.hexdigest()


def reach_bytes(function: Callable[..., Any]) -> int:
    """Return how much code a function reaches: about as long takes compiling it."""
    return sum(map(len, _parts(function)))


def _parts(function: Callable[..., Any]) -> Iterator[bytes]:
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", function)]
    while waiting:
        name, value = waiting.pop()
        python = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
        if isinstance(python, FunctionType):
            yield f"{name}:{python.__module__}.{python.__qualname__};".encode()
            if id(python) not in seen:
                seen.add(id(python))
                text, named = _of_itself(python)
                yield text
                waiting += named
        else:
            yield f"{name}={_text(value)};".encode()


@cache
def _of_itself(function: FunctionType) -> tuple[bytes, list[tuple[str, Any]]]:
    """Return what one function is, and what it names; most are reached by many kernels."""
    code = function.__code__
    if os.path.basename(code.co_filename) in _GENERATORS:
        return b"", [each for each in _enclosed(function) if hasattr(each[1], "numba_type")]
    text = repr(function.__defaults__).encode() + b"".join(_instructions(code))
    return text, _named(function)


def _instructions(code: CodeType) -> Iterator[bytes]:
    """Yield what a code object does, without where it stands."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
        elif constant is not code.co_consts[0] or not isinstance(constant, str):  # a docstring
            yield repr(sorted(constant) if isinstance(constant, frozenset) else constant).encode()


def _named(function: FunctionType) -> list[tuple[str, Any]]:
    """Return the globals and the closure's values that a function names, in a fixed order."""
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for module in [each for each in found.values() if isinstance(each, ModuleType)]:
        if module.__name__.partition(".")[0] not in _OTHERS:  # `needs.LOST` names `LOST` too
            found |= {name: vars(module)[name] for name in names if name in vars(module)}
    return sorted((found | dict(_enclosed(function))).items())


def _enclosed(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function took from where it was made: `record_at` its record, say."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


def _text(value: Any) -> str:
    """Return a text of a constant that is the same in every process."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple):
        return f"({','.join(map(_text, value))})"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if hasattr(value, "numba_type"):
        return str(value.numba_type)
    if hasattr(value, "symbol"):  # an external function
        return f"{value.symbol}{getattr(value, 'sig', '')}"
    return str(getattr(value, "__qualname__", getattr(value, "__name__", type(value).__name__)))


class _Stamped:
    """What a cache file becomes: its stamp is the kernel's, found when it is first asked for.

    Not when the kernel is decorated, for the helpers that stand below it are not known then.
    """

    kernel: Callable[..., Any]
    _cache_path: str
    _index_path: str

    def _load_index(self) -> Any:
        """Return what machine code there is; none where the list of it cannot be read.

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
        """Keep machine code for the next process; where it cannot be written, go on without."""
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
            setattr(cache_file, name, text.replace(line, line[line.rindex(".") :]))
    kind: Any = stamped_class(type(cache_file))
    stamped = dispatcher._cache._cache_file = kind.__new__(kind)
    vars(stamped).update(vars(cache_file), kernel=function)


add_locators()  # before the first kernel is made
