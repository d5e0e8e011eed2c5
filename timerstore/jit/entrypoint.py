"""Kernels of integers, which find what they work on by its address.

Such a kernel takes and returns only integers. What it works on is a record, whose address it is
given (`record_at` in record.py); the caller keeps that record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, Final

from timerstore.jit.guards import RLock
from timerstore.jit.kernel import INTERPRETED, kernel, kernel_with_gil, load_ahead


@cache
def entry_point(function: Callable[..., int], *, keeps_gil: bool = False) -> Callable[..., int]:
    """Compile a kernel of integers; return what calls it. Interpreted, that is the function.

    With `keeps_gil` no other thread of Python runs meanwhile, so it may wait for nothing that
    somebody holds who needs the GIL.
    """
    if INTERPRETED:
        return function
    entry: Callable[..., int] = _kernel_of(function, keeps_gil).load()
    return entry


def entry_on(
    function: Callable[..., int], place: Any, *, keeps_gil: bool = False
) -> Callable[..., int]:
    """Return what calls a kernel with a record's address first. The caller keeps the record.

    With `keeps_gil` none of these runs beside another one, interpreted neither.
    """
    entry = entry_point(function, keeps_gil=keeps_gil)
    if INTERPRETED and keeps_gil:
        entry = _alone(entry)
    return partial(entry, place.block_address)


_one_at_a_time: Final = RLock()


def _alone(function: Callable[..., int]) -> Callable[..., int]:
    """Return what is called by one thread at a time."""

    @wraps(function)
    def call(*args: int) -> int:
        with _one_at_a_time.guard():
            return function(*args)

    return call


def entry_ahead(function: Callable[..., int], *, keeps_gil: bool = False) -> None:
    """Have `entry_point` find it compiled."""
    if not INTERPRETED:
        load_ahead(function, _kernel_of(function, keeps_gil))


@cache
def _kernel_of(function: Callable[..., int], keeps_gil: bool) -> Any:
    return kernel_with_gil(function) if keeps_gil else kernel(function)
