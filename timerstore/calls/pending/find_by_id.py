"""What an id stands for, if that is to be cancelled or moved: ours, or what a broker wrote.

What a broker wrote has its own unique key for an id, which `pending` lists. Such a key does not say
where its timer waits, and a broker's rolls are not on our grid, so the pending timers are
searched for it, O(pending), without a lock; what became of it since stands in the log. Two topics
may use one key; then it stands for both timers. What is known of a timer in the cancelled set is a
hash of its topic with its key, as for the deletes of a broker.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from timerstore.calls.pending.found import Found, find_pending, read_held
from timerstore.calls.pending.is_pending import judge, parse
from timerstore.calls.pending.timers import Timer, message_timer, read_timer
from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError, InvalidArgumentError, UnknownTimerError
from timerstore.services.calls.appending import compose_delete
from timerstore.services.calls.cancel_ahead import cancel_with
from timerstore.services.calls.first_puts import PUT_DAMAGED
from timerstore.services.engine.holds import while_held
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, identity_of
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.writing.compose import Staged, stage_messages
from timerstore.values.ids import format_id


class Target(NamedTuple):
    """One timer that was pending when it was looked for."""

    timer: Timer
    out_ms: int  # what a delete of it must say: its due time, of a broker's the time of its slot
    high: int  # identity
    low: int
    row: int  # where it is counted
    log: int  # the commit log's end, before it was looked for


def id_as_written(core: Core, id: str) -> str:
    """Return the id of a timer of this store as it stands in the log, or refuse it."""
    (due_ms, *_), (first, *_) = parse(core, [id])
    id = format_id(int(due_ms), int(first), core.engine.store_tag)
    if first >= fmt.LEVEL_MARK:
        raise InvalidArgumentError(
            f"The timer {id} waits in a delay level, and messages of a delay level keep their "
            "order. Cancel it, and put a new timer."
        )
    return id


def find_ours(core: Core, id: str) -> Target | None:
    """Find a timer of this store; None if it is too late."""
    while True:
        verdict = judge(core, [id])
        if not verdict.pending[0] and verdict.row[0] != PUT_DAMAGED:
            return None
        offset, due_ms = int(verdict.offset[0]), int(verdict.due_ms[0])
        message = int(verdict.message[0])
        try:
            timer = read_timer(core, message, due_ms)
        except CorruptStoreError:
            if message >= core.engine.commitlog.start:
                raise
            continue  # it was copied, and retention removed its segment just now
        row = core.engine.queues.row(_topic(timer))
        return Target(timer, due_ms, IDENTITY_OURS, offset, row, verdict.log)


def broker_copies(core: Core, id: str) -> list[tuple[Message, Timer]]:
    """Find what is pending of a broker's with this key: the latest copy of each timer.

    There is one for each topic that uses the key.
    """
    try:
        key = id.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return []
    return while_held(lambda: _broker_copies(core, key))


def _broker_copies(core: Core, key: bytes) -> list[tuple[Message, Timer]]:
    engine, pending = core.engine, find_pending(core)
    theirs = np.flatnonzero(pending.high != IDENTITY_OURS)
    unread = theirs[pending.row[theirs] < 0].tolist()  # of topics that nothing was fired to yet
    topics = dict.fromkeys(engine.queues.topics)
    topics |= dict.fromkeys(_topic(_read(core, pending, i)[1]) for i in unread)
    found = []
    for topic in topics:
        high, low = identity_of(topic, key, engine.store_tag)
        same = theirs[(pending.high[theirs] == high) & (pending.low[theirs] == low)]
        if len(same):
            latest = int(same[np.argmax(pending.message[same])])
            found.append(_read(core, pending, latest))
    return found


def _read(core: Core, found: Found, i: int) -> tuple[Message, Timer]:
    """Decode one of the pending timers. Raises LapsedError."""
    message = read_held(core, int(found.message[i]), found.hold)
    return message, message_timer(message, int(found.due_ms[i]))


def find_theirs(core: Core, id: str) -> list[Target]:
    """Find the timers of a broker with this key; raise UnknownTimerError if there is none."""
    engine, found, log = core.engine, [], core.engine.commitlog.end
    for message, timer in broker_copies(core, id):
        if message.topic == fmt.LEVEL_TOPIC.decode():
            raise InvalidArgumentError(
                f"The message {id} waits in a delay level, and a broker put it there, so it can "
                "neither be cancelled nor rescheduled. Let its consumer handle it."
            )
        identity = identity_of(_topic(timer), _key(timer), engine.store_tag)
        queue_id = message.properties.get("REAL_QID", "")
        row = engine.queues.row(_topic(timer), int(queue_id) if queue_id.isdecimal() else 0)
        out_ms = int(message.properties["TIMER_OUT_MS"])
        found.append(Target(timer, out_ms, *identity, row, log))
    if not found:
        raise UnknownTimerError(
            f"{id!r} is no timer that is pending here. Pass an id that put or pending returned."
        )
    return found


def is_cancelled(core: Core, id: str) -> bool:
    """Tell whether a broker's timer with this key was cancelled, and its time is still to come."""
    engine, key = core.engine, id.encode("utf-8", "surrogateescape")
    topics = dict.fromkeys(engine.queues.topics)
    pairs = np.array([identity_of(topic, key, engine.store_tag) for topic in topics], np.int64)
    high, low = pairs.T.copy()
    return bool(engine.cancelled.contains_now(engine.world.fire_lock, high, low).any())


def replace(core: Core, target: Target, entries: list[Staged], now_ms: int) -> int | None:
    """Append what comes in a timer's place, if anything, then its delete.

    Return the first one's offset; None, and nothing done, if the timer is to be looked for anew.
    """
    engine, timer = core.engine, target.timer
    delete = compose_delete(engine, _topic(timer), _key(timer), target.out_ms, now_ms)
    old = (timer.due_ms, timer.put_ms, len(timer.body))
    stage = core.take_stage()
    try:
        count = stage_messages(stage, [*entries, Staged(delete, 0, 0, target.row, -1, *old)])
        identity = target.high, target.low
        return cancel_with(engine, stage, count, identity, target.log, now_ms)
    finally:
        core.free_stage(stage)


def _topic(timer: Timer) -> bytes:
    return timer.topic.encode("utf-8", "surrogateescape")


def _key(timer: Timer) -> bytes:
    return timer.id.encode("utf-8", "surrogateescape")
