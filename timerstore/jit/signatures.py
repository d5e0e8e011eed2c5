"""A kernel's types, read off its annotations.

So it can be compiled before it is called. `int` and `bool` are Numba's; an array is C-contiguous,
of one axis unless it is `Rows`; a record class has its own type, a NamedTuple that of its fields.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import numpy as np
from numba import typeof, types
from numba.np.numpy_support import from_dtype

from timerstore.jit.arraytypes import READ_ONLY, TWO_AXES
from timerstore.jit.recordtype import record_type

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


def types_of_values(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of arguments, for a kernel whose annotations do not say them."""
    kinds = [getattr(type(each), "layout", None) for each in values]
    return tuple(
        record_type(kind) if kind else typeof(each)
        for kind, each in zip(kinds, values, strict=True)
    )
