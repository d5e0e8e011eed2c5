"""The decorator that compiles a kernel.

A kernel is a function of arrays and integers that is compiled with Numba; it runs without the GIL.
So each byte layout can be declared once, in `format.py`, and be used everywhere. Its machine code
comes from a wheel, or from a cache on disk, under a digest of what the kernel sees
(`loading.py`): an edit compiles anew what depends on it, and a comment nothing. Nothing
here imports Numba, see `later.py`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np

from timerstore.jit.guards import RLock
from timerstore.jit.later import Helper, Instruction
from timerstore.jit.loading import entry_of, is_packaged

F = TypeVar("F", bound=Callable[..., Any])

INTERPRETED: Final = os.environ.get("NUMBA_DISABLE_JIT", "0").strip() not in ("", "0")
"""True under NUMBA_DISABLE_JIT=1: kernels and intrinsics run as plain Python."""


class Kernel:
    """A function that Python calls. To another kernel it is a helper like any."""

    def __init__(self, function: Callable[..., Any], *, keeps_gil: bool = False) -> None:
        """`keeps_gil`: whether no other thread of Python runs meanwhile."""
        functools.update_wrapper(self, function)
        self.py_func = function
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.keeps_gil = keeps_gil
        self.helper = Helper(function)
        self.entry: Any = None
        """What calls its machine code, once that is loaded."""
        self._call: Any = self._call_first

    if TYPE_CHECKING:

        def __call__(self, *args: Any) -> Any:
            """Call it."""

    else:
        __call__ = property(attrgetter("_call"))  # a third of a method's cost

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks if another kernel names this."""
        return self.helper._numba_type_

    @property
    def is_at_hand(self) -> bool:
        """Whether it can be called without importing LLVM first."""
        return self.entry is not None or is_packaged(self)

    def load(self) -> Any:
        """Have its machine code for the types that its annotations say; return what calls it."""
        if self.entry is None:
            self._call = self.entry = entry_of(self, self._refuse)
        return self.entry

    def _call_first(self, *args: Any) -> Any:
        return self.load()(*args)

    def _refuse(self, *args: Any, **named: Any) -> Any:
        """Raise: these arguments are of other types than it was compiled for."""
        given = ", ".join(map(_kind_of, [*args, *named.values()]))
        raise TypeError(f"{self.name} was called with ({given}), which its annotations do not say.")


def _kind_of(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    odd = "" if value.flags.carray else ", sealed or with gaps"
    return f"{value.dtype}{list(value.shape)}{odd}"


LOADED_AHEAD: Final[list[Kernel]] = []
"""The kernels of all modules that were imported, but for those that few programs call."""

LOADED_LATER: Final[list[Kernel]] = []
"""Those that few programs call: compiled with the others, loaded when one is first called."""


def _compiled(function: F, among: list[Kernel], **options: Any) -> F:
    if INTERPRETED:
        function.__dict__.update(options)
        return function
    made = Kernel(function, **options)
    among.append(made)
    return cast(F, made)


def kernel_ahead(function: F) -> F:
    """Compile a kernel that Python calls, before it is called: its annotations say the types."""
    return _compiled(function, LOADED_AHEAD)


def kernel_ahead_with_gil(function: F) -> F:
    """Do the same for a kernel that keeps the GIL: no other thread of Python runs meanwhile.

    It may wait for nothing that somebody holds who needs the GIL.
    """
    return _compiled(function, LOADED_AHEAD, keeps_gil=True)


def kernel_later(function: F) -> F:
    """Compile a kernel that Python calls with the others, and load it when it is first called.

    It is for code that few programs run: opening after a crash, mending, looking at a store from
    outside.
    """
    return _compiled(function, LOADED_LATER)


def caller_of(made: Callable[..., int]) -> Callable[..., int]:
    """Return what calls a kernel's machine code, built-in; interpreted, the kernel itself."""
    return made.load() if isinstance(made, Kernel) else made


def caller_on(made: Callable[..., int], place: Any) -> Callable[..., int]:
    """Return what calls a kernel with a record's address first. The caller keeps the record.

    Such a kernel takes and returns only integers; `record_at` finds the record. Of those that keep
    the GIL none runs beside another one, interpreted neither.
    """
    is_alone = INTERPRETED and getattr(made, "keeps_gil", False)
    return partial(_alone(made) if is_alone else caller_of(made), place.block_address)


GIL_STAND_IN: Final = RLock()
"""Held by an interpreted kernel that keeps the GIL when it is compiled."""


def _alone(function: Callable[..., int]) -> Callable[..., int]:
    """Return what is called by one thread at a time."""

    @functools.wraps(function)
    def call(*args: int) -> int:
        with GIL_STAND_IN.guard():
            return function(*args)

    return call


def instruction(maker: str, *arguments: Any) -> Callable[[F], F]:
    """Return the decorator of what only kernels can say; the function is its twin in Python.

    `maker`, `arguments`: what makes it, see `later.py`. Interpreted kernels call the twin.
    """

    def decorate(twin: F) -> F:
        if INTERPRETED:
            return twin
        made = Instruction(maker, *arguments)
        made.twin = twin
        return cast(F, made)

    return decorate


def inlined(function: F, **options: Any) -> F:
    """Compile a helper that only kernels call; it is part of their machine code."""
    return function if INTERPRETED else cast(F, Helper(function, **options))


def twinned(twin: Callable[..., Any]) -> Callable[[F], F]:
    """Return the decorator of a helper in whose place interpreted kernels call `twin`."""

    def decorate(function: F) -> F:
        return cast(F, twin) if INTERPRETED else inlined(function)

    return decorate


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
