"""Calls in threads of their own, at the same time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def together(call: Callable[[T], R], arguments: Iterable[T]) -> list[R]:
    """Make a call with each argument, all at once; return what they returned, or raise."""
    given = list(arguments)
    with ThreadPoolExecutor(len(given)) as pool:
        return list(pool.map(call, given))
