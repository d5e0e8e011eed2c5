"""Descriptors with an owner: closed once, even if an exception ends their closing."""

from __future__ import annotations

import io

from timerstore.jit.host import open_event


class OwnedFile(io.FileIO):
    """An open descriptor. A file object closes it once, also if a signal ends its closing."""

    def __init__(self, fd: int) -> None:
        """Own the descriptor `fd`."""
        super().__init__(fd, "r+")

    def __del__(self) -> None:
        """Close it without a warning: who did not close a store is told nothing of its files."""
        self.close()


class EventFile(OwnedFile):
    """An eventfd or its like, by which a kernel or another thread wakes a thread that sleeps."""

    def __init__(self) -> None:
        """Open it; it counts from 0, and nobody blocks at it."""
        super().__init__(open_event())
