"""What a crash has torn at the commit log's end: a message, a batch of them, or a reschedule.

An acknowledgement record and its puts are appended under one taking of the append lock, so nothing
stands behind a batch that is not whole. It is cut off the log as half a message is.
"""

from __future__ import annotations

import os

import numpy as np

from timerstore.jit.record import Words
from timerstore.services.calls.deletes import Deleted, append_deletes
from timerstore.services.engine.engine import Engine
from timerstore.services.opening.recover_deletes import find_timer
from timerstore.timelog.bytes.decode import decode_message
from timerstore.timelog.bytes.timeridentity import identity_of
from timerstore.timelog.files.nonzero import last_used
from timerstore.timelog.files.segmenttable import apron_bytes
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.timelog.writing.ackrecord import ACKS_TOPIC, read_record
from timerstore.timelog.writing.append import new_stage


def torn_bytes(engine: Engine, end: int) -> int:
    """Return how many bytes stand behind the log's end that were not written whole."""
    number, position = divmod(end, engine.commitlog.segment_bytes)
    if number not in engine.commitlog.numbers:
        return 0
    file = engine.commitlog.ensure(number)
    used = engine.disk.used_ranges(file)
    tail = file.view[position : max(position, used[-1][1] if used else 0)]
    # What is behind the apron may be of an earlier use.
    if not tail[: apron_bytes(file.length)].any():
        return 0
    return last_used(tail) + 1


def whole_count(engine: Engine, part: LoggedMessages, queue_rows: Words) -> int:
    """Return how many of some scanned messages there are before a record that lacks puts.

    `queue_rows`: the queue's row of each. O(messages), and one that is decoded.
    """
    rows = engine.queues.rows(ACKS_TOPIC)
    records = np.flatnonzero(np.isin(queue_rows, rows)) if rows else np.zeros(0, np.int64)
    if not len(records):
        return len(part)
    last = int(records[-1])
    offset = int(part.offset[last])
    message = decode_message(engine.commitlog.view(offset), offset)
    record = read_record(message.body)
    if record is None or last + record.put_count < len(part):
        return len(part)
    return last


def complete_reschedule(engine: Engine, last: LoggedMessages, now_ms: int) -> bool:
    """Append the delete that a crash tore off the replacement at the log's end, if it did.

    `last`: the log's last message, as a scanned row. Returns whether one was appended. A copy of a
    replacement tells nothing, nor does a broker's, which names no source: the delete stands before.
    """
    if not last.is_replacement or last.origin >= 0 or last.roll_times > 0:
        return False
    if int(last.offset) + int(last.size) != engine.commitlog.end:
        return False
    replaced = _read_replaced(engine, int(last.offset))
    if replaced is None:
        return False
    topic, key = replaced
    high, low = (np.array([each], np.int64) for each in identity_of(topic, key, engine.store_tag))
    if engine.cancelled.contains(high, low)[0]:  # it would be taken off the count once more
        return False
    old = find_timer(engine, int(high[0]), int(low[0]))
    if old < 0:
        return False
    timer = decode_message(engine.commitlog.view(old), old)
    engine.cancelled.add(high, low)
    keys = np.frombuffer(key, np.uint8).reshape(1, -1)
    due_ms = np.array([int(timer.properties["TIMER_OUT_MS"])], np.int64)
    said = (np.array([each], np.int64) for each in (timer.born_ms, len(timer.body)))
    targets, row = Deleted(keys, due_ms, *said), engine.queues.row(topic)
    append_deletes(engine, new_stage(4, 8192), topic, targets, now_ms, row)
    return True


def _read_replaced(engine: Engine, offset: int) -> tuple[bytes, bytes] | None:
    """Return the topic and the unique key that a replacement names."""
    message = decode_message(engine.commitlog.view(offset), offset)
    key, topic = message.properties.get("TIMER_REPLACES"), message.properties.get("REAL_TOPIC")
    if not key or topic is None:
        return None
    return os.fsencode(topic), key.encode("utf-8", "surrogateescape")
