"""The decorator that compiles a kernel.

A kernel is a function of arrays and integers that Numba compiles; it runs without the GIL and its
machine code is cached on disk. Numba notices a change in the kernel's own file alone, so a constant
or a helper imported from elsewhere would stay stale in the cache. Here the cache is stamped with a
digest over all kernel sources instead: change one, and every kernel is compiled anew. That lets
each byte layout be declared once, in `format.py`, and be used everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import types

F = TypeVar("F", bound=Callable[..., Any])

INTERPRETED: bool = bool(numba.config.DISABLE_JIT)
"""True under NUMBA_DISABLE_JIT=1: kernels and intrinsics run as plain Python."""


@cache
def source_stamp() -> str:
    """Return a digest over the sources of timelog, wheel and services."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    folders = {here, here.parent / "wheel", here.parent / "services"}
    for folder in sorted(folders):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


# Kernels divide by sizes that are never 0, and allocate nothing: no checks, no reference counts.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: F) -> F:
    """Compile a kernel that Python calls; it is cached and needs no GIL."""
    if INTERPRETED:
        return function
    return stamped(numba.njit(cache=True, **_OPTIONS)(function), function)


def stamped(dispatcher: Any, function: Callable[..., Any]) -> Any:
    """Make a dispatcher's cache notice changes in any kernel source."""
    # These are internals of Numba. Without them the cache only loses its notice of changes in
    # other files, which concerns those who edit kernels.
    cache_file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if cache_file is not None and hasattr(cache_file, "_source_stamp"):
        own = Path(function.__code__.co_filename).read_bytes()  # a test's kernel stands elsewhere
        cache_file._source_stamp = source_stamp() + hashlib.sha256(own).hexdigest()
    return dispatcher


def inlined(function: F, **options: Any) -> F:
    """Compile a helper that kernels alone call; it is part of their machine code."""
    if INTERPRETED:
        return function
    options = _OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} | options
    return _without_literals(numba.njit(**options)(function))


def _without_literals(dispatcher: Any) -> Any:
    """Make a helper be compiled once for each set of types.

    Numba would compile it anew for each constant argument, and once more for each variable that
    begins as a constant; LLVM sees the constants anyway when it inlines the helper.
    """
    get_call_template = dispatcher.get_call_template

    def call_template(args: Any, kws: Any) -> Any:
        return get_call_template(
            tuple(types.unliteral(each) for each in args),
            {name: types.unliteral(each) for name, each in dict(kws).items()},
        )

    dispatcher.get_call_template = call_template
    return dispatcher


def inlined_view(function: F) -> F:
    """Compile a helper that returns an array; Numba wants reference counts on for that."""
    return inlined(function, _nrt=True)
