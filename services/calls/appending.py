"""What calls append: deletes, which a cancel leaves in the log, and batches of any messages.

A delete is a message of the timer topic with its target's due time, whose `TIMER_DEL_UNIQKEY` is
the target's real topic + `+` + unique key. Its body is the one byte that RocketMQ's clients send.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.writing.append import QueueTable, Stage, append
from timerstore.timelog.writing.compose import compose
from timerstore.timelog.writing.frame import (
    Puts,
    Template,
    encode_property,
    encode_waiting,
    frame_batch,
    new_template,
)

DELETE_BODY = np.frombuffer(b"\x01", np.uint8).copy()


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
def _append(
    commitlog: SegmentTable, queues: QueueTable, lock: Words, stage: Stage, count: int, now_ms: int
) -> int:
    """Append what was staged at once, see `append`."""
    return append(commitlog, queues, lock, stage, count, now_ms, True)


def append_all(engine: Engine, stage: Stage, count: int, now_ms: int) -> None:
    """Append `count` staged messages at once, making what is missing before."""
    queues, lock = engine.world.queues, engine.world.append_lock
    while True:
        with engine.commitlog.reading() as log:
            done = _append(log, queues, lock, stage, count, now_ms)
        if done == count:
            return
        engine.provide_append(stage)


def compose_delete(engine: Engine, topic: bytes, key: bytes, due_ms: int, now_ms: int) -> bytes:
    """Compose the delete of one timer, by its real topic and unique key; due with it."""
    own = b"%012X%012X%08X" % (due_ms, 0, engine.store_tag)
    properties = encode_waiting(fmt.PROPERTY_DUE, b"%d" % due_ms, own, topic)
    properties += encode_property(fmt.PROPERTY_DELETES, topic + b"+" + key)
    return compose(fmt.TIMER_TOPIC, DELETE_BODY.tobytes(), properties, born_ms=now_ms)


# --- Putting many timers of one topic in one kernel.


@kernel_ahead
def put_batch(
    world: World,
    stage: Stage,
    template: Template,
    puts: Puts,
    start: int,
    now_ms: int,
    offsets: Words,
) -> int:
    """Frame and append messages from `start` on; return how many of all are in the log then.

    `offsets`: int64[n], written. Less than n if a segment is missing.
    """
    log, queues, lock = world.commitlog, world.queues, world.append_lock
    while start < len(puts.due_ms):
        count = frame_batch(stage, template, puts, start, now_ms)
        done = append(log, queues, lock, stage, count, now_ms, False)
        for i in range(done):
            offsets[start + i] = stage.offset[i]
        start += done
        if done < count:
            break
    return start
