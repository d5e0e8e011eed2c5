"""Cancelling: the verdict on a timer, with the delete that it leaves in the log.

The verdict falls under fire, under which dequeue-put appends what it took. A timer that is due
after the frontier was certainly not taken; only for one that is overdue is it looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from timerstore.arguments import (
    Binaries,
    Int64s,
    check_body,
    check_description,
    encode_properties,
    too_long,
)
from timerstore.consuming.group import user_properties
from timerstore.errors import InvalidArgumentError, TooLateError, UnknownTimerError
from timerstore.ids import TimerId, TimerIds, format_id, parse_id, read_plain
from timerstore.pending import foreign
from timerstore.pending.overdue import find_moved, find_overdue
from timerstore.pending.timers import read_timer
from timerstore.services.cancel_ahead import (
    CANCELLED_BEFORE,
    CANCELLED_NOW,
    NOT_JUDGED,
    cancel_ahead,
    replace_timer,
)
from timerstore.timelog.append import QUEUE_COUNT_MAX, QueueTable
from timerstore.timelog.compose import compose, stage_messages
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.format import (
    LEVEL_COUNT_MAX,
    LEVEL_MARK,
    MESSAGE_QUEUE_ID_AT,
    MESSAGE_QUEUE_INDEX_AT,
    PROPERTY_DELETES,
    PROPERTY_DUE,
    PROPERTY_KEYS,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQUE_KEY,
    TIMER_TOPIC,
)
from timerstore.timelog.frame import encode_property
from timerstore.timelog.intrinsics import get_i32, get_i64, view_bytes
from timerstore.timelog.kernel import inlined, kernel_ahead
from timerstore.timelog.message import (
    DELETES_BYTES,
    FOUND_WORDS,
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    IDENTITY_OURS,
    KEY_AT,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    identify_timer,
    read_message,
)
from timerstore.timelog.nonzero import nonzero_places
from timerstore.timelog.record import Bytes, Words
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.timelog.text import get_hex, java_hash_of
from timerstore.wheel.sets import map_get

if TYPE_CHECKING:
    from timerstore.pending.timers import Timer
    from timerstore.putting.levels import Staged
    from timerstore.store import TimerStore

Bools = np.ndarray[Any, np.dtype[np.bool_]]

NO_HURRY_MS: Final = 1_000_000
"""A delete need not be enqueued soon: the cancelled set has its target."""
_UNKNOWN: Final = -1
_GONE: Final = -2
_UNMAPPED: Final = -3
_NO_ROW: Final = -4


class Verdict(NamedTuple):
    """What is known of some of this store's timers, one each."""

    due_ms: Int64s
    offset: Int64s  # as in the id: of a delay level's with LEVEL_MARK
    message: Int64s  # the first put, or where that was removed the latest copy, −1 for none
    row: Int64s  # queue of the real topic; of a delay level's + QUEUE_COUNT_MAX
    pending: Bools
    cancelled: Bools


@inlined
def row_of_first_put(
    queues: QueueTable, buf: Any, found: Words, due_ms: int, offset: int, tag: int
) -> int:
    """Return the row of the real topic's queue of a message that was read.

    _UNKNOWN where it is not the first put of the id with this due time and offset; _NO_ROW where
    nothing was put to that topic or fired since the store was opened.
    """
    if found[REAL_TOPIC_BYTES] < 0 or found[DELETES_BYTES] >= 0:
        return _UNKNOWN
    identify_timer(buf, found, tag)
    if found[IDENTITY_HIGH] != IDENTITY_OURS or found[IDENTITY_LOW] != offset:
        return _UNKNOWN
    if get_hex(buf, found[KEY_AT], 12) != due_ms:
        return _UNKNOWN
    row = find_row(
        queues, buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES], max(0, found[REAL_QUEUE])
    )
    return row if row >= 0 else _NO_ROW


@kernel_ahead
def _look_up(
    commitlog: SegmentTable,
    queues: QueueTable,
    offsets: Words,
    due_ms: Words,
    tag: int,
    start: int,
    end: int,
    done: Words,
    done_count: int,
    found: Words,
    rows: Words,
    indexes: Words,
    levels: Words,
) -> int:
    """Read the first put of each id; `rows`: written: its real topic's queue, _UNKNOWN or _GONE.

    Or _NO_ROW, where nothing was put to that topic or fired since the store was opened.

    `indexes`: written: its index in the timer topic's queue, or in that of `levels`, its delay
    level − 1. Return the first whose segment is not mapped, or n. `start`, `end`: what the commit
    log holds.
    """
    for i in range(len(offsets)):
        if rows[i] != _UNMAPPED and rows[i] != _NO_ROW:
            continue
        offset = offsets[i] & ~LEVEL_MARK
        rows[i] = _UNKNOWN
        if offset < start:
            rows[i] = _GONE
            continue
        if offset >= end:
            continue
        buf = segment_at(commitlog, offset)
        if len(buf) == 0:
            rows[i] = _UNMAPPED
            return i
        at = offset % commitlog.words[SEGMENT_BYTES]
        if read_message(buf, at, found, False) != GOOD:
            continue
        rows[i] = row_of_first_put(queues, buf, found, due_ms[i], offsets[i], tag)
        if rows[i] == _NO_ROW:
            return i
        if rows[i] == _UNKNOWN:
            continue
        indexes[i] = get_i64(buf, at + MESSAGE_QUEUE_INDEX_AT)
        if offsets[i] >= LEVEL_MARK:
            rows[i] += QUEUE_COUNT_MAX
            levels[i] = get_i32(buf, at + MESSAGE_QUEUE_ID_AT) & (LEVEL_COUNT_MAX - 1)
            if done_count > 0 and map_get(done, offset) >= 0:
                indexes[i] = -1  # an earlier life has delivered it
    return len(offsets)


def _parse(store: TimerStore, ids: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Return due times and offsets of ids that must be this store's."""
    tag = store.engine.store_tag
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


class Found(NamedTuple):
    """Where the first puts of some of this store's timers lie."""

    due_ms: Int64s
    offset: Int64s
    row: Int64s  # queue of the real topic, or _GONE; of a delay level's + QUEUE_COUNT_MAX
    entry: Int64s  # index in the timer topic's queue, or in its level's
    level: Int64s  # delay level − 1, or −1 for a timer


def _find(store: TimerStore, due_ms: Int64s, offsets: Int64s) -> Found:
    """Find the first put of each id; raise UnknownTimerError where there was none."""
    engine = store.engine
    rows, indexes = np.full(len(offsets), _UNMAPPED, np.int64), np.zeros(len(offsets), np.int64)
    levels = np.full(len(offsets), -1, np.int64)
    found, pins = np.zeros(FOUND_WORDS, np.int64), []
    while True:
        with engine.commitlog.reading():
            stopped = _look_up(
                engine.commitlog.table,
                engine.queues.table,
                offsets,
                due_ms,
                engine.store_tag,
                engine.commitlog.start,
                engine.commitlog.end,
                engine.done,
                engine.world.done.count,
                found,
                rows,
                indexes,
                levels,
            )
        if stopped == len(offsets):
            break
        message = int(offsets[stopped]) & ~LEVEL_MARK
        pins.append(engine.commitlog.existing(message // engine.commitlog.segment_bytes))
        if rows[stopped] == _NO_ROW:
            engine.row_of_message(message)
    unknown = np.flatnonzero(rows == _UNKNOWN)
    if len(unknown):
        i = int(unknown[0])
        raise _unknown(format_id(int(due_ms[i]), int(offsets[i]), engine.store_tag))
    return Found(due_ms, offsets, rows, indexes, levels)


def judge(store: TimerStore, ids: Sequence[str], *, locked: bool = False) -> Verdict:
    """Decide which timers are pending. With `locked` the caller holds all locks of the services."""
    found = _find(store, *_parse(store, ids))
    if locked:
        return _decide(store, found)
    with store.engine.locks:
        return _decide(store, found)


def _decide(store: TimerStore, found: Found) -> Verdict:
    """Decide under all locks of the services."""
    due_ms, offsets, rows, indexes, levels = found
    engine, world = store.engine, store.engine.world
    high = np.full(len(offsets), IDENTITY_OURS, np.int64)
    cancelled = engine.cancelled.contains(high, offsets)
    of_level = offsets >= LEVEL_MARK
    waits = of_level & (rows != _GONE) & ~cancelled & (indexes >= engine.levels.offset[levels])
    kept = (rows != _GONE) & ~cancelled & ~of_level
    # A cancelled roll is dropped long before its time, so R may be past what was ever taken.
    passed_ms = engine.read_slot * engine.precision_ms
    frontier_ms = max(world.dequeue_put.frontier_ms, passed_ms - 1)
    pending = kept & (due_ms > frontier_ms)
    pending |= kept & (indexes >= world.enqueue_put.linked_index)
    overdue = kept & ~pending
    if overdue.any():
        pending[overdue] = find_overdue(store, due_ms[overdue], offsets[overdue], rows[overdue])
    pending |= waits
    messages = offsets & ~LEVEL_MARK
    gone = (rows == _GONE) & ~cancelled & ~of_level
    if gone.any():
        messages[gone], rows[gone] = find_moved(store, due_ms[gone], offsets[gone])
        pending[gone] = (messages[gone] >= 0) & (rows[gone] >= 0)
    return Verdict(due_ms, offsets, messages, rows, pending, cancelled)


def _is_foreign(store: TimerStore, id: object) -> bool:
    """Tell whether an id can only be a broker's unique key."""
    if (
        not isinstance(id, str)
        or not id
        or any("\ud800" <= each < "\udc80" or (each > "\udcff" and each < "\ue000") for each in id)
    ):
        return False  # no key at all
    part = parse_id(id)
    return part is None or part.tag != store.engine.store_tag


def cancel_many(store: TimerStore, ids: Sequence[str]) -> Bools:
    """Cancel timers; see `TimerStore.cancel_many`."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InvalidArgumentError(f"ids is {ids!r}. Pass a sequence of ids, or call cancel.")
    if not isinstance(ids, TimerIds):
        ids = list(ids)
    if len(ids) == 0:
        return np.zeros(0, np.bool_)
    now_ms = store.clock.now_ms
    plain = read_plain(ids, store.engine.store_tag)
    done = _cancel_ours(store, *plain, now_ms) if plain else _cancel_each(store, ids, now_ms)
    store._after_put(now_ms + NO_HURRY_MS, now_ms)
    return done


def _cancel_each(store: TimerStore, ids: Sequence[str], now_ms: int) -> Bools:
    """Cancel timers whose ids have to be looked at one by one: a broker's may be among them."""
    done = np.zeros(len(ids), np.bool_)
    theirs = np.array([_is_foreign(store, id) for id in ids])
    ours = [id for id, other in zip(ids, theirs.tolist(), strict=True) if not other]
    if ours:
        due_ms, offsets = _parse(store, ours)
        digits = TimerIds(due_ms, offsets, store.engine.store_tag).digits()
        done[~theirs] = _cancel_ours(store, due_ms, offsets, digits, now_ms)
    for i in np.flatnonzero(theirs).tolist():
        done[i] = foreign.cancel(store, ids[i], now_ms)
    return done


def _cancel_ours(
    store: TimerStore, due_ms: Int64s, offsets: Int64s, digits: Bytes, now_ms: int
) -> Bools:
    """Cancel timers of this store; `digits`: their ids, uint8[n, 32]."""
    found = _find(store, due_ms, offsets)
    verdicts = _cancel_ahead(store, found, digits, now_ms)
    cancelled_before = (verdicts == CANCELLED_BEFORE) & (found.due_ms > now_ms)
    done: Bools = (verdicts == CANCELLED_NOW) | cancelled_before
    left = np.flatnonzero(verdicts == NOT_JUDGED)
    if len(left):
        others = TimerIds(found.due_ms[left], found.offset[left], store.engine.store_tag)
        done[left] = _cancel_others(store, others, now_ms)
    return done


def _cancel_ahead(
    store: TimerStore, found: Found, digits: Bytes, now_ms: int
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Cancel those that were certainly not taken; int8[n], as from `cancel_ahead`."""
    engine, stage = store.engine, store._putter.take_stage()
    verdicts = np.zeros(len(found.row), np.int8)
    try:
        for row, mine in _by_row(found.row):
            verdicts[mine] = cancel_ahead(
                engine,
                stage,
                engine.queues.topics[row % QUEUE_COUNT_MAX],
                row,
                digits[mine],
                found.due_ms[mine],
                found.offset[mine],
                found.entry[mine],
                found.level[mine],
                now_ms,
            )
    finally:
        store._putter.free_stage(stage)
    return verdicts


def _by_row(rows: Int64s) -> Iterator[tuple[int, Int64s | slice]]:
    """Yield each queue's row with the places that it has, without those of no queue."""
    if len(rows) and rows[0] >= 0 and (rows == rows[0]).all():
        yield int(rows[0]), slice(None)
        return
    for row in np.unique(rows[rows >= 0]).tolist():
        yield row, np.flatnonzero(rows == row)


def _cancel_others(store: TimerStore, ids: TimerIds, now_ms: int) -> Bools:
    """Cancel timers that may have been taken, or whose first put retention has removed."""
    engine, stage = store.engine, store._putter.take_stage()
    try:
        with engine.locks:
            verdict = judge(store, ids, locked=True)
            chosen = nonzero_places(verdict.pending)
            engine.cancelled.reserve(len(chosen))
            for row, places in _by_row(verdict.row[chosen]):
                mine = chosen[places]
                due_ms, offsets = verdict.due_ms[mine], verdict.offset[mine]
                cancel_ahead(
                    engine,
                    stage,
                    engine.queues.topics[row % QUEUE_COUNT_MAX],
                    row,
                    TimerIds(due_ms, offsets, engine.store_tag).digits(),
                    due_ms,
                    offsets,
                    np.zeros(len(mine), np.int64),
                    np.where(offsets >= LEVEL_MARK, 0, -1),
                    now_ms,
                    judged=True,
                )
    finally:
        store._putter.free_stage(stage)
    return verdict.pending | (verdict.cancelled & (verdict.due_ms > now_ms))


def reschedule(store: TimerStore, id: str, due_ms: int) -> str:
    """Move a timer; see `TimerStore.reschedule`."""
    store.congestion.check(due_ms, store.clock.now_ms)
    store.admission.enter()  # before any lock
    engine, putter, now_ms = store.engine, store._putter, store.clock.now_ms
    new_id = store.by_id.reschedule(id, due_ms, now_ms)
    if new_id is not None:
        store._after_put(due_ms, now_ms)
        return new_id
    if _is_foreign(store, id):
        new_id = foreign.reschedule(store, id, due_ms, now_ms)
        store._after_put(due_ms, now_ms)
        return new_id
    if int(_parse(store, [id])[1][0]) >= LEVEL_MARK:
        raise InvalidArgumentError(
            f"{id} waits in a delay level, whose messages keep their order. "
            "Cancel it, and put a new timer."
        )
    with engine.locks:
        verdict = judge(store, [id], locked=True)
        if not verdict.pending[0]:
            raise TooLateError(f"{id} was fired or cancelled. Put a new timer.")
        offset, old_due_ms = int(verdict.offset[0]), int(verdict.due_ms[0])
        timer = read_timer(store, int(verdict.message[0]), old_due_ms)
        entry = compose_moved(store, timer, due_ms, id)
        topic, row = timer.topic.encode(), entry[3]
        delete = _compose_delete(store, topic, id, old_due_ms, now_ms)
        engine.cancelled.reserve(1)
        stage = putter.take_stage()
        try:
            stage_messages(stage, [entry, (delete, 0, 0, row, -1)])
            new_id = format_id(
                due_ms, replace_timer(engine, stage, offset, now_ms), engine.store_tag
            )
        finally:
            putter.free_stage(stage)
    store._after_put(due_ms, now_ms)
    return new_id


def compose_moved(store: TimerStore, timer: Timer, due_ms: int, id: str) -> Staged:
    """Compose the timer that comes in the place of another one, and say where it is staged."""
    described = {"TAGS": timer.tag, "KEYS": timer.key, **timer.properties}
    properties = encode_described({k: v for k, v in described.items() if v is not None})
    check_body(timer.body, len(properties), store.engine.content_bytes_max)
    topic = timer.topic.encode("utf-8", "surrogateescape")
    message, row = store._putter.one(topic, timer.body, due_ms, properties, timer.tag, replaces=id)
    tags_code = 0 if timer.tag is None else java_hash_of(timer.tag)
    return message, 0, tags_code, row, 1


def encode_described(properties: dict[str, str]) -> bytes:
    """Return tag, key and the user's own of a message's properties as they stand in one."""
    first = [(name, properties[name]) for name in ("TAGS", "KEYS") if name in properties]
    described = [*first, *user_properties(properties).items()]
    encoded = "".join([f"{name}\x01{value}\x02" for name, value in described])
    return encoded.encode("utf-8", "surrogateescape")


def _compose_delete(store: TimerStore, topic: bytes, id: str, due_ms: int, now_ms: int) -> bytes:
    own = format_id(due_ms, 0, store.engine.store_tag).encode()
    properties = encode_property(PROPERTY_DUE, str(due_ms).encode())
    properties += encode_property(PROPERTY_UNIQUE_KEY, own)
    properties += encode_property(PROPERTY_REAL_QUEUE, b"0")
    properties += encode_property(PROPERTY_REAL_TOPIC, topic)
    properties += encode_property(PROPERTY_DELETES, topic + b"+" + id.encode())
    return compose(TIMER_TOPIC, b"\x01", properties, born_ms=now_ms)


# --- checks that `put_many` shares


def check_keys(keys: Binaries, count: int) -> None:
    """Refuse keys that cannot stand in a property."""
    if len(keys) != count:
        raise InvalidArgumentError(f"There are {len(keys)} keys for {count} bodies. Pass one each.")
    bad = first_bad_key(keys.address, keys.length)
    if bad >= 0:
        raise InvalidArgumentError(
            f"keys[{bad}] is empty, or holds U+0001 or U+0002. Pass other text."
        )


@kernel_ahead
def first_bad_key(address: Words, length: Words) -> int:
    """Return the first text that is empty or holds a separator, or −1."""
    for i in range(len(length)):
        if length[i] == 0:
            return i
        buf = view_bytes(address[i], length[i])
        for k in range(length[i]):
            if buf[k] == 1 or buf[k] == 2:
                return i
    return -1


def check_lengths(bodies: Binaries, keys: Binaries | None, tag: str | None, bytes_max: int) -> None:
    """Refuse bodies or keys that are empty or too long.

    `bytes_max`: what a body, its key and the tag may take together.
    """
    if int(bodies.length.min()) == 0:
        i = int(np.argmin(bodies.length))
        raise InvalidArgumentError(
            f"bodies[{i}] is empty, which a broker drops. Pass at least one byte."
        )
    tag_bytes = len(encode_properties(None, tag, None))
    if keys is None and int(bodies.length.max()) + tag_bytes <= bytes_max:
        check_description(tag_bytes)
        return
    described = np.full(len(bodies), tag_bytes, np.int64)
    if keys is not None:
        described += len(encode_property(PROPERTY_KEYS, b"")) + keys.length
    check_description(int(described.max()))
    i = int(np.argmax(bodies.length + described))
    if bodies.length[i] + described[i] > bytes_max:
        raise too_long(f"bodies[{i}]", int(bodies.length[i]), int(described[i]), bytes_max)
