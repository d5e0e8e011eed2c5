"""The verdict on timers of this store: pending, cancelled, or too late.

It falls in a kernel, under fire, under which dequeue-put appends what it took
(`services/calls/waiting.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError, UnknownTimerError
from timerstore.ground.ids import Int64s, TimerId, TimerIds, format_id, parse_id
from timerstore.pending.overdue import settle
from timerstore.services.calls.first_puts import (
    NO_ROW,
    UNKNOWN,
    FirstPuts,
    look_up,
    new_first_puts,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.jit.record import Int8s

Bools = np.ndarray[Any, np.dtype[np.bool_]]


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
            if rows[stopped] == NO_ROW:
                engine.row_of_message(message)
        except CorruptStoreError:
            if message >= log.start:
                raise  # else its segment was removed just now
    unknown = np.flatnonzero(rows == UNKNOWN)
    if len(unknown):
        i = int(unknown[0])
        raise _unknown(format_id(int(due_ms[i]), int(offsets[i]), engine.store_tag))
    return puts


def judge(core: Core, ids: Sequence[str]) -> tuple[FirstPuts, Int8s]:
    """Find timers by their ids, and tell what became of each: WAITS, WAS_CANCELLED or OVER.

    O(bucket of its millisecond) for each; of what may still be in a chain, or was copied, as
    `overdue.settle`.
    """
    puts = find(core, *parse(core, ids))
    return puts, settle(core, puts)


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
