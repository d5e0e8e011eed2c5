"""Reading the messages of pending timers into columns, whose segments are mapped on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.reading.scan import ReadAs
from timerstore.wheel import judge as pending
from timerstore.wheel.judge import PendingRead, Reading, places_to_read

T = TypeVar("T")


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


def read_timers(
    engine: Engine,
    messages: Words,
    reading: Reading,
    *,
    in_level: bool = False,
    locate: Callable[[Engine, int], bool],
) -> PendingRead:
    """Read the messages at timers' places. O(bytes).

    `locate` maps the segment of a message; False if it was removed as done with.
    """
    log, queues, found = engine.commitlog, engine.queues.table, MessageParts()
    columns, done = places_to_read(messages), 0
    while True:
        with log.reading() as table:
            done = pending.read_pending(table, queues, in_level, reading, found, columns, done)
        if done == len(messages):
            return columns
        message = int(messages[done])
        if columns.verdict[done] == pending.PENDING and _enter_topic(engine, message):
            continue
        if not locate(engine, message):
            columns.verdict[done] = pending.GONE
            done += 1


def _enter_topic(engine: Engine, message: int) -> bool:
    """Give a message's real topic its row; False if the message was removed meanwhile."""
    try:
        engine.row_of_message(message)
    except CorruptStoreError:
        if message >= engine.commitlog.start:
            raise
        return False
    return True


def map_alone(engine: Engine, message: int) -> bool:
    """Map a message's segment while no service runs."""
    engine.commitlog.readable(message // engine.commitlog.segment_bytes)
    return True


def kept_by(hold: Hold) -> Callable[[Engine, int], bool]:
    """Return what maps the segment of a message that was captured under a hold.

    It returns False if the message was done with before, and raises LapsedError.
    """

    def locate(engine: Engine, message: int) -> bool:
        log = engine.commitlog
        number = message // log.segment_bytes
        return look_held(log, message, hold, lambda: log.existing(number)) is not None

    return locate


def look_held(log: SegmentedFile, offset: int, hold: Hold, look: Callable[[], T]) -> T | None:
    """Return what a look at a place finds that was captured under a hold.

    None if it was done with before. Raises LapsedError if the hold has lapsed and the place is
    gone, and what the look raises if the place is damaged.
    """
    try:
        return look()
    except CorruptStoreError:
        if offset >= log.start:
            raise
        hold.pass_missing(log, offset)
        return None
