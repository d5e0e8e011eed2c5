"""Messages framed, then read; ids as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suite.rig import BODIES, COUNT, FAR_MS, PYTHON, START_MS, play, put
from timerstore import TimerStore
from timerstore.ground.arguments import Binaries
from timerstore.timelog.bytes.decode import decode_message
from timerstore.timelog.bytes.idtext import read_ids, write_ids
from timerstore.timelog.bytes.message import MessageParts, read_message
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.jit.kernel import kernel
from timerstore.timelog.jit.objects import NO_PIECES, rows_read
from timerstore.timelog.writing.append import new_stage
from timerstore.timelog.writing.frame import Puts, frame_batch, new_template

IDS = 100_000


@kernel
def _read_many(table: Any, offsets: Any, found: Any, verify: bool) -> int:
    bad = 0
    for i in range(len(offsets)):
        bad += read_message(segment_at(table, 0), offsets[i], found, verify)
    return bad


@pytest.mark.parametrize("verify", [False, True], ids=["frame", "frame-and-crc"])
def bench_read_message(store: TimerStore, benchmark: Any, verify: bool) -> None:
    """Find a message's parts and properties, without or with its checksum."""
    put(store, 3_600_000)
    entries = store.core.engine.queues.read(0, 0, COUNT)
    offsets = entries["offset"].astype(np.int64)
    table, found = store.core.engine.commitlog.shared_table, MessageParts()
    assert _read_many(table, offsets, found, verify) == 0
    play(benchmark, lambda: _read_many(table, offsets, found, verify))


@kernel
def _frame_all(stage: Any, template: Any, puts: Any, now_ms: int) -> int:
    done = 0
    while done < len(puts.due_ms):
        done += frame_batch(stage, template, puts, done, now_ms)
    return done


def bench_frame_batch(benchmark: Any) -> None:
    """Frame new messages, again and again in one buffer."""
    template = new_template(b"orders", tag=7, pending_row=0, change=1, tags_code=0)
    bodies = Binaries([BODIES[7]] * COUNT, "bodies")
    puts = Puts(bodies.pieces, NO_PIECES, np.full(COUNT, FAR_MS))
    stage = new_stage()

    def framed() -> None:
        assert _frame_all(stage, template, puts, START_MS) == COUNT

    play(benchmark, framed)


def bench_decode_message(store: TimerStore, benchmark: Any) -> None:
    """Decode a message into a tuple of Python's."""
    put(store, 3_600_000)
    entries = store.core.engine.queues.read(0, 0, 1_000)
    log = store.core.engine.commitlog
    views = [(log.view(int(offset)), int(offset)) for offset in entries["offset"]]

    def stage() -> None:
        for view, offset in views:
            decode_message(view, offset)

    play(benchmark, stage, count=len(views), beside=PYTHON)


def bench_ids(benchmark: Any) -> None:
    """Write ids as hex digits, read them again."""
    due_ms = START_MS + np.arange(IDS)
    offsets, digits = 329 * np.arange(IDS), np.zeros(32 * IDS, np.uint8)
    texts = rows_read(digits.reshape(IDS, 32))

    def stage() -> None:
        write_ids(due_ms, offsets, 7, digits)
        assert read_ids(texts, 7, due_ms, offsets) == IDS

    play(benchmark, stage, count=IDS)
