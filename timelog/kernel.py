"""The decorator that compiles a kernel.

A kernel is a function of arrays and integers that Numba compiles; it runs without the GIL and its
machine code is cached on disk, under a digest of what the kernel sees (`timelog/stamp.py`). So each
byte layout can be declared once, in `format.py`, and be used everywhere; an edit compiles anew what
depends on it, and a comment nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba import types
from numba.core.ccallback import CFunc

from timerstore.timelog.linking import HelperCompiler, KernelCompiler
from timerstore.timelog.stamp import use_stamp

F = TypeVar("F", bound=Callable[..., Any])

INTERPRETED: bool = bool(numba.config.DISABLE_JIT)
"""True under NUMBA_DISABLE_JIT=1: kernels and intrinsics run as plain Python."""


# Kernels divide by sizes that are never 0, and allocate nothing: no checks, no reference counts.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: F) -> F:
    """Compile a kernel that Python calls; it is cached and needs no GIL."""
    return _kernel(function, _OPTIONS)


def kernel_with_gil(function: F) -> F:
    """Compile a kernel that keeps the GIL; it is cached. It must not wait for who needs the GIL."""
    return _kernel(function, _OPTIONS | {"nogil": False})


def _kernel(function: F, options: dict[str, Any]) -> F:
    if INTERPRETED:
        return function
    made = numba.njit(cache=True, pipeline_class=KernelCompiler, **options)(function)
    return stamped(made, function)


def stamped(dispatcher: Any, function: Callable[..., Any]) -> Any:
    """Make a dispatcher's cache notice changes in whatever its kernel sees."""
    use_stamp(dispatcher, function)
    return dispatcher


def c_function(function: Callable[..., Any], signature: Any) -> Any:
    """Compile a function that C can call; `address` is where it stands. It is cached."""
    options = {name: value for name, value in _OPTIONS.items() if name != "nogil"}
    made = CFunc(function, (signature.args, signature.return_type), {}, options, KernelCompiler)
    made.enable_caching()
    stamped(made, function)
    made.compile()
    return made


def inlined(function: F, **options: Any) -> F:
    """Compile a helper that kernels alone call; it is part of their machine code."""
    if INTERPRETED:
        return function
    options = _OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} | options
    made = numba.njit(pipeline_class=HelperCompiler, **options)(function)
    return _without_literals(made)


def inlined_always(function: F) -> F:
    """Compile a helper into the machine code of every caller, however long it is.

    For what passes arrays on to other helpers. A call stores an array's seven words one by one, and
    to pass it on they are loaded in pairs, which waits for all stores before to reach the cache.
    """
    return inlined(function, forceinline=True)


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
