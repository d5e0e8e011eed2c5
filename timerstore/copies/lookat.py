"""A store, a backup or a standby, as the tables see it."""

from __future__ import annotations

import weakref
from contextlib import ExitStack

from timerstore.copies.destination import is_copy
from timerstore.tables import view as tables
from timerstore.tables.view import StoreView
from timerstore.values.config import DELAY_LEVELS


def look_at(path: str, *, upto: str | None = None, delay_levels: str = DELAY_LEVELS) -> StoreView:
    """Look at a store, or at the store that a backup or a standby would become.

    That lies in a temporary folder of this process, for as long as its reader lives.
    """
    if not is_copy(path):
        return tables.look_at(path, upto=upto, delay_levels=delay_levels)
    from timerstore.copies.restore import as_store  # with all that opens a store

    with ExitStack() as stack:
        folder = stack.enter_context(as_store(path, delay_levels))
        view = tables.look_at(str(folder), upto=upto, delay_levels=delay_levels)
        weakref.finalize(view.reader, stack.pop_all().close)
        return StoreView(view.cut._replace(path=path, is_laid=True), view.reader)
