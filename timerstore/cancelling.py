"""Cancelling: the verdict on a timer, with the delete that it leaves in the log.

The verdict falls under the step lock, with which dequeue-put takes its batches. A timer that is due
after the frontier was certainly not taken; only for one that is overdue is it looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from timerstore.arguments import Binaries, Int64s
from timerstore.errors import InvalidArgumentError, TooLateError, UnknownTimerError
from timerstore.ids import TimerId, TimerIds, format_id, parse_id
from timerstore.overdue import find_moved, find_overdue
from timerstore.reading import (
    read_timer,
)
from timerstore.services.cancel_ahead import (
    CANCELLED_BEFORE,
    CANCELLED_NOW,
    NOT_JUDGED,
    cancel_ahead,
)
from timerstore.services.deletes import append_all, append_deletes
from timerstore.services.level_timers import in_cancelled_set
from timerstore.services.levels import LEVEL_CANCELLED
from timerstore.timelog.append import QUEUE_COUNT_MAX
from timerstore.timelog.compose import compose, java_hash_of, stage_messages
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.format import (
    LEVEL_COUNT_MAX,
    LEVEL_MARK,
    MESSAGE_QUEUE_ID_AT,
    MESSAGE_QUEUE_INDEX_AT,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_BYTES_SPARE,
    PROPERTY_DELETES,
    PROPERTY_DUE,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQUE_KEY,
    TIMER_TOPIC,
)
from timerstore.timelog.frame import encode_property
from timerstore.timelog.intrinsics import get_i32, get_i64, view_bytes
from timerstore.timelog.kernel import kernel
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
from timerstore.timelog.segments import SEGMENT_BYTES, segment_at
from timerstore.timelog.text import get_hex
from timerstore.wheel import state
from timerstore.wheel.sets import map_get, set_add_all, set_remove_all

if TYPE_CHECKING:
    from timerstore.store import TimerStore

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
    pending: np.ndarray[Any, np.dtype[np.bool_]]
    cancelled: np.ndarray[Any, np.dtype[np.bool_]]


@kernel
def _look_up(
    commitlog: Any,
    queues: Any,
    offsets: Any,
    due_ms: Any,
    tag: int,
    start: Any,
    end: int,
    done: Any,
    done_count: int,
    found: Any,
    rows: Any,
    indexes: Any,
    levels: Any,
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
        if found[REAL_TOPIC_BYTES] < 0 or found[DELETES_BYTES] >= 0:
            continue
        identify_timer(buf, found, tag)
        if found[IDENTITY_HIGH] != IDENTITY_OURS or found[IDENTITY_LOW] != offsets[i]:
            continue
        if get_hex(buf, found[KEY_AT], 12) != due_ms[i]:
            continue
        indexes[i] = get_i64(buf, at + MESSAGE_QUEUE_INDEX_AT)
        rows[i] = find_row(
            queues, buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES], max(0, found[REAL_QUEUE])
        )
        if rows[i] < 0:
            rows[i] = _NO_ROW
            return i
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


def _find(store: TimerStore, ids: Sequence[str]) -> Found:
    """Find the first put of each id; raise UnknownTimerError where there was none."""
    engine = store.engine
    due_ms, offsets = _parse(store, ids)
    rows, indexes = np.full(len(offsets), _UNMAPPED, np.int64), np.zeros(len(offsets), np.int64)
    levels = np.full(len(offsets), -1, np.int64)
    found, pins = np.zeros(FOUND_WORDS, np.int64), []
    while True:
        stopped = _look_up(
            engine.commitlog.table,
            engine.queues.table,
            offsets,
            due_ms,
            engine.store_tag,
            engine.commitlog.start,
            engine.commitlog.end,
            engine.done,
            int(engine.words[state.DONE_COUNT]),
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
        raise _unknown(ids[int(unknown[0])])
    return Found(due_ms, offsets, rows, indexes, levels)


def judge(store: TimerStore, ids: Sequence[str], *, locked: bool = False) -> Verdict:
    """Decide which timers are pending. With `locked` the caller holds the step lock."""
    found = _find(store, ids)
    if locked:
        return _decide(store, found)
    with store.engine.step_lock:
        return _decide(store, found)


def _decide(store: TimerStore, found: Found) -> Verdict:
    """Decide under the step lock."""
    due_ms, offsets, rows, indexes, levels = found
    engine, words = store.engine, store.engine.words
    high = np.full(len(offsets), IDENTITY_OURS, np.int64)
    cancelled = in_cancelled_set(engine, high, offsets)
    of_level = offsets >= LEVEL_MARK
    waits = of_level & (rows != _GONE) & ~cancelled & (indexes >= engine.levels.offset[levels])
    kept = (rows != _GONE) & ~cancelled & ~of_level
    # A cancelled roll is dropped long before its time, so R may be past what was ever taken.
    frontier_ms = max(words[state.FRONTIER], words[state.READ] * engine.precision_ms - 1)
    pending = kept & (due_ms > frontier_ms)
    pending |= kept & (indexes >= words[state.LINKED])
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


def cancel_many(store: TimerStore, ids: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Cancel timers; see `TimerStore.cancel_many`."""
    if isinstance(ids, str):
        raise InvalidArgumentError("ids is a str. Pass a sequence of ids, or call cancel.")
    if len(ids) == 0:
        return np.zeros(0, np.bool_)
    now_ms, found = store.clock.now_ms, _find(store, ids)
    verdicts = _cancel_ahead(store, found, now_ms)
    cancelled_before = (verdicts == CANCELLED_BEFORE) & (found.due_ms > now_ms)
    done: np.ndarray[Any, np.dtype[np.bool_]] = (verdicts == CANCELLED_NOW) | cancelled_before
    left = np.flatnonzero(verdicts == NOT_JUDGED)
    if len(left):
        others = TimerIds(found.due_ms[left], found.offset[left], store.engine.store_tag)
        done[left] = _cancel_others(store, others, now_ms)
    store._after_put(now_ms + 1_000_000, now_ms)
    return done


def _cancel_ahead(store: TimerStore, found: Found, now_ms: int) -> np.ndarray[Any, Any]:
    """Cancel those that were certainly not taken; int8[n], as from `cancel_ahead`."""
    engine, stage = store.engine, store._putter.take_stage()
    verdicts = np.zeros(len(found.row), np.int8)
    try:
        for row in np.unique(found.row[found.row >= 0]).tolist():
            mine = np.flatnonzero(found.row == row)
            due_ms, offsets = found.due_ms[mine], found.offset[mine]
            verdicts[mine] = cancel_ahead(
                engine,
                stage,
                engine.queues.topics[row % QUEUE_COUNT_MAX],
                row,
                TimerIds(due_ms, offsets, engine.store_tag).digits(),
                due_ms,
                offsets,
                found.entry[mine],
                found.level[mine],
                now_ms,
            )
    finally:
        store._putter.free_stage(stage)
    return verdicts


def _cancel_others(
    store: TimerStore, ids: TimerIds, now_ms: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Cancel timers that may have been taken, or whose first put retention has removed."""
    engine = store.engine
    with engine.step_lock:
        verdict = judge(store, ids, locked=True)
        engine.reserve_cancelled(int(verdict.pending.sum()))
        chosen = np.flatnonzero(verdict.pending)
        low = verdict.offset[chosen]
        high = np.full(len(low), IDENTITY_OURS, np.int64)
        added = np.zeros(len(low), np.bool_)
        count = set_add_all(engine.cancelled, high, low, added)
        engine.words[state.CANCELLED_COUNT] += count
        of_level = int((low[added] >= LEVEL_MARK).sum())
        engine.levels.words[LEVEL_CANCELLED] += of_level
        fresh = chosen[added]
        try:
            _append_deletes(store, verdict, fresh, now_ms)
        except BaseException:
            removed = set_remove_all(engine.cancelled, high[added], low[added])
            engine.words[state.CANCELLED_COUNT] -= removed
            engine.levels.words[LEVEL_CANCELLED] -= of_level
            raise
    return verdict.pending | (verdict.cancelled & (verdict.due_ms > now_ms))


def _append_deletes(store: TimerStore, verdict: Verdict, fresh: Int64s, now_ms: int) -> None:
    engine, stage = store.engine, store._putter.take_stage()
    try:
        for row in np.unique(verdict.row[fresh]).tolist():
            mine = fresh[verdict.row[fresh] == row]
            due_ms, offsets = verdict.due_ms[mine], verdict.offset[mine]
            keys = TimerIds(due_ms, offsets, engine.store_tag).digits()
            topic = engine.queues.topics[row % QUEUE_COUNT_MAX]
            append_deletes(engine, stage, topic, keys, due_ms, now_ms, row)
    finally:
        store._putter.free_stage(stage)


def reschedule(store: TimerStore, id: str, due_ms: int) -> str:
    """Move a timer; see `TimerStore.reschedule`."""
    engine, putter, now_ms = store.engine, store._putter, store.clock.now_ms
    if int(_parse(store, [id])[1][0]) >= LEVEL_MARK:
        raise InvalidArgumentError(
            f"{id} waits in a delay level, whose messages keep their order. "
            "Cancel it, and put a new timer."
        )
    with engine.step_lock:
        verdict = judge(store, [id], locked=True)
        if not verdict.pending[0]:
            raise TooLateError(f"{id} was fired or cancelled. Put a new timer.")
        offset, old_due_ms = int(verdict.offset[0]), int(verdict.due_ms[0])
        timer = read_timer(store, int(verdict.message[0]), old_due_ms)
        properties = b""
        if timer.tag is not None:
            properties += encode_property(b"TAGS", timer.tag.encode())
        if timer.key is not None:
            properties += encode_property(b"KEYS", timer.key.encode())
        for name, value in timer.properties.items():
            properties += encode_property(name.encode(), value.encode())
        topic = timer.topic.encode()
        message, row = putter.one(topic, timer.body, due_ms, properties, timer.tag, replaces=id)
        delete = _compose_delete(store, topic, id, old_due_ms, now_ms)
        engine.reserve_cancelled(1)
        high, low = np.array([IDENTITY_OURS]), np.array([offset], np.int64)
        added = np.zeros(1, np.bool_)
        engine.words[state.CANCELLED_COUNT] += set_add_all(engine.cancelled, high, low, added)
        stage = putter.take_stage()
        try:
            tags_code = 0 if timer.tag is None else java_hash_of(timer.tag)
            both = [(message, 0, tags_code, row, 1), (delete, 0, 0, row, -1)]
            count = stage_messages(stage, both)
            append_all(engine, stage, count, now_ms, together=True)
            new_id = format_id(due_ms, int(stage.offset[0]), engine.store_tag)
        except BaseException:
            engine.words[state.CANCELLED_COUNT] -= set_remove_all(engine.cancelled, high, low)
            raise
        finally:
            putter.free_stage(stage)
    store._after_put(due_ms, now_ms)
    return new_id


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


@kernel
def first_bad_key(address: Any, length: Any) -> int:
    """Return the first text that is empty or holds a separator, or −1."""
    for i in range(len(length)):
        if length[i] == 0:
            return i
        buf = view_bytes(address[i], length[i])
        for k in range(length[i]):
            if buf[k] == 1 or buf[k] == 2:
                return i
    return -1


def check_lengths(bodies: Binaries, keys: Binaries | None, bytes_max: int) -> None:
    """Refuse bodies or keys that are empty or too long."""
    if int(bodies.length.min()) == 0:
        i = int(np.argmin(bodies.length))
        raise InvalidArgumentError(
            f"bodies[{i}] is empty, which a broker drops. Pass at least one byte."
        )
    if int(bodies.length.max()) > bytes_max:
        i = int(np.argmax(bodies.length))
        raise InvalidArgumentError(
            f"bodies[{i}] has {bodies.length[i]} bytes. Pass {bytes_max} at most."
        )
    key_bytes_max = PROPERTIES_BYTES_MAX - PROPERTIES_BYTES_SPARE - 512
    if keys is not None and int(keys.length.max()) > key_bytes_max:
        i = int(np.argmax(keys.length))
        raise InvalidArgumentError(f"keys[{i}] is too long. Pass {key_bytes_max} bytes at most.")
