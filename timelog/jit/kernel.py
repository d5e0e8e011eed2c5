"""The decorator that compiles a kernel.

A kernel is a function of arrays and integers that Numba compiles; it runs without the GIL and its
machine code is cached on disk, under a digest of what the kernel sees (`timelog/jit/stamp.py`). So
each byte layout can be declared once, in `format.py`, and be used everywhere; an edit compiles anew
what depends on it, and a comment nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import numba
from numba import types
from numba.core.caching import NullCache
from numba.core.ccallback import CFunc

from timerstore.timelog.jit.apart import apart
from timerstore.timelog.jit.compilers import HelperCompiler, KernelCompiler
from timerstore.timelog.jit.signatures import signature_of
from timerstore.timelog.jit.stamp import use_stamp

F = TypeVar("F", bound=Callable[..., Any])

INTERPRETED: bool = bool(numba.config.DISABLE_JIT)
"""True under NUMBA_DISABLE_JIT=1: kernels and intrinsics run as plain Python."""


# Kernels divide by sizes that are never 0, and allocate nothing: no checks, no reference counts.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


class Ahead(NamedTuple):
    """A kernel that is made ready before anyone calls it."""

    name: str
    function: Callable[..., Any]
    load: Callable[[], object]
    """Loads its machine code from the cache, or compiles it; does nothing the second time."""
    dispatcher: Any = None


AHEAD: Final[list[Ahead]] = []
"""Those of all modules that were imported."""

LATER: Final[list[Ahead]] = []
"""Those that few programs call: compiled with the others, loaded when one is first called."""


def is_cached(kernel: Ahead) -> bool:
    """Tell whether a kernel's machine code need not be compiled; True where nobody can tell."""
    # These are internals of Numba; without them kernels are compiled without a word.
    cache: Any = getattr(kernel.dispatcher, "_cache", None)
    cache_file: Any = getattr(cache, "_cache_file", None)
    if kernel.dispatcher is None or not hasattr(cache_file, "_load_index"):
        return not isinstance(cache, NullCache)
    codegen = kernel.dispatcher.targetctx.codegen()
    return cache._index_key(signature_of(kernel.function), codegen) in cache_file._load_index()


def may_be_cached(kernel: Ahead) -> bool:
    """Tell whether there is a folder to keep a kernel's machine code in."""
    return kernel.dispatcher is None or kernel.dispatcher._cache.cache_path is not None


def kernel(function: F) -> F:
    """Compile a kernel that Python calls, when it is first called; it is cached, needs no GIL."""
    return _kernel(function, _OPTIONS)


def kernel_ahead(function: F) -> F:
    """Compile a kernel that Python calls, before it is called: its annotations say the types."""
    made = kernel(function)
    load_ahead(function, lambda: made.compile(signature_of(function)), made)  # type: ignore[attr-defined]
    return made


def kernel_later(function: F) -> F:
    """Compile a kernel that Python calls with the others, and load it when it is first called.

    For what few programs run: opening after a crash, mending, what looks at a store from outside.
    """
    made = kernel(function)
    load_ahead(function, lambda: made.compile(signature_of(function)), made, LATER)  # type: ignore[attr-defined]
    return made


def kernel_with_gil(function: F) -> F:
    """Compile a kernel that keeps the GIL. It must not wait for who needs the GIL."""
    return _kernel(function, _OPTIONS | {"nogil": False})


def _kernel(function: F, options: dict[str, Any]) -> F:
    if INTERPRETED:
        return function
    made = numba.njit(cache=True, pipeline_class=KernelCompiler, **options)(function)
    compile_for = made._compile_for_args  # what a dispatcher calls where it has no code yet
    made._compile_for_args = lambda *args, **kws: apart(lambda: compile_for(*args, **kws))
    # To another kernel it is a helper like any.
    made.get_call_template = lambda args, kws: _helper(function).get_call_template(args, kws)
    made.get_overload = lambda signature: _helper(function).get_overload(signature)
    return stamped(made, function)


@cache
def _helper(function: Callable[..., Any]) -> Any:
    return inlined(function)


def load_ahead(
    function: Callable[..., Any],
    load: Callable[[], object],
    dispatcher: Any = None,
    kernels: list[Ahead] = AHEAD,
) -> None:
    """Have `load` called before anyone needs the machine code of `function`."""
    name = f"{function.__module__}.{function.__qualname__}"
    if not INTERPRETED:
        kernels.append(Ahead(name, function, load, dispatcher))


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
    apart(made.compile)
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
