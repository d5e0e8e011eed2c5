"""Calls of a store, made by the process that has it open, else by this one.

A command names a call, with its arguments by name, and is not to know which of the two made it:
what comes back is what JSON says of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timerstore.cli.coming import check_is_there, find_owner, make_here, open_to_change

if TYPE_CHECKING:
    from timerstore.control.asking import Owner
    from timerstore.store.store import TimerStore


class Changer:
    """Who changes a store for a command; what it refuses is raised here."""

    def __init__(self, store: TimerStore | None, owner: Owner | None) -> None:
        """Take a store that the command itself has opened, or the process that has it open."""
        self._store, self._owner = store, owner

    @property
    def is_owner(self) -> bool:
        """Whether a process has the store open that will go on when the command has ended."""
        return self._owner is not None

    def call(self, name: str, **arguments: Any) -> Any:
        """Make a call of `AnyStore`; return its result as JSON says it."""
        if self._owner is None:
            return make_here(self._store, name, arguments)
        if name == "cancel_many":  # its result comes as a column
            _, (verdicts,) = self._owner.ask(name, **arguments)
            return [bool(each) for each in verdicts]
        return self._owner.call(name, **arguments)


@contextmanager
def changing(
    path: Path, config_file: Path | None, *, create: bool = False, is_bulk: bool = False
) -> Iterator[Changer]:
    """Yield who changes the store at `path`, which is made if there is none and `create`.

    `is_bulk`: the command calls `flush` if something must be durable.
    """
    if not create:
        check_is_there(path)
    owner = find_owner(path)
    if owner is not None:
        yield Changer(None, owner)
        return
    with open_to_change(path, config_file, create=create, is_bulk=is_bulk) as store:
        yield Changer(store, None)
