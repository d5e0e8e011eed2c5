"""Whether kernels were compiled for the types alone that their annotations say."""

import sys
from collections.abc import Iterator
from typing import Any

from timerstore.timelog.jit.kernel import AHEAD, LATER
from timerstore.timelog.jit.later import Kernel
from timerstore.timelog.jit.signatures import signature_of


def overloads() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield each kernel of ours in memory, with the types that it was compiled for."""
    for name, module in list(sys.modules.items()):
        if name.startswith("timerstore."):
            for value in vars(module).values():
                if isinstance(value, Kernel):
                    for types in value.made.overloads:
                        yield f"{value.__module__}.{value.__qualname__}", types


def not_said_ahead() -> list[str]:
    """Return what was compiled for other types: a program would wait for that too."""
    said = {each.name: signature_of(each.function) for each in [*AHEAD, *LATER] if each.dispatcher}
    return [f"{name}{types}" for name, types in overloads() if types != said.get(name)]
