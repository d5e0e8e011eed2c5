"""How Python comes to call a kernel: its machine code in memory, and a built-in function of it.

The machine code is a wheel's (`packaged.py`), else it comes from the cache (`cachefolder.py`), else
it is compiled (`linking.py`). Either way it is one kind of object file, with one kind of entry
(`packedentry.py`): a wheel has them linked into a library, elsewhere LLVM links each in memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, get_type_hints

import numpy as np

from timerstore.jit import cachefolder
from timerstore.jit.cachefolder import content_of
from timerstore.jit.guards import RLock, apart
from timerstore.jit.later import Instruction, compiler, told
from timerstore.jit.numpylayout import layout_holds
from timerstore.jit.packaged import packaged

# --- The digest of what a kernel sees: when it changes, the kernel must be compiled anew.
#
# A kernel's machine code depends on its types, on its own instructions, on the constants and
# helpers that these name, wherever they are declared, and so on down. That is what is walked here.
# Code generators (intrinsics, records, CRC) count with the whole text of their files.

_GENERATORS: Final = (
    "codegen.py",
    "crc.py",
    "crcfold.py",
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


# --- From machine code to what Python calls.

_FAST_CALL: Final = 0x80 | 0x2  # METH_FASTCALL | METH_KEYWORDS
_one_at_a_time: Final = RLock()

COMPILED: Final[list[str]] = []
"""The kernels that this process has compiled."""


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def entry_of(kernel: Any, otherwise: Callable[..., Any]) -> Any:
    """Return what calls a kernel with arguments of its types; others go to `otherwise`."""
    with told():
        _check_layout()
        library = packaged()
        if library is not None and kernel.name in library:
            address = library.address_of(kernel.name)
        else:  # LLVM takes a lock in Python
            address = apart(partial(_address_of, kernel))
    method = _Method(kernel.name.encode(), address, _FAST_CALL, None)
    # CPython looks at it even when the function goes, which may be the last thing at exit.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))
    make: Any = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return make(ctypes.addressof(method), otherwise, None)


@cache
def _check_layout() -> None:
    if not layout_holds():
        raise ImportError("this Python or NumPy lays out objects in another way")


def is_compiled(kernel: Any) -> bool:
    """Tell whether a kernel need not be compiled."""
    return is_packaged(kernel) or cachefolder.read(_symbol_of(kernel)) is not None


def file_in_cache(kernel: Any) -> tuple[str, bytes] | None:
    """Return the name and content of a kernel's file in a cache; None if it is in a wheel.

    Raises OSError if it is in neither.
    """
    if is_packaged(kernel):
        return None
    symbol = _symbol_of(kernel)
    content = cachefolder.content_in_cache(symbol)
    if content is None:
        raise FileNotFoundError(f"{kernel.name} is in no cache: set {cachefolder.SWITCH}")
    return cachefolder.file_name(symbol), content


def is_packaged(kernel: Any) -> bool:
    """Tell whether a wheel brings a kernel's machine code."""
    library = packaged()
    return library is not None and kernel.name in library


def _address_of(kernel: Any) -> int:
    with _one_at_a_time.guard():
        symbol = _symbol_of(kernel)
        code = cachefolder.read(symbol)
        if code is None:
            code = compiler("linking").compiled(kernel, symbol)
            COMPILED.append(kernel.name)
            cachefolder.keep(symbol, code)
        address: int = compiler("llvm_engine").load(symbol, code)
        return address


@cache
def _symbol_of(kernel: Any) -> str:
    """Return the name of a kernel's machine code: it has a digest of all that decides it."""
    parts = (
        stamp_of(kernel.py_func),
        kernel.keeps_gil,
        sys.implementation.cache_tag,
        compiler("llvm_engine").target(),
    )
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    return f"{kernel.name[-150:]}-{digest}"
