"""Reading the messages of pending timers into columns, whose segments are mapped on the way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.jit.record import Words
from timerstore.timelog.reading.scan import ReadAs
from timerstore.wheel import judge as pending
from timerstore.wheel.judge import PendingRead, Reading, places_to_read


def reading_of(engine: Engine, cancelled: Words, *, verify: bool = True) -> Reading:
    """Return how messages of an open store are read if that may be cancelled."""
    return Reading(
        ReadAs(engine.store_tag, engine.precision_ms, engine.level_ms, verify),
        done=engine.done,
        done_count=int(engine.world.done.count),
        cancelled=cancelled,
    )


def reading_all(engine: Engine) -> Reading:
    """Return how messages are read if nothing is known to be done or cancelled."""
    return reading_of(engine, np.zeros(0, np.int64))._replace(done_count=0)


def reading_for_broker(engine: Engine) -> Reading:
    """Return how a broker reads them: no checksum, topics by their hash."""
    reading = reading_all(engine)
    return reading._replace(how=reading.how._replace(verify=False), with_hashes=True)


def read_timers(
    engine: Engine,
    messages: Words,
    reading: Reading,
    *,
    in_level: bool = False,
    locate: Callable[[Engine, int], bool],
) -> PendingRead:
    """Read the messages at timers' places. O(bytes).

    `locate` maps the segment of a message, or says that it is gone.
    """
    log, queues, found = engine.commitlog, engine.queues.table, MessageParts()
    columns, done = places_to_read(messages), 0
    while True:
        with log.reading() as table:
            done = pending.read_pending(table, queues, in_level, reading, found, columns, done)
        if done == len(messages):
            return columns
        message = int(messages[done])
        if columns.verdict[done] == pending.PENDING:
            is_there = _enter_topic(engine, message)
        else:
            is_there = locate(engine, message)
        if not is_there:
            columns.verdict[done] = pending.GONE
            done += 1


def _enter_topic(engine: Engine, message: int) -> bool:
    """Give a message's real topic its row; False if the message was removed meanwhile."""
    return _while_kept(engine, message, lambda: engine.row_of_message(message))


def map_alone(engine: Engine, message: int) -> bool:
    """Map a message's segment while no service runs, so that few are mapped at a time."""
    engine.commitlog.trim()
    engine.commitlog.readable(message // engine.commitlog.segment_bytes)
    return True


def map_kept(engine: Engine, message: int) -> bool:
    """Map a message's segment; False if retention has removed it."""
    log = engine.commitlog
    return _while_kept(engine, message, lambda: log.existing(message // log.segment_bytes))


def _while_kept(engine: Engine, message: int, look: Callable[[], object]) -> bool:
    """Look at a message; False if retention has removed it, with the exception that this raised."""
    try:
        look()
    except CorruptStoreError:
        if message >= engine.commitlog.start:
            raise
        return False
    return True
