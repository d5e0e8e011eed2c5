"""Which kernels a process has called, and which it had to compile."""

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
    return {each.name for each in kernels() if each.entry is not None}
