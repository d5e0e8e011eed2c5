"""Bytes found in segments, segments made, queues read."""

from __future__ import annotations

from itertools import count as counter
from typing import Any

import numpy as np

from suite.rig import COUNT, FAR_MS, PYTHON, play, put
from timerstore import TimerStore
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.jit.intrinsics import get_word
from timerstore.timelog.jit.kernel import kernel

TIMES = 10


@kernel
def _look_up(table: Any, offsets: Any, times: int) -> int:
    total = 0
    for _ in range(times):
        for i in range(len(offsets)):
            buf = segment_at(table, offsets[i])
            total ^= get_word(buf, offsets[i] % table.segment_bytes)
    return total


def bench_segment_at(store: TimerStore, benchmark: Any) -> None:
    """Find a byte of the log in its segment."""
    put(store, 3_600_000)
    offsets = store.core.engine.queues.read(0, 0, COUNT)["offset"].astype(np.int64)
    table = store.core.engine.commitlog.shared_table
    play(benchmark, lambda: _look_up(table, offsets, TIMES), count=TIMES * COUNT)


def bench_new_segment(store: TimerStore, benchmark: Any) -> None:
    """Make segments of the timer log, empty, mapped."""
    number, timerlog = counter(1), store.core.engine.timerlog

    def stage() -> None:
        for _ in range(10):
            timerlog.ensure(next(number))

    play(benchmark, stage, count=10, beside=PYTHON)


def bench_read_log(store: TimerStore, benchmark: Any) -> None:
    """Read a message's bytes from Python."""
    log = store.core.engine.commitlog
    put(store, 3_600_000)
    places = store.core.engine.queues.read(0, 0, 2_000)
    wanted = [(int(each["offset"]), int(each["size"])) for each in places]

    def stage() -> None:
        for offset, size in wanted:
            log.read(offset, size)

    play(benchmark, stage, count=len(wanted), beside=PYTHON)


def bench_read_queue(store: TimerStore, benchmark: Any) -> None:
    """Read a queue's entries, a hundred at a time."""
    queues = store.core.engine.queues
    store.put_many([b"x"] * COUNT, at_ms=FAR_MS)

    def stage() -> None:
        for at in range(0, COUNT, 100):
            queues.read(0, at, 100)

    play(benchmark, stage, beside=PYTHON)
