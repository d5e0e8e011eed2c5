"""Serving an open store to clients; letting the shell ask it."""

from __future__ import annotations

import logging
import stat
from contextlib import suppress
from typing import Final

from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError, StoreAccessError
from timerstore.share.door import Door, find_door
from timerstore.store.store import TimerStore
from timerstore.timelog.files.oserrors import told_of
from timerstore.values.kinds import check_kind
from timerstore.values.no_pickle import Closes

log = logging.getLogger("timerstore")

_OLD_NAMES: Final = ("serve.sock",)
"""Sockets that versions before this one listened at, beside the one that there is now."""


class Server(Closes):
    """Serves one open store to other processes; made by `serve`. `close` may be called twice."""

    def __init__(self, door: Door) -> None:
        if not door.serve():
            raise StoreAccessError(f"The store {door.path} is served already. Use that server.")
        self._door, self._closed = door, False

    def close(self) -> None:
        """Let no client in any more; calls that are being made end, and are answered."""
        if self._closed or self._door.closing.is_set():
            return
        self._closed = True
        if self._door.may_ask:
            self._door.stop_serving()
        else:
            self._door.close()

    def __repr__(self) -> str:
        """Show the path, and how many connections there are."""
        return f"<Server {str(self._door.path)!r}, {len(self._door.client_wires)} connections>"

    @property
    def client_count(self) -> int:
        """How many clients there are."""
        return len(self._door.sessions)


def serve(store: TimerStore) -> Server:
    """Serve an open store to other processes of this machine and user, until it is closed.

    They connect with `timerstore.connect`, or `timerstore.open(path, share=True)`. Raises
    StoreAccessError if it is served already, or its file system has no sockets.

    >>> with timerstore.open("timers/") as store:
    ...     server = timerstore.serve(store)
    """
    check_kind(store, TimerStore, "store")
    store.core.check_writable()
    if store.core.clock.manual:
        raise InvalidArgumentError(
            "A store with a manual clock cannot be served to other processes. Do not call serve."
        )
    with told_of(store.path):
        return Server(find_door(store) or _open(store))


def let_others_ask(store: TimerStore) -> TimerStore:
    """Let the shell ask an open store, until that is closed; if it cannot, that is logged."""
    core = store.core
    _remove_old(core)
    if core.clock.manual or not core.engine.config.control:
        return store
    try:
        _open(store)
    except (OSError, RuntimeError) as e:  # a file system without sockets, say
        fields = {"store": str(core.path)}
        log.info("%s cannot be asked by other processes: %s", core.path, e, extra=fields)
    except BaseException:
        store.close()
        raise
    return store


def _open(store: TimerStore) -> Door:
    door = Door(store)
    store.core.at_close.insert(0, door.close)
    return door


def _remove_old(core: Core) -> None:
    """Remove sockets at which nobody listens any more: we hold the store's lock."""
    for name in _OLD_NAMES:
        with suppress(OSError):
            if stat.S_ISSOCK(core.disk.status(core.path / name).st_mode):
                core.disk.unlink(core.path / name)
