"""How Python comes to call a kernel: its machine code in memory, and a built-in function of it.

The machine code is a wheel's (`packaged.py`), else it comes from the cache (`cachefolder.py`), else
it is compiled (`building.py`). Either way it is one kind of object file, with one kind of entry
(`packedentry.py`): a wheel has them linked into a library, elsewhere LLVM links each in memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

from timerstore.jit import cachefolder
from timerstore.jit.guards import RLock, apart
from timerstore.jit.later import compiler, told
from timerstore.jit.numpylayout import layout_holds
from timerstore.jit.packaged import packaged
from timerstore.jit.stamp import stamp_of

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
    make.restype, make.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p],
    )
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
            code = compiler("building").compiled(kernel, symbol)
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
