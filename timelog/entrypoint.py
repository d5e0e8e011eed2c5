"""Kernels that are called by their bare entry point: Numba's dispatcher costs 400 ns a call.

Such a kernel takes and returns integers alone. What it works on is a record, whose address it is
given (`record_at`); whoever calls keeps that record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
from numba import types
from numba.core.extending import intrinsic

from timerstore.timelog.kernel import INTERPRETED, stamped


@cache
def entry_point(function: Callable[..., int], *, keeps_gil: bool = False) -> Callable[..., int]:
    """Compile a kernel of integers; return what calls it. Interpreted, that is the function.

    With `keeps_gil` no other thread of Python runs meanwhile, so it may wait for nothing that
    somebody holds who needs the GIL.
    """
    if INTERPRETED:
        return function
    options: dict[str, Any] = {"nogil": not keeps_gil, "error_model": "numpy", "_nrt": False}
    dispatcher: Any = numba.njit(cache=True, **options)(function)
    stamped(dispatcher, function)
    signature = (types.int64,) * function.__code__.co_argcount
    dispatcher.compile(signature)
    entry = getattr(dispatcher.overloads.get(signature), "entry_point", None)
    return entry if callable(entry) else dispatcher


def record_at(kind: Any) -> Any:
    """Return what kernels turn an address into a record of one kind with."""

    @intrinsic  # type: ignore[untyped-decorator]
    def at(typingctx: Any, address: Any) -> Any:
        return kind.numba_type(types.int64), lambda context, builder, sig, args: args[0]

    return at
