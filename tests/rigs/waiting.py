"""Waiting until something holds that another thread or process brings about."""

import time
from collections.abc import Callable

PATIENCE_S = 50.0


def wait_until(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Return once it holds; fail where it does not come to be."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.002)
