"""Errors of ours, as short as Spark can show them.

Spark prints an error of a data source with all the frames above it, twice. Of what is wrong with an
option, a path or a store they say nothing, so they are cut off: what is wrong is printed last. An
error that is none of ours keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from timerstore.errors import TimerStoreError

P = ParamSpec("P")
R = TypeVar("R")


def plainly(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a call that Spark makes."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TimerStoreError as e:
            raise e.with_traceback(None) from None

    return called


def plainly_each(function: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """Wrap a call of which Spark takes one result after the other."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            yield from function(*args, **kwargs)
        except TimerStoreError as e:
            raise e.with_traceback(None) from None

    return called
