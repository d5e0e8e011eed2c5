"""The pending timers of an open store, read as rows, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.instant import Instant
from timerstore.services.looking.read_pending import reading_of
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.files.pinned import PinnedLog
from timerstore.timelog.reading.columns import LoggedParts
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.wheel.judge import GONE, PENDING, PlacesRead, read_places

CHUNK_MESSAGES: Final = 8_192


def read_rows(
    engine: Engine,
    log: PinnedLog,
    instant: Instant,
    messages: Words,
    due_ms: Words,
    tell: Callable[[int], None],
) -> Iterator[tuple[LoggedMessages, LoggedParts]]:
    """Yield rows and parts of the timers among messages that were pending at an instant.

    `messages`, `due_ms`: of `Places.in_log_order`, best in their order. The arrays are overwritten
    by the next step, until which texts can be read by their places. `tell` is called with the
    offset of each that is damaged, which is left out. Raises LapsedError. O(bytes).
    """
    reading = reading_of(engine, instant.cancelled)
    rows, parts = LoggedMessages.room(CHUNK_MESSAGES), LoggedParts.room(CHUNK_MESSAGES)
    verdicts = np.zeros(CHUNK_MESSAGES, np.int64)
    into = PlacesRead(rows, parts, verdicts)
    found, state = MessageParts(), np.zeros(1, np.int64)
    for at in range(0, len(messages), CHUNK_MESSAGES):
        message, level_due_ms = (each[at : at + CHUNK_MESSAGES] for each in (messages, due_ms))
        log.pin(message)
        state[0] = 0
        given = log.table, message, level_due_ms, reading, into, found, state
        while read_places(*given) >= 0:
            instant.snapshot.hold.pass_missing(engine.commitlog, int(message[state[0]]))
            verdicts[state[0]] = GONE
            state[0] += 1
        for offset in message[verdicts[: len(message)] < 0].tolist():
            tell(offset)
        pending = verdicts[: len(message)] == PENDING
        if pending.all():
            yield rows[: len(message)], parts[: len(message)]
        else:
            yield rows[: len(message)][pending], parts[: len(message)][pending]
