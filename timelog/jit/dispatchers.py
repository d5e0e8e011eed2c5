"""What Numba makes of kernels: dispatchers, which hold their machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.core.caching import NullCache
from numba.core.registry import cpu_target

from timerstore.timelog.jit.apart import apart
from timerstore.timelog.jit.cachefile import use_stamp
from timerstore.timelog.jit.compilers import HelperCompiler, KernelCompiler
from timerstore.timelog.jit.later import Kernel
from timerstore.timelog.jit.recordtype import announce_records
from timerstore.timelog.jit.signatures import announce_tuples, signature_of

# Kernels divide by sizes that are never 0, and allocate nothing: no checks, no reference counts.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: Callable[..., Any], *, keeps_gil: bool) -> Any:
    """Return the dispatcher of a kernel that Python calls. Its machine code is cached."""
    options = _OPTIONS | {"nogil": not keeps_gil}
    made = numba.njit(cache=True, pipeline_class=KernelCompiler, **options)(function)
    compile_for = made._compile_for_args  # what a dispatcher calls if it has no code yet
    made._compile_for_args = lambda *args, **kws: apart(lambda: compile_for(*args, **kws))
    use_stamp(made, function)
    return made


def helper(function: Callable[..., Any], **options: Any) -> Any:
    """Return the dispatcher of a helper that only kernels call."""
    options = _OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} | options
    made = numba.njit(pipeline_class=HelperCompiler, **options)(function)
    return _without_literals(made)


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


def load(kernel: Kernel) -> Any:
    """Have a kernel's machine code for the types that its annotations say, or compile it.

    Return what calls it: the bare entry point if there is one.
    """
    made = kernel.made
    entry = apart(lambda: made.compile(signature_of(kernel.py_func)))
    return entry if callable(entry) else made


def external(symbol: str, result: str, *arguments: str) -> Any:
    """Return a function in C, by the names that Numba has for its types."""
    kinds = [getattr(types, name) for name in arguments]
    return types.ExternalFunction(symbol, getattr(types, result)(*kinds))


def type_of(made: Any) -> Any:
    """Return the type that Numba has for something that a kernel names."""
    context = cpu_target.typing_context
    context.refresh()  # an instruction may be a moment old
    return context.resolve_value_type(made)


def is_cached(kernel: Kernel) -> bool:
    """Tell whether a kernel's machine code need not be compiled; True if nobody can tell."""
    # These are internals of Numba; without them kernels are compiled without a word.
    cache: Any = getattr(kernel.made, "_cache", None)
    cache_file: Any = getattr(cache, "_cache_file", None)
    if not hasattr(cache_file, "_load_index"):
        return not isinstance(cache, NullCache)
    codegen = kernel.made.targetctx.codegen()
    return cache._index_key(signature_of(kernel.py_func), codegen) in cache_file._load_index()


def may_be_cached(kernel: Kernel) -> bool:
    """Tell whether there is a folder to keep a kernel's machine code in."""
    return kernel.made._cache.cache_path is not None


announce_records()
announce_tuples()
