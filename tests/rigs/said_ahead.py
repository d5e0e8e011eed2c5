"""Whether kernels were compiled for the types alone that their annotations say."""

import sys
from collections.abc import Iterator

from timerstore.jit.kernel import Kernel
from timerstore.jit.loading import COMPILED


def kernels() -> Iterator[Kernel]:
    """Yield each kernel of ours that was imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("timerstore."):
            yield from (each for each in vars(module).values() if isinstance(each, Kernel))


def compiled() -> list[str]:
    """Return which were neither in a cache nor packaged."""
    return list(COMPILED)


def called() -> set[str]:
    """Return which were loaded."""
    return {each.name for each in kernels() if each.entries}


def not_said_ahead() -> list[str]:
    """Return what has types that its annotations do not say: a program would wait for that too."""
    return [each.name for each in kernels() if set(each.entries) - {None}]
