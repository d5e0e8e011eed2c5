"""Kernels of tests: compiled when they are called, for the types of what they are called with.

Those of the package say their types (`timerstore/jit/kernel.py`). What a test writes may leave that
to its values: each set of their types becomes a kernel that says them, and is called as users' are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Annotated, Any, TypeVar, cast

import numpy as np

from timerstore.jit.kernel import INTERPRETED, Kernel
from timerstore.jit.record import READ_ONLY, TWO_AXES

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a kernel when it is first called; interpreted, it is the function itself."""
    return function if INTERPRETED else cast(F, KernelOfTest(function))


class KernelOfTest:
    """A function with a kernel for each set of types that it was called with."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self.kernels: dict[tuple[Any, ...], Kernel] = {}
        self._of_others = Kernel(function)

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks if another kernel names this."""
        return self._of_others._numba_type_

    def __call__(self, *args: Any) -> Any:
        """Call it."""
        hints = tuple(map(_hint_of, args))
        if hints not in self.kernels:
            self.kernels[hints] = Kernel(_saying(self.py_func, hints))
        return self.kernels[hints](*args)


def _saying(function: Any, hints: tuple[Any, ...]) -> Any:
    """Return a function whose annotations say these types."""
    made = FunctionType(
        *(function.__code__, function.__globals__, function.__name__),
        *(function.__defaults__, function.__closure__),
    )
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    made.__annotations__ = dict(zip(names, hints, strict=True))
    return made


def _hint_of(value: Any) -> Any:
    """Return the annotation that says a value's type."""
    if isinstance(value, np.ndarray):
        hint: Any = np.ndarray[Any, np.dtype[value.dtype.type]]  # type: ignore[name-defined]
        marks = [READ_ONLY] * (not value.flags.writeable) + [TWO_AXES] * (value.ndim == 2)
        for mark in marks:
            hint = Annotated[hint, mark]
        return hint
    if isinstance(value, bool | np.bool_):
        return bool
    return int if isinstance(value, int | np.integer) else type(value)
