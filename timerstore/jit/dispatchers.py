"""What Numba makes of helpers: dispatchers, which hold the code of each set of types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.core.registry import cpu_target

from timerstore.jit.linking import HelperCompiler

# Kernels divide by sizes that are never 0, and allocate nothing: no checks, no reference counts.
_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def helper(function: Callable[..., Any], **options: Any) -> Any:
    """Return the dispatcher of a helper that only kernels call."""
    made = numba.njit(pipeline_class=HelperCompiler, **(_OPTIONS | options))(function)
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


def external(symbol: str, result: str, *arguments: str) -> Any:
    """Return a function in C, by the names that Numba has for its types."""
    kinds = [getattr(types, name) for name in arguments]
    return types.ExternalFunction(symbol, getattr(types, result)(*kinds))


def type_of(made: Any) -> Any:
    """Return the type that Numba has for something that a kernel names."""
    context = cpu_target.typing_context
    context.refresh()  # an instruction may be a moment old
    return context.resolve_value_type(made)
