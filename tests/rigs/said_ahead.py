"""Whether kernels were compiled for the types alone that their annotations say."""

import sys
from collections.abc import Iterator
from typing import Any

from timerstore.timelog.jit.kernel import AHEAD, LATER
from timerstore.timelog.jit.later import Kernel, compiler


def kernels() -> Iterator[Kernel]:
    """Yield each kernel of ours that was imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("timerstore."):
            yield from (each for each in vars(module).values() if isinstance(each, Kernel))


def dispatchers() -> dict[str, Any]:
    """Return what Numba made of those that it was asked for."""
    return {each.name: each.made for each in kernels() if "_made" in vars(each)}


def compiled() -> list[str]:
    """Return which were neither in a cache nor packaged."""
    made = dispatchers().items()
    return [name for name, each in made if sum(each.stats.cache_misses.values())]


def called() -> set[str]:
    """Return which were called."""
    packaged = {each.name for each in kernels() if vars(each)["_entry"] is not None}
    return packaged | {name for name, each in dispatchers().items() if each.overloads}


def not_said_ahead() -> list[str]:
    """Return what was compiled for other types: a program would wait for that too."""
    made = dispatchers()
    if not made:
        return []
    signature_of = compiler("signatures").signature_of
    said = {each.name: signature_of(each.function) for each in [*AHEAD, *LATER] if each.dispatcher}
    return [
        f"{name}{types}"
        for name, each in made.items()
        for types in each.overloads
        if types != said.get(name)
    ]
