"""Changing a store through whoever may: the process that has it open, else this one.

A command says what it wants in the same calls, and is not to know which of the two it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from timerstore.cli.opening import check_is_there, open_to_change

if TYPE_CHECKING:
    from timerstore.store import TimerStore


class Changer(Protocol):
    """Who changes a store for a command; each call does what the store's of that name does."""

    is_owner: bool
    """Whether a process has the store open that will go on when the command has ended."""

    def put(self, body: bytes, **options: Any) -> str:
        """Put a timer; return its id."""

    def put_many(self, bodies: Sequence[bytes], **options: Any) -> Sequence[str]:
        """Put many; return their ids."""

    def cancel_many(self, ids: Sequence[str]) -> list[bool]:
        """Cancel timers; tell of each whether it worked."""

    def reschedule(self, id: str, at_ms: int) -> str:
        """Move a timer; return its new id."""

    def redrive(self, group: str, limit: int | None) -> int:
        """Put dead letters back; return how many."""

    def clean(self) -> int:
        """Clean now; return the bytes freed."""

    def stats(self) -> dict[str, Any]:
        """Return the statistics."""


class Here:
    """A store that the command itself has opened."""

    is_owner = False

    def __init__(self, store: TimerStore) -> None:
        """Change `store`."""
        self.store = store

    def put(self, body: bytes, **options: Any) -> str:
        """Put a timer."""
        return self.store.put(body, **options)

    def put_many(self, bodies: Sequence[bytes], **options: Any) -> Sequence[str]:
        """Put many."""
        return self.store.put_many(bodies, **options)

    def clean(self) -> int:
        """Clean now."""
        return self.store.clean()

    def cancel_many(self, ids: Sequence[str]) -> list[bool]:
        """Cancel timers."""
        return [bool(each) for each in self.store.cancel_many(ids)]

    def reschedule(self, id: str, at_ms: int) -> str:
        """Move a timer."""
        return self.store.reschedule(id, at_ms=at_ms)

    def redrive(self, group: str, limit: int | None) -> int:
        """Put dead letters back."""
        from timerstore.consuming.dead_letters import redrive

        return redrive(self.store.consuming, group, limit)

    def stats(self) -> dict[str, Any]:
        """Return the statistics."""
        return self.store.stats().to_dict()


@contextmanager
def changing(path: Path, config_file: Path | None, *, create: bool = False) -> Iterator[Changer]:
    """Yield who changes the store at `path`, which is made where there is none and `create`."""
    if not create:
        check_is_there(path)
    with open_to_change(path, config_file, create=create) as store:
        yield Here(store)
