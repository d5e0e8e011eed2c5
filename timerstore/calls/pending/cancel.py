"""A timer of any kind by its id: looked at, cancelled, moved to another time.

What a broker wrote has its own unique key for an id, which `pending` lists. Such a key does not say
where its timer waits, and a broker's rolls are not on our grid, so the pending timers are
searched for it, O(pending), without a lock; what became of it since stands in the log. Two topics
may use one key; then it stands for both timers. What is known of a timer in the cancelled set is a
hash of its topic with its key, as for the deletes of a broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timerstore.calls.pending.is_pending import (
    Bools,
    Found,
    find,
    find_pending,
    is_foreign,
    judge,
    parse,
    read_held,
    read_messages,
)
from timerstore.calls.pending.timers import Payload, Timer, compose_moved, message_timer, read_timer
from timerstore.core.core import Core
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    TooLateError,
    UnknownTimerError,
)
from timerstore.services.calls.appending import compose_delete
from timerstore.services.calls.cancel import (
    CANCELLED_BEFORE,
    CANCELLED_NOW,
    NAMED_SINCE,
    NOBODY_LOOKED,
    NOT_JUDGED,
    Verdicts,
    cancel_ahead,
    cancel_with,
)
from timerstore.services.calls.first_puts import PUT_DAMAGED, FirstPuts
from timerstore.services.damage.pass_by import name_lost
from timerstore.services.engine.holds import while_held
from timerstore.services.looking.instant import capture_instant, is_intact
from timerstore.services.looking.timer_places import slot_messages, unlinked_messages
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, identity_of
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.files.nonzero import nonzero_places
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX
from timerstore.timelog.writing.compose import Staged, stage_messages
from timerstore.values.ids import Int64s, TimerIds, format_id, parse_id, read_plain
from timerstore.values.kinds import check_list
from timerstore.wheel.timerwheel import may_have_rolled


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
        puts = verdict.puts
        if not verdict.pending[0] and puts.row[0] != PUT_DAMAGED:
            return None
        offset, due_ms = int(puts.offset[0]), int(puts.due_ms[0])
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
    return bool(engine.cancelled.contains(high, low).any())


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


# --- cancelling
#
# A cancel appends a *delete*: a message of the timer topic that names its target (topic, unique
# key) and has its due time, so that it stands on the same grid of slots. A kernel judges and
# appends under fire, the lock under which dequeue-put looks into the cancelled set and appends, as
# one step:
#
# - If the timer was not appended yet, it joins the cancelled set, the delete is appended: True.
# - If it was cancelled before and its due time is still to come: True again, once that delete is
#   durable. Nothing is appended. If you lost an answer, ask again.
# - If it was taken or has fired: False.
# - If its message is damaged: False. It was taken off the count when the damage was met.
#
# A broker's timer is cancelled by its own unique key, which does not say where it waits; so pending
# timers are searched, without a lock. A key that two topics use stands for both timers. What a
# broker put into a delay level cannot be cancelled.


def cancel_many(core: Core, ids: Sequence[str]) -> Bools:
    """Cancel timers; bool[n] as from `TimerStore.cancel`. Their deletes are not durable yet."""
    if not isinstance(ids, TimerIds):
        ids = check_list(ids, "ids", "Pass a sequence of ids, or call cancel.")
    if len(ids) == 0:
        return np.zeros(0, np.bool_)
    now_ms = core.clock.now_ms
    plain = read_plain(ids, core.engine.store_tag)
    return _cancel_ours(core, *plain, now_ms) if plain else _cancel_each(core, ids, now_ms)


def _cancel_each(core: Core, ids: Sequence[str], now_ms: int) -> Bools:
    """Cancel timers whose ids have to be looked at one by one: a broker's may be among them.

    All are found before any is cancelled, so that an id which is none leaves all as it was.
    """
    done = np.zeros(len(ids), np.bool_)
    theirs = np.array([is_foreign(core, id) for id in ids])
    ours = parse(core, [id for id, other in zip(ids, theirs.tolist(), strict=True) if not other])
    places = np.flatnonzero(theirs).tolist()
    found = [[] if is_cancelled(core, ids[i]) else find_theirs(core, ids[i]) for i in places]
    if len(places) < len(ids):
        done[~theirs] = _cancel_ours(core, *ours, now_ms)
    for i, targets in zip(places, found, strict=True):
        done[i] = _cancel_theirs(core, ids[i], targets, now_ms) or is_cancelled(core, ids[i])
    return done


def _cancel_theirs(core: Core, id: str, targets: list[Target], now_ms: int) -> bool:
    """Cancel the timers of a broker that have a key; tell whether one was pending."""
    done = False
    while targets:
        left = [each for each in targets if replace(core, each, [], now_ms) is None]
        done = done or len(left) < len(targets)
        try:
            targets = find_theirs(core, id) if left else []
        except UnknownTimerError:  # they were taken just now
            break
    return done


def _cancel_ours(core: Core, due_ms: Int64s, offsets: Int64s, now_ms: int) -> Bools:
    found = find(core, due_ms, offsets)
    for offset in offsets[found.row == PUT_DAMAGED].tolist():
        name_lost(core.engine, offset & ~fmt.LEVEL_MARK)
    verdicts = np.zeros(len(offsets), np.int8)
    if not core.engine.uncounted:  # else a later copy may be damaged
        verdicts = _cancel_found(core, found, now_ms)
    cancelled_before = (verdicts == CANCELLED_BEFORE) & (found.due_ms > now_ms)
    done: Bools = (verdicts == CANCELLED_NOW) | cancelled_before
    left = np.flatnonzero(verdicts == NOT_JUDGED)
    while len(left):
        others = TimerIds(found.due_ms[left], found.offset[left], core.engine.store_tag)
        verdicts, done[left] = _cancel_others(core, others, now_ms)
        left = left[verdicts == NAMED_SINCE]
    return done


def _cancel_found(core: Core, found: FirstPuts, now_ms: int, log: int = NOBODY_LOOKED) -> Verdicts:
    """Cancel those that were certainly not taken; int8[n], as from `cancel_ahead`."""
    engine, stage = core.engine, core.take_stage()
    verdicts = np.zeros(len(found.row), np.int8)
    try:
        for row, mine in _by_row(found.row):
            verdicts[mine] = cancel_ahead(
                engine,
                stage,
                engine.queues.topics[row % QUEUE_COUNT_MAX],
                row,
                FirstPuts(*(column[mine] for column in found)),
                now_ms,
                log,
            )
    finally:
        core.free_stage(stage)
    return verdicts


def _by_row(rows: Int64s) -> Iterator[tuple[int, Int64s | slice]]:
    """Yield each queue's row with the places that it has, without those of no queue."""
    if len(rows) and rows[0] >= 0 and (rows == rows[0]).all():
        yield int(rows[0]), slice(None)
        return
    for row in np.unique(rows[rows >= 0]).tolist():
        yield row, np.flatnonzero(rows == row)


def _cancel_others(core: Core, ids: TimerIds, now_ms: int) -> tuple[Verdicts, Bools]:
    """Cancel timers that may have been taken, or whose first put retention has removed.

    Return what became of each, and which are cancelled and still to come. NAMED_SINCE: ask again.
    """
    judged = judge(core, ids)
    verdicts = np.where(judged.cancelled, CANCELLED_BEFORE, NOT_JUDGED).astype(np.int8)
    chosen = nonzero_places(judged.pending)
    chosen = chosen[np.argsort(judged.puts.offset[chosen], kind="stable")]
    puts = FirstPuts(*(column[chosen] for column in judged.puts))
    verdicts[chosen] = _cancel_found(core, puts, now_ms, judged.log)
    done: Bools = (verdicts == CANCELLED_NOW) | (
        (verdicts == CANCELLED_BEFORE) & (judged.puts.due_ms > now_ms)
    )
    return verdicts, done


# --- one of any kind by its id


def get(core: Core, id: str) -> Timer | None:
    """Return a pending timer; see `TimerStore.get`."""
    if not isinstance(id, str):
        raise InvalidArgumentError(f"id is {id!r}. Pass an id that put returned, a str.")
    parsed = parse_id(id)
    if parsed is None or parsed.tag != core.engine.store_tag:
        copies = broker_copies(core, id)
        return copies[0][1] if copies else None
    offset, due_ms = parsed.offset, parsed.due_ms
    while True:
        verdict = judge(core, [id])
        message = int(verdict.message[0])
        if not verdict.pending[0] and (
            verdict.puts.row[0] != PUT_DAMAGED or due_ms <= core.clock.now_ms
        ):
            return None
        try:
            first = read_timer(core, message, due_ms)
            latest = offset
            if message == offset:
                put_ms = first.put_ms
                latest = while_held(lambda: latest_copy(core, offset, due_ms, put_ms))  # noqa: B023
            return first if latest == offset else read_timer(core, latest, due_ms)
        except CorruptStoreError:
            if message >= core.engine.commitlog.start:
                raise  # else it rolled, and retention removed its segment just now


def latest_copy(core: Core, offset: int, due_ms: int, put_ms: int) -> int:
    """Return the offset of the latest copy of a timer that may have rolled; raises LapsedError."""
    engine, world = core.engine, core.engine.world
    if not may_have_rolled(world.settings, due_ms, put_ms):
        return offset
    own = due_ms // engine.precision_ms
    instant = capture_instant(engine, whole=False)
    at = instant.snapshot
    parts = [instant.messages, unlinked_messages(engine, at)]
    hop = world.settings.hop_slots
    latest = own - max(0, -(-(own - at.top + 1) // hop)) * hop
    for slot in range(latest, min([at.claimed, *at.owed[:1, 0].tolist()]) - 1, -hop):
        parts.append(slot_messages(engine, at, slot))
    found = read_messages(core, np.concatenate(parts), at.hold)
    if not is_intact(world, at):
        return latest_copy(core, offset, due_ms, put_ms)
    mine = found.message[found.low == offset]
    return int(mine.max()) if len(mine) else offset


# --- moving to another time
#
# The new timer, which names the old one (`TIMER_REPLACES`), is appended together with the old one's
# delete, under one lock. It takes topic, key, tag, body and properties of the old one unless others
# are given; a body or properties that are given replace the old ones whole. Without a time it is
# due when the old one was. If a crash tears the delete off, the log's last message is such a
# replacement: recovery appends the delete before anything fires
# (`services/opening/recover_damage.py`).


def reschedule(core: Core, id: str, due_ms: int, now_ms: int, payload: Payload) -> str:
    """Move any timer; return its new id. Neither message is durable yet."""
    offset, target = None, None
    if not (foreign := is_foreign(core, id)):
        id = id_as_written(core, id)
    while offset is None:
        try:
            target = _the_one(core, id) if foreign else find_ours(core, id)
        except UnknownTimerError:
            if target is None:
                raise
            target = None  # it was taken just now
        if target is None:
            raise _too_late(id)
        entry = compose_moved(core, target.timer, due_ms, id, payload)
        offset = replace(core, target, [entry], now_ms)
    return format_id(due_ms, offset, core.engine.store_tag)


def _the_one(core: Core, id: str) -> Target:
    """Find the only timer of a broker with this key, or refuse it."""
    if is_cancelled(core, id):
        raise _too_late(id)
    found = find_theirs(core, id)
    if len(found) > 1:
        topics = ", ".join(repr(each.timer.topic) for each in found)
        raise InvalidArgumentError(
            f"The id {id} stands for timers of several topics ({topics}), which cannot be "
            "rescheduled together. Cancel them, and put new ones."
        )
    return found[0]


def _too_late(id: str) -> TooLateError:
    return TooLateError(f"The timer {id} was fired or cancelled. Put a new timer.")
