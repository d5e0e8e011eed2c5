"""Pending timers as arrays: all of them, or some at a time, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.core.core import Core
from timerstore.services.damage.pass_by import name_lost
from timerstore.services.engine.holds import Hold, LapsedError, while_held
from timerstore.services.looking.instant import Instant, capture_instant
from timerstore.services.looking.read_pending import look_held, reading_of
from timerstore.services.looking.timer_places import (
    NEVER_MS,
    OF_LEVEL,
    DueOrder,
    Places,
    join_places,
)
from timerstore.timelog.bytes.decode import Message, decode_message
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.files.pinned import PinnedLog
from timerstore.values.ids import Int64s
from timerstore.values.kinds import check_name
from timerstore.wheel import judge as pending
from timerstore.wheel.judge import IN_MESSAGE
from timerstore.wheel.sets import map_keys

_NOTHING: Final = np.zeros(0, np.int64)
_AT_FIRST: Final = 256
_AT_ONCE_MAX: Final = 8_192
"""Places whose messages are read together, more each time."""

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Found(NamedTuple):
    """Pending timers, one row each."""

    message: Int64s  # commit log offset of the latest copy
    due_ms: Int64s
    high: Int64s  # identity
    low: Int64s
    rolls: Int64s
    row: Int64s  # queue of the real topic
    in_level: Int64s  # 1 if it waits in a delay level
    damaged: Int64s  # messages that cannot be read; they are in no row
    hold: Hold  # the messages are there while this lasts

    def choose(self, which: Int64s | Bools | slice) -> Found:
        """Return some rows."""
        rows = [column[which] for column in self[:_ROWS]]
        return Found._make([*rows, self.damaged, self.hold])

    def of_topic(self, core: Core, topic: str) -> Found:
        """Return those of a topic."""
        return self.choose(np.isin(self.row, core.engine.queues.rows(check_name(topic))))


_ROWS: Final = 7
"""How many columns of a `Found` are rows."""


def read_messages(
    core: Core,
    messages: Int64s,
    hold: Hold,
    cancelled: Int64s = _NOTHING,
    level_due_ms: Int64s | None = None,
) -> Found:
    """Read messages into a `Found`, segment by segment; sources that are done are left out.

    So is what cannot be read, because its checksum is compared; `find_pending` names it. O(bytes).
    `hold`: under which they were captured; raises LapsedError.

    `cancelled`: the table of what was cancelled, and is left out as well. `level_due_ms`: what
    levels say of messages that are in the order of the log, see `Places.in_log_order`.
    """
    engine = core.engine
    if level_due_ms is None:
        messages, level_due_ms = np.sort(messages), np.full(len(messages), IN_MESSAGE)
    segment_bytes, log = engine.commitlog.segment_bytes, PinnedLog(engine.commitlog)
    reading = reading_of(engine, cancelled)
    parts, damaged = [np.empty((_ROWS, 0), np.int64)], [_NOTHING]
    found = MessageParts()
    edges = np.flatnonzero(np.diff(messages // segment_bytes)) + 1
    split = zip(np.split(messages, edges), np.split(level_due_ms, edges), strict=True)
    for part, due_ms in split if len(messages) else ():
        if not log.map_from(int(part[0]), part):
            hold.pass_missing(engine.commitlog, int(part[0]))
            continue
        columns = pending.places_to_read(part, due_ms)
        pending.read_pending(log.table, engine.queues.table, reading, found, columns, 0)
        verdicts = columns.verdict
        kept = verdicts == pending.PENDING
        who = columns.due_ms, columns.high, columns.low, columns.rolls, columns.row
        parts.append(np.vstack((part, *who, due_ms != IN_MESSAGE))[:, kept])
        damaged.append(part[verdicts < 0])
    return Found._make([*np.concatenate(parts, axis=1), np.concatenate(damaged), hold])


def read_held(core: Core, offset: int, hold: Hold) -> Message:
    """Decode a message that was captured under a hold; raises LapsedError if it is gone."""
    log = core.engine.commitlog
    message = look_held(log, offset, hold, lambda: decode_message(log.view(offset), offset))
    if message is None:
        raise LapsedError
    return message


def find_pending(core: Core, instant: Instant | None = None) -> Found:
    """Return all timers that were pending at an instant, or now. O(bytes).

    What was fired since is among them. What cannot be read is left out, and named. Raises
    LapsedError if the hold of the instant that was given lapses.
    """
    with core.gate.guard():
        core.check_open()
        if instant is not None:
            return _find_pending(core, instant)
        return while_held(lambda: _find_pending(core, capture_instant(core.engine)))


def _find_pending(core: Core, instant: Instant) -> Found:
    everything = join_places(DueOrder(core.engine, instant).all())
    return read_places(core, instant, everything)


def read_places(core: Core, instant: Instant, places: Places) -> Found:
    """Return the timers that were pending at some places, in no order. O(bytes).

    What cannot be read is left out, and named. Raises LapsedError.
    """
    messages, level_due_ms = places.in_log_order()
    hold = instant.snapshot.hold
    found = read_messages(core, messages, hold, instant.cancelled, level_due_ms)
    for message in found.damaged.tolist():
        name_lost(core.engine, message)
    return found


def _nothing(hold: Hold) -> Found:
    return Found._make([*[_NOTHING] * (_ROWS + 1), hold])


def _join(one: Found, other: Found) -> Found:
    return Found._make([*map(np.concatenate, zip(one[:-1], other[:-1], strict=True)), one.hold])


def find_in_order(
    core: Core, start_ms: int, end_ms: int, instant: Instant | None = None
) -> Iterator[Found]:
    """Yield the timers that were pending at an instant, by due time, then by place in the log.

    Those with start_ms <= due < end_ms, some at a time; O(what was read so far), see
    `timer_places.py`. Raises LapsedError if the instant's hold lapses.
    """
    with core.gate.guard():
        core.check_open()
        instant = instant or capture_instant(core.engine)
        order = DueOrder(core.engine, instant, start_ms, end_ms)
    waiting, count, until = _nothing(instant.snapshot.hold), _AT_FIRST, (0, 0)
    while until[0] < NEVER_MS:
        with core.gate.guard():
            core.check_open()
            places, until = order.next(count)
            count = min(2 * count, _AT_ONCE_MAX)
            found = _join(waiting, read_places(core, instant, places))
        due_ms, message = found.due_ms, found.message
        is_next = (due_ms < until[0]) | ((due_ms == until[0]) & (message < until[1]))
        waiting = found.choose(~is_next)
        ready = np.flatnonzero(is_next & (due_ms >= start_ms) & (due_ms < end_ms))
        if len(ready):
            yield found.choose(ready[np.lexsort((message[ready], due_ms[ready]))])


def first_due_ms(core: Core, start_ms: int, stop_ms: int) -> int:
    """Return when the first timer in [start_ms, stop_ms) is due, else `stop_ms`."""
    found = next(find_in_order(core, start_ms, stop_ms), None)
    return stop_ms if found is None else int(found.due_ms[0])


def count_due(core: Core, bucket_ms: int, start_ms: int, end_ms: int) -> tuple[Int64s, Int64s]:
    """Return the buckets in which timers with start_ms <= due < end_ms are due, and how many.

    O(units of the slots that may lead there): a message is read only if its unit leaves the bucket
    open, or if something was cancelled.
    """
    with core.gate.guard():
        core.check_open()
        return while_held(lambda: _count_due(core, bucket_ms, start_ms, end_ms))


def _count_due(core: Core, bucket_ms: int, start_ms: int, end_ms: int) -> tuple[Int64s, Int64s]:
    engine, instant = core.engine, capture_instant(core.engine)
    precision_ms, done = engine.precision_ms, _NOTHING
    if engine.world.done.count:
        done = map_keys(engine.done)
    buckets = counts = _NOTHING
    for places in DueOrder(engine, instant, start_ms, end_ms).all():
        first_ms, last_ms = places.due_ms, places.last_ms(precision_ms)
        is_said = (places.known != OF_LEVEL) & (first_ms // bucket_ms == last_ms // bucket_ms)
        is_said &= (first_ms >= start_ms) & (last_ms < end_ms) & (len(instant.cancelled) == 0)
        is_said &= ~np.isin(places.message, done)
        due_ms = read_places(core, instant, places.choose(~is_said)).due_ms
        due_ms = due_ms[(due_ms >= start_ms) & (due_ms < end_ms)]
        found, count = np.unique(
            np.concatenate([first_ms[is_said], due_ms]) // bucket_ms, return_counts=True
        )
        buckets, place = np.unique(np.concatenate([buckets, found]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, count]), len(buckets)).astype(np.int64)
    return buckets, counts
