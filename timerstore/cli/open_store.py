"""How a command comes to a store: to look, or to change it.

Looking takes no lock and fires nothing, so it works beside the process that has the store open.
Changing is asked of that process if there is one, else the store is opened. In each case a command
has the calls of `AnyStore`, to which it passes arguments by name; results have the same fields.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timerstore.cli.app import settings
from timerstore.cli.output import DAMAGED, Output
from timerstore.errors import (
    InvalidArgumentError,
    NotAStoreError,
    StoreAccessError,
    StoreClosedError,
    TimerStoreError,
)
from timerstore.share.wire import Owner, find_owner
from timerstore.values.amounts import shown_time
from timerstore.values.kinds import check_path, unknown_name
from timerstore.values.times import now_ms

if TYPE_CHECKING:
    from timerstore.calls.pending.timers import Timer
    from timerstore.store.store import TimerStore
    from timerstore.watching.any_store import AnyStore
else:  # it loads NumPy and Arrow, for which a command that asks an owner need not wait
    AnyStore = object


_BOUNDS: Final = ("end_ms", "limit", "key")
"""What a listing may say so that it does not read all that is pending."""


class Told(dict[str, Any]):
    """What an owner tells of a result, whose fields are attributes, as those of the result are.

    >>> Told(state="fired", groups=[]).state
    'fired'
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return self


def _told(value: Any) -> Any:
    if isinstance(value, dict):
        return Told({name: _told(each) for name, each in value.items()})
    return [_told(each) for each in value] if isinstance(value, list) else value


class OwnersStore(AnyStore):
    """A store that another process has open: each call is asked of that process."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    @property
    def path(self) -> Path:
        """The directory."""
        return self._owner.path

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._ask, name)

    def _ask(self, name: str, **given: Any) -> Any:
        return _told(self._owner.call(name, **given))

    def pending(self, **given: Any) -> Iterator[Timer]:
        """Yield pending timers; see `AnyStore.pending`."""
        return map(_told, self._owner.pending(**given))

    def pending_columns(self, **given: Any) -> Any:
        """Return pending timers as a table."""
        from timerstore.share.framecolumns import read_table

        return read_table(self._owner.ask("pending_columns", **given)[1])


class Look(AnyStore):
    """A store that is looked at: its owner is asked what that is quick to tell, else its files.

    `as_of_ms`: what had been put by then is seen.
    """

    def __init__(
        self, out: Output, path: Path, config_file: Path | None, *, is_backup: bool = False
    ) -> None:
        self._out, self._path, self._config_file = out, path, config_file
        self._is_backup = is_backup
        self._stack = ExitStack()
        self._who = held_by(path)
        self.as_of_ms = now_ms()
        self.owner: OwnersStore | None = None
        if self._who is not None:
            with suppress(StoreAccessError):  # another user's; its files may be readable
                owner = find_owner(path)
                self.owner = None if owner is None else OwnersStore(owner)
            seen = shown_time(self.as_of_ms)
            out.note(f"{path} is open in another process{self._who}. What follows is as of {seen}.")

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    @cached_property
    def files(self) -> TimerStore:
        """The store, opened from its files to be looked at."""
        from timerstore.share import opening

        config = settings(self._config_file)
        store = opening.open(self._path, read_only=True, config=config)
        self._stack.push(store)
        if self._who is None and not self._is_backup and not store.core.findings.clean:
            self._out.note(
                f"{self._path} was not closed. What follows is what the next opening will find."
            )
        return store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def _call(self, name: str, **given: Any) -> Any:
        """Ask the owner; look at the files if it does not answer any more."""
        if self.owner is not None:
            try:
                return getattr(self.owner, name)(**given)
            except (StoreAccessError, StoreClosedError) as e:
                self._leave_owner(e)
        return getattr(self.files, name)(**given)

    def pending(self, **given: Any) -> Iterator[Timer]:
        """Yield pending timers; see `AnyStore.pending`.

        Who asks for all of them reads the files: an owner has better things to do.
        """
        if self.owner is not None and any(given.get(name) is not None for name in _BOUNDS):
            was_told = False
            try:
                for timer in self.owner.pending(**given):
                    was_told = True
                    yield timer
                return
            except (StoreAccessError, StoreClosedError) as e:
                if was_told:
                    raise
                self._leave_owner(e)
        yield from self.files.pending(**given)

    def pending_columns(self, **given: Any) -> Any:
        """Return pending timers as a table; see `pending`."""
        if given.get("end_ms") is None:
            return self.files.pending_columns(**given)
        return self._call("pending_columns", **given)

    @property
    def damage_count(self) -> int:
        """How much damage was met in the files; 0 if only the owner was asked."""
        return self.files.core.engine.damage.count if "files" in vars(self) else 0

    def check(self, what: str, name: str | None) -> None:
        """Refuse a topic or group of which nothing was found, if the store has never seen it."""
        if name is not None:
            check_known(what, name, self.stats().to_dict())

    def _leave_owner(self, error: TimerStoreError) -> None:
        self._out.note(f"{error} This command reads the store's files instead.")
        self.owner = None

    def close(self) -> None:
        """Let everything go."""
        self._stack.close()


def never_seen(what: str, name: str, stats: dict[str, Any]) -> str | None:
    """Say that a store has never seen a topic or group, by its statistics; None if it has."""
    rows = [*stats["groups"], *(stats["topics"] if what == "topic" else [])]
    known = {each[what] for each in rows} - {""}
    return None if name in known else unknown_name(what, name, known)


def check_known(what: str, name: str, stats: dict[str, Any]) -> None:
    """Refuse the name of a topic or group that a store has never seen."""
    text = never_seen(what, name, stats)
    if text is not None:
        raise InvalidArgumentError(text)


def check_is_there(path: Path) -> None:
    """Refuse what is no store's folder, before anything is made there."""
    from timerstore.timelog.files.names import held_names
    from timerstore.timelog.files.oserrors import told_of

    with told_of(path):
        if not check_path(path).exists():
            raise NotAStoreError(f"{path} does not exist. Pass the folder of a store.")
        if not (path.is_dir() and held_names(path)):
            raise NotAStoreError(f"{path} is no timer store. Pass the folder of a store.")


@contextmanager
def looking(out: Output, path: str | Path, config_file: Path | None = None) -> Iterator[Look]:
    """Look at a store, or a backup; say as of when, if that is not plain."""
    from timerstore.core.directory import holds_objects

    with ExitStack() as stack:
        is_backup = "://" in str(path) or holds_objects(Path(path))
        if is_backup:
            folder = stack.enter_context(_fetched(out, path))
        else:
            folder = Path(path)
            check_is_there(folder)
        look = stack.enter_context(closing(Look(out, folder, config_file, is_backup=is_backup)))
        yield look
        if look.damage_count:
            out.note(f"{path} is damaged: what cannot be read is left out. Run timerstore verify.")
            out.status = out.status or DAMAGED


@contextmanager
def _fetched(out: Output, address: str | Path) -> Iterator[Path]:
    """Lay down the last point of a backup, for as long as the block runs; say of when it is."""
    from timerstore.copies.destination import shown_place
    from timerstore.copies.restore import as_folder

    with ExitStack() as stack:
        with out.progress(f"fetching {address}", "bytes") as update:
            found = stack.enter_context(as_folder(address, only_last=True, progress=update))
        folder, point = found
        assert point is not None
        out.note(
            f"{shown_place(address)} is a backup. What follows is as of its last point, "
            f"{shown_time(point.time_ms)}."
        )
        yield folder


@contextmanager
def changing(
    path: Path, config_file: Path | None, *, create: bool = False, is_bulk: bool = False
) -> Iterator[AnyStore]:
    """Yield the store at `path` to be changed; it is made if there is none and `create`.

    `is_bulk`: the command calls `flush` if something must be durable.
    """
    if not create:
        check_is_there(path)
    owner = find_owner(path)
    if owner is not None:
        yield OwnersStore(owner)
        return
    with open_to_change(path, config_file, create=create, is_bulk=is_bulk) as store:
        yield store


def open_to_change(
    path: Path, config_file: Path | None, *, create: bool = False, is_bulk: bool = False
) -> TimerStore:
    """Open a store with the settings of a file, or of the environment.

    `is_bulk`: what is put need not be durable before `flush`.
    """
    from timerstore.share import opening

    if not create:
        check_is_there(path)
    config = settings(config_file)
    if is_bulk:
        config = replace(config, durability="process")
    return opening.open(path, create=create, config=config)


def open_still(path: Path, config_file: Path | None) -> TimerStore:
    """Open a store in which nothing fires, with the settings of a file, or of the environment."""
    from timerstore.store.store import StillStore
    from timerstore.timelog.files.oserrors import told_of

    check_is_there(path)
    with told_of(path):
        return StillStore(path, create=False, config=settings(config_file))


def held_by(path: Path) -> str | None:
    """Return who has a store open, such as " (pid 7)", or None; take no lock, change nothing."""
    from timerstore.timelog.files.lockfile import holder
    from timerstore.timelog.files.oserrors import store_error

    try:
        fd = os.open(path / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise store_error(e, path / "lock") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except BlockingIOError:
        return holder(path)
    finally:
        os.close(fd)
    return None
