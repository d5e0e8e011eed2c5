"""Putting many timers of one topic in one kernel."""

from __future__ import annotations

from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import Words
from timerstore.services.world.world import World
from timerstore.timelog.writing.append import Stage, append
from timerstore.timelog.writing.frame import Puts, Template, frame_batch


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
