"""Waiting until something holds that another thread or process brings about."""

import time
from collections.abc import Callable

PATIENCE_S = 50.0


def wait_until(holds: Callable[[], object]) -> None:
    """Return once it holds; fail where it does not come to be."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.002)
