"""Calls that hold a store open while they run.

`close` lets nobody in any more and waits until those who are inside have left; only then files are
let go. So no call ever works on files that belong to another process by now.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from timerstore.jit.locks import Gate


class HasGate(Protocol):
    """A store, or what reads one."""

    @property
    def gate(self) -> Gate:
        """Where calls are counted."""


Owner = TypeVar("Owner", bound=HasGate)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def inside(
    function: Callable[Concatenate[Owner, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """Count a call as inside the store; it must ask first whether the store is open."""

    @wraps(function)
    def call(owner: Owner, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with owner.gate.guard():
            return function(owner, *args, **kwargs)

    return call
