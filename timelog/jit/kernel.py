"""The decorator that compiles a kernel.

A kernel is a function of arrays and integers that Numba compiles; it runs without the GIL and its
machine code is cached on disk, under a digest of what the kernel sees (`timelog/jit/stamp.py`). So
each byte layout can be declared once, in `format.py`, and be used everywhere; an edit compiles anew
what depends on it, and a comment nothing. Nothing here imports Numba, see `later.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

from timerstore.timelog.jit.later import Function, Kernel, compiler

F = TypeVar("F", bound=Callable[..., Any])

INTERPRETED: Final = os.environ.get("NUMBA_DISABLE_JIT", "0").strip() not in ("", "0")
"""True under NUMBA_DISABLE_JIT=1: kernels and intrinsics run as plain Python."""


class Ahead(NamedTuple):
    """A kernel that is made ready before anyone calls it."""

    name: str
    function: Callable[..., Any]
    load: Callable[[], object]
    """Loads its machine code from the cache, or compiles it; does nothing the second time."""
    dispatcher: Kernel | None = None


AHEAD: Final[list[Ahead]] = []
"""Those of all modules that were imported."""

LATER: Final[list[Ahead]] = []
"""Those that few programs call: compiled with the others, loaded when one is first called."""


def is_cached(kernel: Ahead) -> bool:
    """Tell whether a kernel's machine code need not be compiled; True if nobody can tell."""
    known = kernel.dispatcher
    return known is None or known.is_packaged or bool(compiler("dispatchers").is_cached(known))


def may_be_cached(kernel: Ahead) -> bool:
    """Tell whether there is a folder to keep a kernel's machine code in."""
    known = kernel.dispatcher
    return known is None or known.is_packaged or bool(compiler("dispatchers").may_be_cached(known))


def kernel(function: F) -> F:
    """Compile a kernel that Python calls, when it is first called; it is cached, needs no GIL."""
    return function if INTERPRETED else cast(F, Kernel(function))


def kernel_ahead(function: F) -> F:
    """Compile a kernel that Python calls, before it is called: its annotations say the types."""
    made = kernel(function)
    load_ahead(function, made)
    return made


def kernel_later(function: F) -> F:
    """Compile a kernel that Python calls with the others, and load it when it is first called.

    It is for code that few programs run: opening after a crash, mending, looking at a store from
    outside.
    """
    made = kernel(function)
    load_ahead(function, made, kernels=LATER)
    return made


def kernel_with_gil(function: F) -> F:
    """Compile a kernel that keeps the GIL. It must not wait for who needs the GIL."""
    return function if INTERPRETED else cast(F, Kernel(function, keeps_gil=True))


def load_ahead(function: Callable[..., Any], dispatcher: Any, kernels: list[Ahead] = AHEAD) -> None:
    """Have the machine code of `function` at hand before anyone needs it."""
    if not INTERPRETED:
        name = f"{function.__module__}.{function.__qualname__}"
        kernels.append(Ahead(name, function, dispatcher.load, dispatcher))


def inlined(function: F, **options: Any) -> F:
    """Compile a helper that only kernels call; it is part of their machine code."""
    if INTERPRETED:
        return function
    return cast(F, Function("dispatchers.helper", function, **options))


def inlined_always(function: F) -> F:
    """Compile a helper into the machine code of every caller, however long it is.

    It is for code that passes arrays on to other helpers. A call stores an array's seven words one
    by one, and to pass it on they are loaded in pairs, which waits for all stores before to reach
    the cache.
    """
    return inlined(function, forceinline=True)


def inlined_view(function: F) -> F:
    """Compile a helper that returns an array; Numba wants reference counts on for that."""
    return inlined(function, _nrt=True)
