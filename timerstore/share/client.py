"""A client: the calls of a store that another process has open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from timerstore.share.client_calls import AskedCalls
from timerstore.share.link import Link, check_patience
from timerstore.values.kinds import Duration, check_place
from timerstore.values.no_pickle import Stays
from timerstore.watching.any_store import AnyStore

if TYPE_CHECKING:
    from timerstore.consumer.consumersettings import ConsumerSettings
    from timerstore.consumer.messagesource import Source
    from timerstore.store.store import Calls

PATIENCE_S: Final = 30.0
"""How long a call waits for an owner."""


class Client(Stays, AnyStore):
    """A store that another process serves; made by `timerstore.connect`.

    It has the calls of `TimerStore`, with the same errors. Any number of threads may use it, and a
    forked child too, as a client of its own. If the owner ends, a call waits for the next owner,
    and is made there once: nothing is put twice. What was pulled and not acknowledged comes again.
    Raises StoreClosedError if no process serves the store for a while.

    Large calls go in pieces: `put_many` takes one fsync for each 16 MiB, `cancel_many` one for each
    500,000 ids. `pull` returns fewer messages if their bodies take more than 32 MiB. If the owner
    ends during a call, `pending` (begin again), `retry_dead_letters` and `drop_dead_letters` raise
    StoreClosedError.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, timeout: Duration | None = PATIENCE_S
    ) -> None:
        """Connect; see `timerstore.connect`."""
        self._path = check_place(path)
        self._connect(Link(self._path, check_patience(timeout)))

    def _connect(self, link: Link) -> None:
        """Ask through `link`, and see that somebody answers."""
        self._link, self._asked = link, AskedCalls(link)
        self.new_source = self._new_source
        try:
            self._asked.ask("beat")
        except BaseException:
            self.close()
            raise

    @property
    def _calls(self) -> AskedCalls | Calls:
        return self._asked

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    def __repr__(self) -> str:
        closed = ", closed" if self._link.closed.is_set() else ""
        return f"<{type(self).__name__} of {str(self._path)!r}{closed}>"

    def close(self) -> None:
        """Leave. What was pulled and not acknowledged comes again. Twice does nothing."""
        self._link.close()

    def _new_source(self, settings: ConsumerSettings) -> Source:
        """Return what a consumer reads."""
        from timerstore.share.clientsource import ClientSource

        return ClientSource(self, self._link, settings)


def connect(path: str | os.PathLike[str], *, timeout: Duration | None = PATIENCE_S) -> Client:
    """Return a client of a store that another process of this machine and user serves.

    It is a context manager. `timeout`: if nobody serves the store, each call, this one included,
    waits this many seconds, then raises StoreClosedError; None: it waits for ever. Raises
    NotAStoreError if the owner is of another version.

    >>> with timerstore.open("timers/", share=True), timerstore.connect("timers/") as client:
    ...     id = client.put(b"hello")
    """
    return Client(path, timeout=timeout)
