"""How a command comes to a store: to look, or to change it.

Looking takes no lock and fires nothing, so it works beside the process that has the store open.
Changing is asked of that process where there is one (`owner.py`), else the store is opened.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from timerstore.cli.app import settings
from timerstore.cli.output import Output
from timerstore.cli.texts import shown_time
from timerstore.cli.times import now_ms
from timerstore.errors import NotAStoreError

if TYPE_CHECKING:
    from timerstore.store import TimerStore


class Look(NamedTuple):
    """A store as it is looked at."""

    store: TimerStore
    as_of_ms: int
    """What had been put by then is seen."""


def check_is_there(path: Path) -> None:
    """Refuse what is no store's folder, before anything is made there."""
    from timerstore.timelog.oserrors import told_of

    with told_of(path):
        if not (path.is_dir() and any(path.iterdir())):
            raise NotAStoreError(f"{path} is no timer store. Pass a store's folder.")


@contextmanager
def looking(out: Output, path: Path, config_file: Path | None = None) -> Iterator[Look]:
    """Open a store to look at it; say as of when, where that is not plain."""
    import timerstore

    check_is_there(path)
    who, as_of_ms = held_by(path), now_ms()
    with timerstore.open(path, read_only=True, config=settings(config_file)) as store:
        if who is not None:
            out.note(f"As of {shown_time(as_of_ms)}: {path} is open in another process{who}.")
        elif not store.stats().recovery["clean"]:
            out.note(f"{path} was not closed: this is what the next opening will find.")
        yield Look(store, as_of_ms)


def open_to_change(path: Path, config_file: Path | None, *, create: bool = False) -> TimerStore:
    """Open a store with the settings of a file, or of the environment."""
    import timerstore

    if not create:
        check_is_there(path)
    return timerstore.open(path, create=create, config=settings(config_file))


def held_by(path: Path) -> str | None:
    """Return who has a store open, such as " (pid 7)", or None; take no lock, change nothing."""
    from timerstore.timelog.lockfile import holder
    from timerstore.timelog.oserrors import store_error

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
