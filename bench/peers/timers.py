"""What a peer can do, with bodies by which each round is checked."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BODY_BYTES = 100


class MissingError(Exception):
    """A peer cannot be played here; it says what would install it."""


class Timers:
    """A keeper of timers, open; opened again below the same folder, it has the timers it had.

    A peer writes `put_rows`, `cancel_rows`, `take_due`, `close`, and what it can do better.
    """

    rows = 1_000
    """Timers of one transaction, list or pipeline."""
    pids: Sequence[int] = ()
    """The processes, besides this one, that keep the timers."""

    def put_one(self, due_ms: int, body: bytes) -> Any:
        """Put a timer; on return it is as durable as was asked for."""
        self.put_rows([due_ms], [body])

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Put timers, `rows` at a time."""
        for part in self._parts(bodies):
            self.put_rows(due_ms[part], bodies[part])

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[Any]:
        """Put timers, `rows` at a time; return for each what `cancel_many` needs."""
        return [
            id for part in self._parts(bodies) for id in self.put_rows(due_ms[part], bodies[part])
        ]

    def cancel_many(self, known: Sequence[Any]) -> None:
        """Cancel timers that are pending, `rows` at a time; on return none of them comes."""
        for part in self._parts(known):
            self.cancel_rows(known[part])

    def _parts(self, of: Sequence[Any]) -> Iterator[slice]:
        return (slice(at, at + self.rows) for at in range(0, len(of), self.rows))

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> Any:
        """Put up to `rows` timers; return what `cancel_rows` needs, if it is known without more."""
        raise NotImplementedError

    def cancel_rows(self, known: Sequence[Any]) -> None:
        """Cancel up to `rows` timers."""
        raise NotImplementedError

    def take_due(self) -> list[bytes]:
        """Remove some timers that are due now; return their bodies, none if none is due."""
        raise NotImplementedError

    def another(self) -> AbstractContextManager[Timers]:
        """Return the same timers for the calling thread; here threads share one keeper."""
        return nullcontext(self)

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True)
class Peer:
    """A peer: how it is opened below a folder, `synced` or not."""

    name: str
    open: Callable[[Path, bool], Timers]
    share: int = 1
    """It plays one timer for so many of ours, for else a round would take too long."""
    per_second: int = 20_000
    """It puts more than so many a second: due times leave room for that."""
    leaves_out: Collection[str] = ()
    """Workloads that it does not play."""


def load(module: str, install: str) -> Any:
    """Import a peer's module, or raise MissingError with what installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise MissingError(f"{e.name} is missing: pip install {install}") from e


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def body_of(number: int) -> bytes:
    return b"%016x" % number + b"." * (BODY_BYTES - 16)


def number_of(body: bytes) -> int:
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
