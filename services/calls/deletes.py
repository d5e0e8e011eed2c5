"""Delete messages: what a cancel leaves in the log.

A delete is a message of the timer topic with its target's due time, whose `TIMER_DEL_UNIQKEY` is
the target's real topic + `+` + unique key. Its body is the one byte that RocketMQ's clients send.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from timerstore.jit.arraytypes import read_only
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import ReadByteRows, Words
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.writing.append import QueueTable, Stage, append
from timerstore.timelog.writing.compose import compose
from timerstore.timelog.writing.frame import (
    NewSays,
    Template,
    encode_property,
    encode_waiting,
    frame_new,
    new_template,
)

DELETE_BODY = np.frombuffer(b"\x01", np.uint8).copy()


class Deleted(NamedTuple):
    """Timers that deletes name: all of one topic."""

    keys: ReadByteRows  # uint8[n, 32], their unique keys
    due_ms: Words  # int64[n], their `TIMER_OUT_MS`
    born_ms: Words  # int64[n], of their messages, as below
    body_bytes: Words


@lru_cache(maxsize=256)
def delete_template(topic: bytes, pending_row: int, tag: int) -> Template:
    """Return the template of deletes whose targets end up in `topic`."""
    return new_template(
        topic,
        tag=tag,
        pending_row=pending_row,
        change=-1,
        tags_code=0,
        extra=fmt.PROPERTY_DELETES + b"\x01" + topic + b"+",
    )


@kernel_ahead
def stage_deletes(
    stage: Stage,
    template: Template,
    targets: Deleted,
    start: int,
    now_ms: int,
) -> int:
    """Frame deletes `start`… until the stage is full; return how many."""
    at, count = 0, 0
    while start + count < len(targets.due_ms) and count < len(stage.size) and at < 60_000:
        k = start + count
        key, due_ms = targets.keys[k], targets.due_ms[k]
        says = NewSays(DELETE_BODY, key, due_ms)
        at += frame_new(stage, count, at, template, says, now_ms)
        stage.born_ms[count] = targets.born_ms[k]
        stage.body_bytes[count] = targets.body_bytes[k]
        count += 1
    return count


@kernel_ahead
def append_staged(
    commitlog: SegmentTable,
    queues: QueueTable,
    lock: Words,
    stage: Stage,
    count: int,
    now_ms: int,
    together: bool,
) -> int:
    """Append what was staged, see `append`."""
    return append(commitlog, queues, lock, stage, count, now_ms, together)


def append_all(engine: Engine, stage: Stage, count: int, now_ms: int, *, together: bool) -> None:
    """Append `count` staged messages, making what is missing on the way.

    Without `together` a failure may leave a prefix; the caller knows from the log's end.
    """
    world, done = engine.world, 0
    while True:
        with engine.commitlog.reading() as log:
            lock = engine.world.append_lock
            done = append_staged(log, world.queues, lock, stage, count, now_ms, together)
        if done == count:
            return
        engine.provide_append(stage)
        if done:
            _shift(stage, done, count)
            count -= done


def _shift(stage: Stage, done: int, count: int) -> None:
    """Move the messages that were not appended to the front of the stage."""
    start = int(stage.size[:done].sum())
    length = int(stage.size[done:count].sum())
    stage.buffer[:length] = stage.buffer[start : start + length].copy()
    for column in (
        *(stage.size, stage.row, stage.tags_code, stage.key_at),
        *(stage.pending_row, stage.pending_change, stage.due_ms, stage.hash),
        *(stage.counted_ms, stage.born_ms, stage.body_bytes),
        *(stage.offset, stage.index),
    ):
        column[: count - done] = column[done:count].copy()


def append_deletes(
    engine: Engine,
    stage: Stage,
    topic: bytes,
    targets: Deleted,
    now_ms: int,
    pending_row: int,
) -> None:
    """Append a delete for each target.

    `pending_row`: the row in which they are counted, see `QueueTable.pending`.
    """
    template, start = delete_template(topic, pending_row, engine.store_tag), 0
    targets = targets._replace(keys=read_only(targets.keys))
    while start < len(targets.due_ms):
        count = stage_deletes(stage, template, targets, start, now_ms)
        append_all(engine, stage, count, now_ms, together=False)
        start += count


def compose_delete(engine: Engine, topic: bytes, key: bytes, due_ms: int, now_ms: int) -> bytes:
    """Compose the delete of one timer, by its real topic and unique key; due with it."""
    own = b"%012X%012X%08X" % (due_ms, 0, engine.store_tag)
    properties = encode_waiting(fmt.PROPERTY_DUE, b"%d" % due_ms, own, topic)
    properties += encode_property(fmt.PROPERTY_DELETES, topic + b"+" + key)
    return compose(fmt.TIMER_TOPIC, DELETE_BODY.tobytes(), properties, born_ms=now_ms)
