"""The verdict on timers of this store: pending, cancelled, or too late.

It is of one instant, which a kernel captures; what is looked for is looked for behind it, without a
lock. A timer that is due after the frontier was certainly not taken; only one that is overdue, or
that cleaning has passed, is looked for. What became of it since stands in the log from
`Verdict.log` on: who acts on a verdict has that read under fire (`cancel_ahead.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from timerstore.calls.pending.found import read_held
from timerstore.calls.pending.overdue import find_moved, find_overdue
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
from timerstore.services.engine.holds import while_held
from timerstore.services.looking.instant import capture_instant
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_OURS, MessageParts
from timerstore.values.ids import Int64s, TimerId, TimerIds, format_id, parse_id

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Verdict(NamedTuple):
    """What is known of some of this store's timers, one each."""

    due_ms: Int64s
    offset: Int64s  # as in the id: of a delay level's with LEVEL_MARK
    message: Int64s  # the first put, or if that was removed the latest copy, −1 for none
    row: Int64s  # queue of the real topic; of a delay level's + QUEUE_COUNT_MAX; or DAMAGED
    pending: Bools
    cancelled: Bools
    born_ms: Int64s
    body_bytes: Int64s
    entry: Int64s  # as of `FirstPuts`
    level: Int64s
    log: int  # the commit log's end, before anything was looked at


def parse(core: Core, ids: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Return due times and offsets of ids that must be this store's."""
    tag = core.engine.store_tag
    if isinstance(ids, TimerIds):
        parts: list[TimerId | None] = []
        if ids._tag == tag:
            return ids.due_ms, ids.offsets
        raise _unknown(ids[0])
    due_ms, offsets = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    parts = [parse_id(each) for each in ids]
    for i, part in enumerate(parts):
        if part is None or part.tag != tag:
            raise _unknown(ids[i])
        due_ms[i], offsets[i] = part.due_ms, part.offset
    return due_ms, offsets


def _unknown(id: object) -> UnknownTimerError:
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
        raise _unknown(format_id(int(due_ms[i]), int(offsets[i]), engine.store_tag))
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
    cancelled = engine.cancelled.contains_now(world.fire_lock, high, offsets)
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
    who = due_ms, offsets, messages, rows
    return Verdict(*who, pending, cancelled, born_ms, body_bytes, indexes, levels, log)


def is_foreign(core: Core, id: object) -> bool:
    """Tell whether an id can only be a broker's unique key."""
    if (
        not isinstance(id, str)
        or not id
        or any("\ud800" <= each < "\udc80" or (each > "\udcff" and each < "\ue000") for each in id)
    ):
        return False  # no key at all
    part = parse_id(id)
    return part is None or part.tag != core.engine.store_tag
