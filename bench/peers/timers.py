"""What a peer can do, with bodies by which each round is checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

BODY_BYTES = 100
ROWS = 1_000
"""Timers of one transaction, or of one pipeline, where a peer is asked for many."""


class MissingError(Exception):
    """A peer cannot be played here; it says what would install it."""


class Timers(Protocol):
    """A keeper of timers, open; opened again below the same folder, it has the timers it had."""

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Put a timer; on return it is as durable as was asked for."""

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Put timers, many at a time."""

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[Any]:
        """Put timers, many at a time; return for each what `cancel_many` needs."""

    def cancel_many(self, known: Sequence[Any]) -> None:
        """Cancel timers that are pending, many at a time; on return none of them comes."""

    def take_due(self) -> list[bytes]:
        """Remove some timers that are due now; return their bodies, none if none is due."""

    def another(self) -> Timers:
        """Return the same timers for the calling thread, which closes them."""

    def servers(self) -> Sequence[int]:
        """Return the processes, besides this one, that keep the timers."""

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
    per_second: int = 20_000
    """It puts more than so many a second: due times leave room for that."""
    leaves_out: Collection[str] = ()
    """Workloads that it does not play."""


def body_of(number: int, size: int = BODY_BYTES) -> bytes:
    """Return a body that says its number."""
    return b"%016x" % number + b"." * (size - 16)


def number_of(body: bytes) -> int:
    """Return the number of a body."""
    return int(body[:16], 16)


def check_all_came(numbers: Sequence[int], wanted: Collection[int]) -> None:
    """Raise if not each of the `wanted` timers came once, and no other."""
    came = set(numbers)
    if len(numbers) == len(wanted) and came == set(wanted):
        return
    lost, strange = len(set(wanted) - came), len(came - set(wanted))
    again = len(numbers) - len(came)
    said = f"of {len(wanted):,} timers {lost:,} did not come, {again:,} came again"
    raise AssertionError(said + (f"; {strange:,} others came" if strange else ""))


def is_root() -> bool:
    """Tell whether this process is root's."""
    return os.geteuid() == 0
