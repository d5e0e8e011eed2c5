"""Changing a store through whoever may: the process that has it open, else this one.

A command says what it wants in the same calls, and is not to know which of the two it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from timerstore.cli.opening import check_is_there, find_owner, open_to_change

if TYPE_CHECKING:
    from timerstore.control.client import Owner
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

    def cancel_key(self, topic: str, key: str) -> int:
        """Cancel all with a key; return how many."""

    def reschedule(self, id: str, **options: Any) -> str:
        """Move or change a timer; return its new id."""

    def redrive(self, group: str, limit: int | None, ids: Sequence[str] | None) -> int:
        """Put dead letters back; return how many."""

    def drop_dead_letters(self, group: str, ids: Sequence[str] | None) -> int:
        """Give dead letters up; return how many."""

    def clean(self) -> int:
        """Clean now; return the bytes freed."""

    def flush(self) -> None:
        """See that everything put before is durable."""

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

    def flush(self) -> None:
        """See that all is durable."""
        self.store.flush()

    def cancel_many(self, ids: Sequence[str]) -> list[bool]:
        """Cancel timers."""
        return [bool(each) for each in self.store.cancel_many(ids)]

    def cancel_key(self, topic: str, key: str) -> int:
        """Cancel all with a key."""
        return self.store.cancel_key(topic, key)

    def reschedule(self, id: str, **options: Any) -> str:
        """Move or change a timer."""
        return self.store.reschedule(id, **options)

    def redrive(self, group: str, limit: int | None, ids: Sequence[str] | None) -> int:
        """Put dead letters back."""
        return self.store.redrive(group, limit, ids=ids)

    def drop_dead_letters(self, group: str, ids: Sequence[str] | None) -> int:
        """Give dead letters up."""
        return self.store.drop_dead_letters(group, ids=ids)

    def stats(self) -> dict[str, Any]:
        """Return the statistics."""
        return self.store.stats().to_dict()


class There:
    """The process that has the store open; what it refuses is raised here."""

    is_owner = True

    def __init__(self, owner: Owner) -> None:
        """Ask `owner`."""
        self._owner = owner

    def put(self, body: bytes, **options: Any) -> str:
        """Put a timer."""
        return str(self._owner.call("put", body=body, **options))

    def put_many(self, bodies: Sequence[bytes], **options: Any) -> Sequence[str]:
        """Put many."""
        ids: list[str] = self._owner.call("put_many", bodies=list(bodies), **options)
        return ids

    def cancel_many(self, ids: Sequence[str]) -> list[bool]:
        """Cancel timers."""
        _, (verdicts,) = self._owner.ask("cancel_many", ids=list(ids))
        return [bool(each) for each in verdicts]

    def cancel_key(self, topic: str, key: str) -> int:
        """Cancel all with a key."""
        return int(self._owner.call("cancel_key", topic=topic, key=key))

    def reschedule(self, id: str, **options: Any) -> str:
        """Move or change a timer."""
        return str(self._owner.call("reschedule", id=id, **options))

    def redrive(self, group: str, limit: int | None, ids: Sequence[str] | None) -> int:
        """Put dead letters back."""
        return int(self._owner.call("redrive", group=group, limit=limit, ids=ids))

    def drop_dead_letters(self, group: str, ids: Sequence[str] | None) -> int:
        """Give dead letters up."""
        return int(self._owner.call("drop_dead_letters", group=group, ids=ids))

    def clean(self) -> int:
        """Clean now."""
        return int(self._owner.call("clean"))

    def flush(self) -> None:
        """See that all is durable."""
        self._owner.call("flush")

    def stats(self) -> dict[str, Any]:
        """Return the statistics."""
        told: dict[str, Any] = self._owner.call("stats")
        return told


@contextmanager
def changing(
    path: Path, config_file: Path | None, *, create: bool = False, is_bulk: bool = False
) -> Iterator[Changer]:
    """Yield who changes the store at `path`, which is made where there is none and `create`.

    `is_bulk`: the command calls `flush` where something must be durable.
    """
    if not create:
        check_is_there(path)
    owner = find_owner(path)
    if owner is not None:
        yield There(owner)
        return
    with open_to_change(path, config_file, create=create, is_bulk=is_bulk) as store:
        yield Here(store)
