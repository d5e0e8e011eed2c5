"""A store that several processes use alike: one of them owns it, whichever comes first.

The owner calls its store, the others are its clients: all of them have the same calls, and none
notices which one it is. If the owner ends, one of the others opens the store: its lock decides
which. Only that one imports the engine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from timerstore.errors import StoreClosedError, StoreLockedError
from timerstore.share.client import PATIENCE_S, Client
from timerstore.share.link import Link, taking_over
from timerstore.timelog.files.oserrors import told_of
from timerstore.values.config import Config
from timerstore.values.kinds import check_kind, check_place

if TYPE_CHECKING:
    from timerstore.consumer.consumersettings import ConsumerSettings
    from timerstore.consumer.subscription import Source
    from timerstore.share.client import AskedCalls
    from timerstore.store.store import Calls, TimerStore

_PROBLEM_S = 1.0


class SharedStore(Client):
    """A store that this process owns if no other one does; made by `timerstore.open`.

    It has the calls of `TimerStore`; see `Client`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = True, config: Config | None = None
    ) -> None:
        self._path, self._create, self._config = check_place(path), create, config
        if config is not None:
            check_kind(config, Config, "config")
        self._store: TimerStore | None = None
        self._connect(Link(self._path, PATIENCE_S, self._own))
        self._create = False  # a store that has gone is not one to begin anew

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the store now."""
        return self._owned() is not None

    def _owned(self) -> TimerStore | None:
        store = self._store
        return None if store is None or store.core.forked else store

    @property
    def _calls(self) -> AskedCalls | Calls:
        store = self._owned()
        return self._asked if store is None else store.calls

    @property
    def _may_wait(self) -> bool:
        try:
            if (owned := self._owned()) is not None:
                owned.core.check_open()
        except StoreClosedError:
            return False
        return super()._may_wait

    def _new_source(self, settings: ConsumerSettings) -> Source:
        """Return what a consumer reads: the store itself if it needs that."""
        owned = self._owned() if settings.ordered or settings.broadcast else None
        if owned is None:
            return super()._new_source(settings)
        from timerstore.consumer.consumer import source_of

        return source_of(owned, settings)

    def _own(self) -> None:
        """Open the store for all, unless another process has it open; called by the heart."""
        if self._owned() is not None:  # it has stopped, or it is not served any more
            return
        with taking_over(self._path, self._create) as is_alone:
            if is_alone:
                self._open()

    def _open(self) -> None:
        from timerstore.share.server import let_others_ask, serve
        from timerstore.store.store import TimerStore

        try:
            with told_of(self._path):
                store = TimerStore(self._path, create=self._create, config=self._config)
            let_others_ask(store)
            self._store = store  # before anybody can tell
            try:
                serve(store)
            except BaseException:
                self._store = None
                store.close()
                raise
        except StoreLockedError:
            self._link.problem = None
            return
        except BaseException as e:
            self._link.problem = e
            self._link.closed.wait(_PROBLEM_S)
            return
        self._link.problem = None

    def close(self) -> None:
        """Leave. If this process is the owner, another process that shares the store takes over."""
        self._link.close()
        store, self._store = self._store, None
        if store is not None:
            store.close()
