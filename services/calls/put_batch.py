"""Putting many timers of one topic in one kernel."""

from __future__ import annotations

from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.jit.kernel import kernel_ahead
from timerstore.timelog.jit.record import Words
from timerstore.timelog.writing.append import QueueTable, Stage, append
from timerstore.timelog.writing.frame import Template, frame_batch


@kernel_ahead
def put_batch(
    commitlog: SegmentTable,
    queues: QueueTable,
    lock: Words,
    stage: Stage,
    template: Template,
    body_address: Words,
    body_bytes: Words,
    key_address: Words,
    key_bytes: Words,
    due_ms: Words,
    start: int,
    now_ms: int,
    tag: int,
    offsets: Words,
) -> int:
    """Frame and append messages from `start` on; return how many of all are in the log then.

    `body_address`, `body_bytes`, `due_ms`: int64[n]; `key_*`: int64[n or 0]; `offsets`: int64[n],
    written. Less than n where a segment is missing.
    """
    while start < len(due_ms):
        count = frame_batch(
            stage,
            template,
            body_address,
            body_bytes,
            key_address,
            key_bytes,
            due_ms,
            start,
            now_ms,
            tag,
        )
        done = append(commitlog, queues, lock, stage, count, now_ms, False)
        for i in range(done):
            offsets[start + i] = stage.offset[i]
        start += done
        if done < count:
            break
    return start
