"""The digest of what a kernel sees: when it changes, the kernel must be compiled anew.

A kernel's machine code depends on its types, on its own instructions, on the constants and
helpers that these name, wherever they are declared, and so on down. That is what is walked here.
Code generators (intrinsics, records, CRC) count with the whole text of their files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, get_type_hints

import numpy as np

from timerstore.jit.cachefolder import content_of
from timerstore.jit.later import Instruction

_GENERATORS: Final = (
    "building.py",
    "codegen.py",
    "crc.py",
    "crcfold.py",
    "linking.py",
    "intrinsics.py",
    "linking.py",
    "numpylayout.py",
    "packedentry.py",
    "record.py",
    "recordtype.py",
)
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
    digest.update("".join(_said_types(function)).encode())
    for part in _parts(function):
        digest.update(part)
    return digest.hexdigest()


def _said_types(function: Callable[..., Any]) -> Iterator[str]:
    """Yield a text for each type that annotations say: a record's has a digest of its fields."""
    for name, hint in get_type_hints(function, include_extras=True).items():
        if hasattr(hint, "layout"):
            yield f"{name}:{hint.layout};"
        elif hasattr(hint, "_fields"):
            yield from (f"{name}({hint.__qualname__}:", *_said_types(hint), ");")
        else:
            yield f"{name}:{hint!r};"


def reach_bytes(function: Callable[..., Any]) -> int:
    """Return how much code a function reaches: about as long takes compiling it."""
    return sum(map(len, _parts(function)))


def _parts(function: Callable[..., Any]) -> Iterator[bytes]:
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", function)]
    while waiting:
        name, value = waiting.pop()
        python = getattr(value, "py_func", value)
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
        return b"", []
    text = repr(function.__defaults__).encode() + b"".join(_instructions(code))
    return text, named_by(function)


def _instructions(code: CodeType) -> Iterator[bytes]:
    """Yield what a code object does, without its place in the source."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
        elif constant is not code.co_consts[0] or not isinstance(constant, str):  # a docstring
            yield repr(sorted(constant) if isinstance(constant, frozenset) else constant).encode()


def named_by(function: FunctionType) -> list[tuple[str, Any]]:
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
    """Yield what a function took from its surroundings: `record_at` its record, say."""
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
    if isinstance(value, Instruction):
        return repr(value)
    if hasattr(value, "_fields"):
        return f"{value.__qualname__}{value._fields}"
    if hasattr(value, "layout"):
        return str(value.layout)
    return str(getattr(value, "__qualname__", getattr(value, "__name__", type(value).__name__)))
