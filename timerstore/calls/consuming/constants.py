"""What both ends of a served store go by when messages are consumed.

A client imports this file and none of the engine.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from timerstore.timelog.bytes import format as fmt

CONSUME_COUNT: Final = 512
"""Messages that an iterator takes from its group at once; it gives back what it did not yield."""
LISTED_MAX: Final = 1_000
"""Dead letters that are listed if no limit is given."""
WAIT_S: Final = 0.5
"""A client's pull waits so long at the owner; a client that wants to wait longer asks again."""
DEAD: Final = -1
Wait = int | timedelta
"""What a message that failed waits for: a delay level from 1, or so long; or DEAD."""


def dead_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return fmt.DEAD_PREFIX.decode() + group
