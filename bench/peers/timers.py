"""What a peer can do, with bodies by which each round is checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

BODY_BYTES = 100
ROWS = 1_000
"""Timers of one transaction, or of one pipeline, where a peer is asked for many."""


class MissingError(Exception):
    """A peer cannot be played here; it says what would install it."""


class Timers(Protocol):
    """A keeper of timers, open."""

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Put a timer; on return it is as durable as was asked for."""

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Put timers, many at a time."""

    def take_due(self) -> list[bytes]:
        """Remove some timers that are due now; return their bodies, none if none is due."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True)
class Peer:
    """A peer: how it is opened below a folder, `synced` or not."""

    name: str
    open: Callable[[Path, bool], Timers]
    told: str
    """With which settings."""
    share: int = 1
    """It plays one timer for so many of ours, for else a round would take too long."""


def body_of(number: int, size: int = BODY_BYTES) -> bytes:
    """Return a body that says its number."""
    return b"%016x" % number + b"." * (size - 16)


def number_of(body: bytes) -> int:
    """Return the number of a body."""
    return int(body[:16], 16)


def check_all_came(numbers: Sequence[int], count: int) -> None:
    """Raise if not each of `count` timers came once."""
    if len(numbers) != count or set(numbers) != set(range(count)):
        lost, extra = count - len(set(numbers)), len(numbers) - len(set(numbers))
        raise AssertionError(f"of {count:,} timers {lost:,} did not come, {extra:,} came again")


def is_root() -> bool:
    """Tell whether this process is root's."""
    return os.geteuid() == 0
