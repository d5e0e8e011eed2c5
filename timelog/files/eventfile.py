"""An eventfd, by which a kernel or another thread wakes a thread that sleeps."""

from __future__ import annotations

import io
import os


class EventFile(io.FileIO):
    """An open eventfd. A file object closes its descriptor once, whatever ends its closing."""

    def __init__(self) -> None:
        """Open it; it counts from 0, and nobody blocks at it."""
        super().__init__(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), "r+")
