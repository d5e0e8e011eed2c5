"""Stores that refuse: one that is opened to look at, one in which nothing fires."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn, cast

from timerstore.copies.asfolder import as_folder
from timerstore.copies.destination import Place, is_address
from timerstore.core.core import Core
from timerstore.core.readonlycore import REASON, ReadOnlyCore
from timerstore.errors import ReadOnlyError
from timerstore.store.store import Calls, TimerStore
from timerstore.values.config import Config
from timerstore.values.kinds import check_place


class ReadOnlyStore(TimerStore):
    """A store to look at: what reads works, from `get` to `upcoming` and `stats`.

    Nothing fires in it; what is overdue is pending. Everything else raises ReadOnlyError.
    """

    _Core = ReadOnlyCore

    def __init__(self, path: Place, **options: Any) -> None:
        """Open a store, a standby; or a backup, also by its address: its last point."""
        self._copied = ExitStack()
        try:
            place = path if is_address(path) else check_place(path)
            folder, _ = self._copied.enter_context(as_folder(place, only_last=True))
            super().__init__(folder, **options)
        except BaseException:
            self._copied.close()
            raise

    def _check_clock(self, config: Config) -> None:
        """Take any clock, because nothing fires."""

    def _make_calls(self) -> Calls:
        """Return what does the work of each call; what would change the store is refused."""
        calls, refused = super()._make_calls(), cast(Any, partial(_refuse, self.core))
        calls.flush = calls.clean = calls.consume = calls.pull = refused
        return calls

    def close(self) -> None:
        """Let the files go."""
        self.abandon()
        self._copied.close()

    def handover(self) -> NoReturn:
        """Refuse."""
        _refuse(self.core)


def _refuse(core: Core, *given: object) -> NoReturn:
    core.check_open()
    raise ReadOnlyError(REASON)


class StillStore(TimerStore):
    """A store whose pending timers stay where they are, for who takes them away.

    A pause that is kept stays as it is for the next opening.
    """

    def _make_calls(self) -> Calls:
        self.core.switches.hold_firing()  # before the services start
        return super()._make_calls()
