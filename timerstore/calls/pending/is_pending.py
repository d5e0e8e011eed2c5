"""The verdict on timers of this store: pending, cancelled, or too late.

It is of one instant, which a kernel captures; what is looked for is looked for behind it, without a
lock. A timer that is due after the frontier was certainly not taken; only one that is overdue, or
that cleaning has passed, is looked for. What became of it since stands in the log from
`Verdict.log` on: who acts on a verdict has that read under fire (`cancel.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError, UnknownTimerError
from timerstore.services.calls.first_puts import (
    PUT_GONE,
    PUT_NO_ROW,
    PUT_UNKNOWN,
    FirstPuts,
    look_up,
    new_first_puts,
)
from timerstore.services.damage.pass_by import name_lost
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold, LapsedError, while_held
from timerstore.services.looking.instant import Instant, Snapshot, capture_instant, is_intact
from timerstore.services.looking.read_units import look_held, reading_of
from timerstore.services.looking.timer_places import (
    NEVER_MS,
    OF_LEVEL,
    DueOrder,
    Places,
    join_places,
    slot_messages,
    unlinked_messages,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, decode_message
from timerstore.timelog.bytes.message import IDENTITY_OURS, MessageParts
from timerstore.timelog.files.segments import PinnedLog
from timerstore.values.ids import Int64s, TimerIds, format_id, parse_id
from timerstore.values.kinds import check_name
from timerstore.wheel import judge as pending
from timerstore.wheel.cancelled import map_keys
from timerstore.wheel.judge import IN_MESSAGE

# --- pending timers as arrays: all of them, or some at a time, in order


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
    hold, count, until = instant.snapshot.hold, _AT_FIRST, (0, 0)
    waiting = Found._make([*[_NOTHING] * (_ROWS + 1), hold])
    while until[0] < NEVER_MS:
        with core.gate.guard():
            core.check_open()
            places, until = order.next(count)
            count = min(2 * count, _AT_ONCE_MAX)
            columns = zip(waiting[:-1], read_places(core, instant, places)[:-1], strict=True)
            found = Found._make([*map(np.concatenate, columns), hold])
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


# --- what may have been taken already
#
# A timer that is due after the frontier was certainly not taken. Of the others most were fired, but
# one may wait still: not linked yet, in the near wheel or a queue beside it, or in a slot of its
# grid that was not claimed, because the clock went back or the store was just opened.


def find_overdue(
    core: Core, instant: Instant, due_ms: Int64s, offsets: Int64s, rows: Int64s
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell which timers waited at an instant that was captured for them: bool[n].

    `offsets`: of the first puts; `rows`: the queues of their real topics. O(n + what is due at
    these times + bytes without a unit), and the chains of the slots that can hold one of them.
    Raises LapsedError.
    """
    engine, snapshot = core.engine, instant.snapshot
    unlinked = unlinked_messages(engine, snapshot)
    messages = np.concatenate([_linked_messages(core, instant, due_ms), unlinked])
    if not engine.world.done.count:
        waiting = np.isin(offsets, messages)
        if waiting.all():
            return waiting
    # The rest may have rolled: then a later copy waits. A retry has its origin's key, but goes to
    # another topic.
    messages = np.unique(messages[messages >= offsets.min()])
    found = read_messages(core, messages, snapshot.hold)
    ours = found.high == IDENTITY_OURS
    copies = set(zip(found.low[ours].tolist(), found.row[ours].tolist(), strict=True))
    wanted = zip(offsets.tolist(), rows.tolist(), strict=True)
    return np.fromiter((each in copies for each in wanted), np.bool_, len(offsets))


def find_moved(
    core: Core, instant: Instant, due_ms: Int64s, offsets: Int64s
) -> tuple[Int64s, Int64s]:
    """Find timers whose first message retention has removed: only a rolled copy can wait.

    Return the commit log offset of each one's latest copy, −1 if none waits, and the queue of
    its real topic. Costs as `find_overdue`; O(pending) if a timer that nobody can have taken is on
    no slot of its grid, because a broker rolled it. Raises LapsedError.
    """
    snapshot = instant.snapshot
    unlinked = unlinked_messages(core.engine, snapshot)
    waiting = np.concatenate([_linked_messages(core, instant, due_ms), unlinked])
    messages, rows = _find_copies(core, snapshot, due_ms, offsets, waiting)
    off_grid = (messages < 0) & (due_ms > core.engine.world.dequeue_put.frontier_ms)
    if off_grid.any():
        own = int(due_ms[off_grid].max()) // core.engine.precision_ms
        waiting = _messages_until(core.engine, snapshot, own)
        found = _find_copies(core, snapshot, due_ms[off_grid], offsets[off_grid], waiting)
        messages[off_grid], rows[off_grid] = found
    return messages, rows


def _find_copies(
    core: Core, snapshot: Snapshot, due_ms: Int64s, offsets: Int64s, waiting: Int64s
) -> tuple[Int64s, Int64s]:
    """Find the latest copy of each timer among messages that wait: its offset, its queue; or −1."""
    found = read_messages(core, np.unique(waiting), snapshot.hold)
    ours = np.flatnonzero(found.high == IDENTITY_OURS)
    # In ascending order, so that the latest copy stays. A retry has its origin's key, and is due at
    # another time.
    copies = {
        (int(found.low[i]), int(found.due_ms[i])): (int(found.message[i]), int(found.row[i]))
        for i in ours.tolist()
    }
    messages, rows = np.full(len(offsets), -1, np.int64), np.full(len(offsets), -1, np.int64)
    for i, who in enumerate(zip(offsets.tolist(), due_ms.tolist(), strict=True)):
        if who in copies:
            messages[i], rows[i] = copies[who]
            if rows[i] < 0:  # nothing was put to that topic, or fired, since opening
                rows[i] = core.engine.row_of_message(int(messages[i]))
    return messages, rows


def _messages_until(engine: Engine, snapshot: Snapshot, last: int) -> Int64s:
    """Return the messages of all units of slots up to one that were not claimed."""
    times = engine.wheel.slots["time"]
    slots = np.sort(times[_are_to_be_walked(snapshot, times) & (times <= last)]).tolist()
    parts = [slot_messages(engine, snapshot, slot) for slot in slots]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _linked_messages(core: Core, instant: Instant, due_ms: Int64s) -> Int64s:
    """Return the messages that have a unit, and wait where timers that are due then can wait."""
    engine, snapshot = core.engine, instant.snapshot
    own = due_ms // engine.precision_ms
    near_count, starts = instant.near_count, np.arange(snapshot.read, snapshot.claimed)
    waits_or_rolls = np.concatenate([due_ms, starts * engine.precision_ms])
    near = instant.messages[:near_count][np.isin(instant.due_ms[:near_count], waits_or_rolls)]
    parts = [near, instant.messages[near_count:]]  # behind these: the queues beside the near wheel
    for slot in _slots_to_walk(engine, snapshot, own):
        parts.append(slot_messages(engine, snapshot, slot))
    return np.concatenate(parts)


def _are_to_be_walked(snapshot: Snapshot, slots: Int64s) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell of which slots there are units that were not claimed, if any are and not passed."""
    return (slots >= snapshot.claimed) | np.isin(slots, snapshot.owed[:, 0])


def _slots_to_walk(engine: Engine, snapshot: Snapshot, own: Int64s) -> list[int]:
    """Return the used slots with units not claimed that are on the grid of one of these."""
    hop = engine.world.settings.hop_slots
    wheel = engine.wheel.slots["time"]
    # The latest slot of each grid that lies in the ring.
    slots = own - np.maximum(0, -(-(own - snapshot.top + 1) // hop)) * hop
    found: set[int] = set()
    if _are_to_be_walked(snapshot, np.array([snapshot.read]))[0]:  # stands for those before it
        found.add(snapshot.read)
    while len(slots := slots[slots >= snapshot.read]):
        found.update(np.unique(slots[_are_to_be_walked(snapshot, slots)]).tolist())
        slots = slots - hop
    owed = set(snapshot.owed[:, 0].tolist())
    return sorted(slot for slot in found if slot in owed or int(wheel[slot % len(wheel)]) == slot)


# --- what became of the timers of some ids


class Verdict(NamedTuple):
    """What is known of some of this store's timers, one each."""

    puts: FirstPuts
    message: Int64s  # the first put, or if that was removed the latest copy, −1 for none
    pending: Bools
    cancelled: Bools
    log: int  # the commit log's end, before anything was looked at


def parse(core: Core, ids: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Return due times and offsets of ids that must be this store's."""
    tag = core.engine.store_tag
    if isinstance(ids, TimerIds):
        if ids._tag != tag:
            raise unknown_timer(ids[0])
        return ids.due_ms, ids.offsets
    due_ms, offsets = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    for i, id in enumerate(ids):
        part = parse_id(id)
        if part is None or part.tag != tag:
            raise unknown_timer(id)
        due_ms[i], offsets[i] = part.due_ms, part.offset
    return due_ms, offsets


def unknown_timer(id: object) -> UnknownTimerError:
    """Return the error for an id of no timer here."""
    return UnknownTimerError(f"{id!r} is no timer of this store. Pass an id that put returned.")


def find(core: Core, due_ms: Int64s, offsets: Int64s) -> FirstPuts:
    """Find the first put of each id; raise UnknownTimerError if there was none."""
    engine = core.engine
    log, puts, found = engine.commitlog, new_first_puts(due_ms, offsets), MessageParts()
    rows = puts.row
    while True:
        with log.reading():
            stopped = look_up(engine.world, puts, log.start, log.end, found)
        if stopped == len(offsets):
            break
        message = int(offsets[stopped]) & ~fmt.LEVEL_MARK
        try:
            log.existing(message // log.segment_bytes)
            if rows[stopped] == PUT_NO_ROW:
                engine.row_of_message(message)
        except CorruptStoreError:
            if message >= log.start:
                raise  # else its segment was removed just now
    unknown = np.flatnonzero(rows == PUT_UNKNOWN)
    if len(unknown):
        i = int(unknown[0])
        raise unknown_timer(format_id(int(due_ms[i]), int(offsets[i]), engine.store_tag))
    return puts


def judge(core: Core, ids: Sequence[str]) -> Verdict:
    """Decide which timers are pending."""
    due_ms, offsets = parse(core, ids)
    return while_held(lambda: _judge(core, due_ms, offsets))


def _judge(core: Core, asked_ms: Int64s, asked: Int64s) -> Verdict:
    """Decide once; raises LapsedError."""
    engine, world, log = core.engine, core.engine.world, core.engine.commitlog.end
    found = find(core, asked_ms, asked)
    due_ms, offsets, rows, indexes, levels, born_ms, body_bytes = found
    # In this order: what is cancelled later is named by the log.
    high = np.full(len(offsets), IDENTITY_OURS, np.int64)
    cancelled = engine.cancelled.contains(high, offsets)
    instant = capture_instant(engine, whole=False, due_ms=due_ms)
    at = instant.snapshot
    of_level = offsets >= fmt.LEVEL_MARK
    waits = of_level & (rows >= 0) & ~cancelled
    waits[waits] = indexes[waits] >= instant.level_start[levels[waits]]
    kept = (rows >= 0) & ~cancelled & ~of_level
    # A cancelled roll is dropped long before its time, so the read cursor may be past what was ever
    # taken.
    frontier_ms = max(world.dequeue_put.frontier_ms, at.read * engine.precision_ms - 1)
    # What lies before the floor may have been cancelled and dropped; then nothing but the wheel
    # knows.
    pending = kept & (due_ms > frontier_ms) & (offsets >= at.floor.offset)
    pending |= kept & (indexes >= at.queue_start)
    # If messages are damaged, the copy that waits may be one of them.
    unsure = kept if engine.uncounted else kept & ~pending
    if unsure.any():
        pending[unsure] = find_overdue(core, instant, due_ms[unsure], offsets[unsure], rows[unsure])
    pending |= waits
    messages = offsets & ~fmt.LEVEL_MARK
    gone = (rows == PUT_GONE) & ~cancelled & ~of_level
    if gone.any():
        messages[gone], rows[gone] = find_moved(core, instant, due_ms[gone], offsets[gone])
        pending[gone] = (messages[gone] >= 0) & (rows[gone] >= 0)
        for i in np.flatnonzero(gone & pending).tolist():
            message = read_held(core, int(messages[i]), at.hold)
            born_ms[i], body_bytes[i] = message.born_ms, len(message.body)
    if not is_intact(world, at):
        return _judge(core, asked_ms, asked)
    return Verdict(found, messages, pending, cancelled, log)


def is_foreign(core: Core, id: object) -> bool:
    """Tell whether an id can only be a broker's unique key."""
    if not isinstance(id, str) or not id:
        return False
    try:
        id.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False  # no key at all
    part = parse_id(id)
    return part is None or part.tag != core.engine.store_tag
