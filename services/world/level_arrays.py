"""Delay levels: the arrays that their loops share with Python.

Each level is a queue of `SCHEDULE_TOPIC_XXXX`, in the order of arrival, with one offset: the index
of its first message that was not delivered. Ground rules: everything here is read and written under
fire. Only the kernel `deliver_levels` writes `offset`, the cached head and the turn; Python writes
rows, delays and mapped segments.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.jit.lent import Lent, new_lent
from timerstore.jit.record import Words, record
from timerstore.timelog.bytes import format as fmt

NO_HEAD: Final = -1
CLAMP_SLACK_MS: Final = 1_000
"""A due time may lie this much further ahead than a level before it counts as the clock's fault: a
clock that is corrected by milliseconds delivers nothing early."""

NOT_READ: Final = -1
"""A message's own level was not asked for; LEADS_NOWHERE: the message cannot be read."""
LEADS_NOWHERE: Final = -(1 << 50)
RETRY_WAIT_MS_MAX: Final = 60_000
"""The longest wait between attempts to deliver, if there is no space."""


@record
class LevelTable:
    """The loops of all delay levels, by level − 1."""

    row: Words  # int64[LEVEL_COUNT_MAX]: of its queue, −1 for none
    level_ms: Words  # int64[LEVEL_COUNT_MAX]: its delay now; not configured: the longest
    offset: Words  # int64[LEVEL_COUNT_MAX]: index of the first message that was not delivered
    head_index: Words  # int64[LEVEL_COUNT_MAX]: the index whose due time is cached, or NO_HEAD
    head_ms: Words  # int64[LEVEL_COUNT_MAX]: that due time
    head_message: Words  # int64[LEVEL_COUNT_MAX]: commit log offset of that message
    head_level_ms: Words  # int64[LEVEL_COUNT_MAX]: how long its level was then, or NOT_READ
    retry_ms: Words  # int64[LEVEL_COUNT_MAX]: not before; set if a delivery failed
    fail_count: Words  # int64[LEVEL_COUNT_MAX]: deliveries that failed in a row
    wanted: Words  # int64[LEVEL_COUNT_MAX]: segment of its queue that must be mapped
    number: Words  # int64[LEVEL_COUNT_MAX]: the segment of its queue that is mapped, −1 for none
    lent: Lent  # LEVEL_COUNT_MAX of them: these segments
    count: int = 0
    """Queues that exist: at least one for each configured level."""
    turn: int = 0
    """Which one is looked at first."""
    batch_max: int = 0
    """Messages that one append takes."""
    failed: int = -1
    """The level whose step had a need, −1 for none."""
    delivered_count: int = 0
    clamped_count: int = 0
    skipped_count: int = 0
    """Sources that had their copy from an earlier life."""


def new_level_table(level_ms: Words, batch_max: int) -> LevelTable:
    """Return a table without queues; `level_ms`: int64[n], the configured delays."""

    def column(value: int) -> Any:
        return np.full(fmt.LEVEL_COUNT_MAX, value, np.int64)

    delays = column(int(level_ms.max()))
    delays[: len(level_ms)] = level_ms
    return LevelTable(
        row=column(-1),
        level_ms=delays,
        offset=column(0),
        head_index=column(NO_HEAD),
        head_ms=column(0),
        head_message=column(0),
        head_level_ms=column(NOT_READ),
        retry_ms=column(0),
        fail_count=column(0),
        wanted=column(0),
        number=column(-1),
        lent=new_lent(fmt.LEVEL_COUNT_MAX),
        batch_max=batch_max,
    )
