"""When a broker's delay level messages are due: as its own queue entries say.

Recovery writes queue entries anew from the log. A message that we put at a level says by its key
when it is due; a broker's has only the level's number, and how long that level was stands in the
broker's configuration, not in the store. The entry that the broker wrote says it.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.reading.scan import LoggedMessages

log = logging.getLogger("timerstore")
_LEVEL_MS_MAX: Final = 36_500 * 86_400_000
"""If an entry says a longer level, it is damaged."""


class LevelDueTimes:
    """What the entries say that were there before recovery; rows are given in the log's order."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._level_ms: dict[int, int] = {}  # by queue row: how long the level was for the last one
        self._warned = False

    def keep(self, part: LoggedMessages, queue_rows: Words) -> None:
        """Replace the due times of scanned messages in levels by those of their entries.

        One without an entry, as a broker leaves that was killed, waits as long as the one before.
        """
        for row in self.engine.queues.rows(fmt.LEVEL_TOPIC):
            at = np.flatnonzero(queue_rows == row)
            ours = part.identity_high[at] == IDENTITY_OURS
            ours &= part.identity_low[at] == part.offset[at] | fmt.LEVEL_MARK
            at = at[~ours]
            if len(at):
                part.tags_code[at] = self._due_ms(row, part[at])

    def _due_ms(self, row: int, mine: LoggedMessages) -> Words:
        entries = self._entries(row, mine.queue_index)
        stored_ms = mine.stored_ms
        level_ms = entries["tags_code"].astype(np.int64) - stored_ms
        known = (entries["offset"] == mine.offset) & (level_ms > 0)
        known &= (entries["size"] == mine.size) & (level_ms <= _LEVEL_MS_MAX)
        before = self._level_ms.get(row)
        if before is None and not known[0]:
            if known.any():
                before = int(level_ms[np.argmax(known)])
            else:
                before = int(mine.tags_code[0] - stored_ms[0])
                self._warn()
        last = np.maximum.accumulate(np.where(known, np.arange(len(mine)), -1))
        level_ms = np.where(last >= 0, level_ms[last], before if before is not None else 0)
        if known.any():
            self._level_ms[row] = int(level_ms[-1])
        return stored_ms + level_ms

    def _entries(self, row: int, indexes: Words) -> np.ndarray[Any, Any]:
        """Return the entries at these indexes; zeros if there are none."""
        queues, found = self.engine.queues, np.zeros(len(indexes), fmt.QUEUE_ENTRY)
        numbers = indexes // queues.segment_entries
        for number in np.unique(numbers).tolist():
            if number in queues.files[row].numbers:
                here = numbers == number
                segment = queues.existing(row, number).view.view(fmt.QUEUE_ENTRY)
                found[here] = segment[indexes[here] % queues.segment_entries]
        return found

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "%s: messages of a delay level have no queue entries that say when they are due; "
                "they wait as long as Config.delay_levels says",
                self.engine.path,
            )
