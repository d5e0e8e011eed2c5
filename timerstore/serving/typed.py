"""Values as their types say, from what JSON says of them."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

T = TypeVar("T")


def typed(kind: type[T], value: Any) -> T:
    """Return a dataclass with all that is in it; raises TypeError, KeyError for what is none.

    >>> from timerstore.watching.topics import Upcoming
    >>> typed(Upcoming, {"overdue_count": 0, "within": [[1000, 2]], "later_count": 1}).within
    ((1000, 2),)
    """
    kind_of: Any = kind
    made: T = maker_of(kind_of)(value)
    return made


@cache
def maker_of(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        new: Any = kind
        hints = get_type_hints(kind)
        makers = [(each.name, maker_of(hints[each.name])) for each in fields(kind)]
        return lambda value: new(**{name: make(value[name]) for name, make in makers})
    if origin is np.ndarray:
        return lambda value: np.array(value, np.int64)
    if origin is list or (origin is tuple and inner[-1:] == (...,)):
        make = maker_of(inner[0])
        return lambda value: origin(make(each) for each in value)
    if origin is tuple:
        makers_of = [maker_of(each) for each in inner]
        return lambda value: tuple(m(v) for m, v in zip(makers_of, value, strict=True))
    if origin in (Union, types.UnionType) and len(inner) == 2 and type(None) in inner:
        make = maker_of(next(each for each in inner if each is not type(None)))
        return lambda value: None if value is None else make(value)
    return lambda value: value
