"""Cancelling timers, many at a time; `byid.py` is the short way of one.

A cancel appends a *delete*: a message of the timer topic that names its target (topic, unique key)
and has its due time, so that it stands on the same grid of slots. A kernel judges and appends under
fire, the lock under which dequeue-put looks into the cancelled set and appends, as one step:

- If the timer was not appended yet, it joins the cancelled set, the delete is appended: True.
- If it was cancelled before and its due time is still to come: True again, once that delete is
  durable. Nothing is appended. If you lost an answer, ask again.
- If it was taken or has fired: False.
- If its message is damaged: False. It was taken off the count when the damage was met.

A broker's timer is cancelled by its own unique key, which does not say where it waits; so pending
timers are searched, without a lock. A key that two topics use stands for both timers. What a broker
put into a delay level cannot be cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from timerstore.calls.pending.find_by_id import find_theirs, is_cancelled, replace
from timerstore.calls.pending.is_pending import Bools, find, is_foreign, judge, parse
from timerstore.core.core import Core
from timerstore.errors import UnknownTimerError
from timerstore.services.calls.cancel_ahead import (
    CANCELLED_BEFORE,
    CANCELLED_NOW,
    NAMED_SINCE,
    NOBODY_LOOKED,
    NOT_JUDGED,
    Verdicts,
    cancel_ahead,
)
from timerstore.services.calls.first_puts import PUT_DAMAGED, FirstPuts
from timerstore.services.damage.pass_by import name_lost
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.nonzero import nonzero_places
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX
from timerstore.values.ids import Int64s, TimerIds, read_plain
from timerstore.values.kinds import check_list


def cancel_many(core: Core, ids: Sequence[str]) -> Bools:
    """Cancel timers; bool[n] as from `TimerStore.cancel`. Their deletes are not durable yet."""
    if not isinstance(ids, TimerIds):
        ids = check_list(ids, f"ids is {ids!r}. Pass a sequence of ids, or call cancel.")
    if len(ids) == 0:
        return np.zeros(0, np.bool_)
    now_ms = core.clock.now_ms
    plain = read_plain(ids, core.engine.store_tag)
    return _cancel_ours(core, *plain, now_ms) if plain else _cancel_each(core, ids, now_ms)


def _cancel_each(core: Core, ids: Sequence[str], now_ms: int) -> Bools:
    """Cancel timers whose ids have to be looked at one by one: a broker's may be among them."""
    done = np.zeros(len(ids), np.bool_)
    theirs = np.array([is_foreign(core, id) for id in ids])
    ours = [id for id, other in zip(ids, theirs.tolist(), strict=True) if not other]
    if ours:
        done[~theirs] = _cancel_ours(core, *parse(core, ours), now_ms)
    for i in np.flatnonzero(theirs).tolist():
        done[i] = is_cancelled(core, ids[i]) or _cancel_theirs(core, ids[i], now_ms)
    return done


def _cancel_theirs(core: Core, id: str, now_ms: int) -> bool:
    """Cancel the timers of a broker that have a key; tell whether one was pending."""
    done, targets = False, find_theirs(core, id)
    while targets:
        left = [each for each in targets if replace(core, each, [], now_ms) is None]
        done = done or len(left) < len(targets)
        try:
            targets = find_theirs(core, id) if left else []
        except UnknownTimerError:  # they were taken just now
            break
    return done


def _cancel_ours(core: Core, due_ms: Int64s, offsets: Int64s, now_ms: int) -> Bools:
    """Cancel timers of this store."""
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
    chosen = chosen[np.argsort(judged.offset[chosen], kind="stable")]
    puts = FirstPuts(
        *(judged.due_ms, judged.offset, judged.row, judged.entry, judged.level),
        *(judged.born_ms, judged.body_bytes),
    )
    puts = FirstPuts(*(column[chosen] for column in puts))
    verdicts[chosen] = _cancel_found(core, puts, now_ms, judged.log)
    done: Bools = (verdicts == CANCELLED_NOW) | (
        (verdicts == CANCELLED_BEFORE) & (judged.due_ms > now_ms)
    )
    return verdicts, done
