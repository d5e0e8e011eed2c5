"""Files: messages framed and read, ids as text; segments, queues; chains, the timer log; tables."""

from __future__ import annotations

from datetime import timedelta
from itertools import count as counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from suite.rig import BODIES, COUNT, FAR_MS, PYTHON, START_MS, drive, play, put
from timerstore import Config, ManualClock, TimerStore
from timerstore.jit.intrinsics import get_word
from timerstore.jit.kernel import kernel
from timerstore.jit.objects import NO_PIECES, rows_read
from timerstore.services.looking.read_units import chain_units
from timerstore.services.world.state import ENQUEUE_GET, ENQUEUE_PUT
from timerstore.timelog.bytes.decode import decode_message, read_ids, write_ids
from timerstore.timelog.bytes.message import MessageParts, read_message
from timerstore.timelog.bytes.unit import Units
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.timerlog import WALK_DONE, scan_units
from timerstore.timelog.writing.append import new_stage
from timerstore.timelog.writing.frame import Puts, frame_batch, new_template
from timerstore.values.check_arguments import Binaries

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


def _linked(store: TimerStore, seconds: int) -> np.ndarray[Any, Any]:
    """Link COUNT timers of so many seconds; return their chains."""
    at_ms = START_MS + 3_600_000 + np.random.default_rng(1).integers(0, 1_000 * seconds, COUNT)
    store.put_many([b"x" * 100] * COUNT, at_ms=at_ms)
    drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)
    slots = store.core.engine.wheel.slots
    used = slots[slots["count"] > 0]
    return np.column_stack([used["time"], used["last"]]).astype(np.int64)


@pytest.mark.parametrize("seconds", [1, 1_000])
def bench_chains(store: TimerStore, benchmark: Any, seconds: int) -> None:
    """Walk one long chain, or a thousand short ones in turn."""
    chains = _linked(store, seconds)

    def stage() -> None:
        assert sum(len(part.offset) for part in chain_units(store.core.engine, chains)) == COUNT

    play(benchmark, stage)


def bench_scan(store: TimerStore, benchmark: Any) -> None:
    """Read the timer log from end to end."""
    put(store, 3_600_000)
    drive(store, (ENQUEUE_GET, ENQUEUE_PUT), START_MS)
    timerlog, units = store.core.engine.timerlog, Units.room(COUNT)

    def stage() -> None:
        state = np.array([timerlog.start, 0], np.int64)
        with timerlog.reading() as table:
            found = scan_units(table, timerlog.end, 0, 1_000, 0, units, state)
        assert found == COUNT
        assert state[1] == WALK_DONE

    play(benchmark, stage)


@pytest.fixture
def path(folder: Path) -> Path:
    """Return a closed store with COUNT timers that are pending, as many that have fired."""
    clock = ManualClock(START_MS)
    config = Config(durability="process")
    with timerstore.open(folder / "store", config=config, clock=clock) as store:
        put(store, 0)
        put(store, 3_600_000)
        clock.advance(timedelta(seconds=2))
    return folder / "store"


@pytest.mark.parametrize(
    ("table", "rows"),
    [("messages", 3 * COUNT), ("fired", COUNT), ("units", 2 * COUNT), ("timers", COUNT)],
)
def bench_table(path: Path, benchmark: Any, table: str, rows: int) -> None:
    """Read a table, every column."""

    def stage() -> None:
        assert timerstore.read(path, table).num_rows == rows

    play(benchmark, stage, count=rows)
