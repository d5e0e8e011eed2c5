"""A kernel's types, read off its annotations.

So it can be compiled before it is called. `int` and `bool` are Numba's; an array is C-contiguous,
of one axis unless it is `Rows`; a record class has its own type, a NamedTuple that of its fields.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import numpy as np
from numba import types
from numba.core.extending import typeof_impl
from numba.np.numpy_support import from_dtype

from timerstore.timelog.jit.arraytypes import READ_ONLY, TUPLES, TWO_AXES
from timerstore.timelog.jit.recordtype import record_type

_SCALARS: Final = {int: types.int64, bool: types.boolean}


@cache
def signature_of(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the types of a kernel's arguments; raises TypeError if an annotation says none."""
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    return tuple(_type_of(hint, f"{function.__qualname__}({name})") for name, hint in hints.items())


def _type_of(hint: Any, place: str) -> Any:
    marks: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        marks = tuple(rest)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if hasattr(hint, "layout"):
        return record_type(hint.layout)
    if get_origin(hint) is np.ndarray:
        (item,) = get_args(get_args(hint)[1])
        axes = 2 if TWO_AXES in marks else 1
        return types.Array(from_dtype(np.dtype(item)), axes, "C", readonly=READ_ONLY in marks)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return types.BaseTuple.from_types(signature_of(hint), hint)
    raise TypeError(f"{place}: {hint} names no type of Numba's")


_fits: Final[dict[type, Callable[[Any], bool]]] = {}


def announce_tuples() -> None:
    """Let Numba know all tuples that `known_tuple` was called with, those to come as well."""
    TUPLES.tell(_announce)


def _announce(cls: Any) -> None:
    signature = signature_of(cls)
    kind = types.BaseTuple.from_types(signature, cls)
    arrays = [
        (i, np.dtype(str(each.dtype)), each.ndim, each.mutable)
        for i, each in enumerate(signature)
        if isinstance(each, types.Array)
    ]
    inner = [
        (i, _fits[each.instance_class])
        for i, each in enumerate(signature)
        if isinstance(each, types.BaseTuple)
    ]

    def fits(value: Any) -> bool:
        for i, item, axes, is_written in arrays:
            array = value[i]
            if array.dtype is not item or array.ndim != axes:
                return False
            if not (array.flags.carray if is_written else array.flags.c_contiguous):
                return False
        for i, inside in inner:
            if not inside(value[i]):
                return False
        return True

    def type_of(value: Any, context: Any) -> Any:
        return kind if fits(value) else typeof_impl.dispatch(tuple)(value, context)

    _fits[cls] = fits
    typeof_impl.register(cls)(type_of)
