"""Timers that a broker wrote: cancelled or moved by their own unique key, which `pending` lists.

Such a key says nothing of where its timer waits, and a broker's rolls are not on our grid, so the
pending timers are searched for it, O(pending), without a lock; only the verdict falls under the
locks of the services. Two topics may use one key; then it stands for both timers. What is known of
a timer in the cancelled set is a hash of its topic with its key, as for the deletes of a broker.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from timerstore.core import Core
from timerstore.errors import InvalidArgumentError, TooLateError, UnknownTimerError
from timerstore.ids import format_id
from timerstore.pending.found import find_pending
from timerstore.pending.moved import Payload, compose_moved
from timerstore.pending.overdue import find_waiting_foreign
from timerstore.pending.timers import Timer, read_timer
from timerstore.services.cancel_ahead import cancel_with
from timerstore.services.deletes import compose_delete
from timerstore.timelog.compose import Staged, stage_messages
from timerstore.timelog.decode import decode_message
from timerstore.timelog.format import (
    LEVEL_TOPIC,
)
from timerstore.timelog.message import IDENTITY_OURS
from timerstore.timelog.timeridentity import identity_of


class Foreign(NamedTuple):
    """One pending timer of a broker."""

    message: int  # its latest copy
    due_ms: int
    out_ms: int  # as a broker wrote it: the time of its slot
    high: int  # identity
    low: int
    row: int
    topic: bytes
    key: bytes
    born_ms: int
    body_bytes: int


def find(core: Core, id: str) -> list[Foreign]:
    """Find the pending timers with this key; raise UnknownTimerError where there is none."""
    engine, key = core.engine, id.encode("utf-8", "surrogateescape")
    pending = find_pending(core)
    theirs = np.flatnonzero(pending.high != IDENTITY_OURS)
    for i in theirs[pending.row[theirs] < 0].tolist():  # of topics that nothing was fired to yet
        engine.row_of_message(int(pending.message[i]))
    found = []
    for topic in dict.fromkeys(engine.queues.topics):
        high, low = identity_of(topic, key, engine.store_tag)
        same = theirs[(pending.high[theirs] == high) & (pending.low[theirs] == low)]
        if not len(same):
            continue
        i = int(same[np.argmax(pending.message[same])])
        offset = int(pending.message[i])
        message = decode_message(engine.commitlog.view(offset), offset)
        if message.topic == LEVEL_TOPIC.decode():
            raise InvalidArgumentError(
                f"{id} waits in a delay level, and a broker put it there: it can neither be "
                "cancelled nor moved. Leave it to whoever consumes it."
            )
        row = engine.row_of_message(offset)
        out_ms, due_ms = int(message.properties["TIMER_OUT_MS"]), int(pending.due_ms[i])
        born_ms, body_bytes = message.born_ms, len(message.body)
        who = (high, low, row, topic, key)
        found.append(Foreign(offset, due_ms, out_ms, *who, born_ms, body_bytes))
    return found


def cancel(core: Core, id: str, now_ms: int) -> bool:
    """Cancel the broker's timers with this key; tell whether one was pending, or was cancelled."""
    if _cancelled_before(core, id):
        return True
    found = find(core, id)
    if not found:
        raise _unknown(id)
    done = [_replace(core, timer, [], now_ms) >= 0 for timer in found]
    return any(done)


def reschedule(core: Core, id: str, due_ms: int, now_ms: int, payload: Payload) -> str:
    """Put a timer of ours in the place of a broker's; return its id."""
    if _cancelled_before(core, id):
        raise TooLateError(f"{id} was fired or cancelled. Put a new timer.")
    found = find(core, id)
    if not found:
        raise _unknown(id)
    if len(found) > 1:
        topics = ", ".join(repr(each.topic.decode("utf-8", "replace")) for each in found)
        raise InvalidArgumentError(
            f"{id} stands for timers of the topics {topics}. Cancel them, and put new ones."
        )
    timer: Timer = read_timer(core, found[0].message, found[0].due_ms)
    entry = compose_moved(core, timer, due_ms, id, payload)
    offset = _replace(core, found[0], [entry], now_ms)
    if offset < 0:
        raise TooLateError(f"{id} was fired or cancelled. Put a new timer.")
    return format_id(due_ms, offset, core.engine.store_tag)


def _unknown(id: object) -> UnknownTimerError:
    return UnknownTimerError(
        f"{id!r} is no timer that is pending here. Pass an id that put or pending returned."
    )


def _cancelled_before(core: Core, id: str) -> bool:
    engine, key = core.engine, id.encode("utf-8", "surrogateescape")
    topics = dict.fromkeys(engine.queues.topics)
    pairs = np.array([identity_of(topic, key, engine.store_tag) for topic in topics], np.int64)
    with engine.locks:
        return bool(engine.cancelled.contains(pairs[:, 0].copy(), pairs[:, 1].copy()).any())


def _replace(core: Core, timer: Foreign, entries: list[Staged], now_ms: int) -> int:
    """Append what comes in a timer's place, then its delete; −1, and nothing, where it is late."""
    engine, stage = core.engine, core.take_stage()
    try:
        delete = compose_delete(engine, timer.topic, timer.key, timer.out_ms, now_ms)
        old = (timer.due_ms, timer.born_ms, timer.body_bytes)
        count = stage_messages(stage, [*entries, Staged(delete, 0, 0, timer.row, -1, *old)])
        with engine.locks:
            if not _waits(core, timer):
                return -1
            engine.cancelled.reserve(1)
            return cancel_with(engine, stage, count, timer.high, timer.low, now_ms)
    finally:
        core.free_stage(stage)


def _waits(core: Core, timer: Foreign) -> bool:
    """Tell whether a timer that was pending just now still is. Under the locks of the services."""
    engine, world = core.engine, core.engine.world
    high, low = np.array([timer.high], np.int64), np.array([timer.low], np.int64)
    if engine.cancelled.contains(high, low)[0]:
        return False
    passed_ms = engine.read_slot * engine.precision_ms
    frontier_ms = max(world.dequeue_put.frontier_ms, passed_ms - 1)
    if min(timer.due_ms, timer.out_ms) > frontier_ms:
        return True
    return find_waiting_foreign(core, timer.due_ms, timer.high, timer.low)
