"""Compiling what stores need before there is one: for an image, or before tests."""

from __future__ import annotations

import timerstore.store.store  # noqa: F401  its calls' kernels count as well
from timerstore.core.ahead import compile_all


def compile_kernels() -> None:
    """Have all kernels in the cache, as opening a machine's first store does. Else a second."""
    compile_all()
