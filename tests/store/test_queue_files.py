"""Queue files that are made ahead, which a broker would read: none is left, a gap is passed."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests import naive
from tests.rigs.broker import TIMERS, timer
from tests.services.test_cleaning import SMALL, START_MS, open_small
from tests.table_stores import write_log
from timerstore import ManualClock, verify
from timerstore.timelog.bytes import format as fmt
from timerstore.validation import validate

ENTRIES = SMALL.consumequeue_segment_bytes // fmt.ENTRY_BYTES


def empty_files(path: Path) -> list[str]:
    files = sorted((path / "consumequeue").glob("*/*/0*"))
    return [str(file.relative_to(path)) for file in files if not any(file.read_bytes()[:20])]


@pytest.mark.usefixtures("any_wheel")
@pytest.mark.tier("prove", but=("9-False", "10-True", "20-False"))
@pytest.mark.parametrize("hand_over", [False, True])
@pytest.mark.parametrize("count", [ENTRIES - 1, ENTRIES, 2 * ENTRIES])
def test_no_queue_file_lies_behind_the_last_entry(
    tmp_path: Path, count: int, hand_over: bool
) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    store = open_small(path, clock)
    store.put_many([b"one"] * count, topic="t")
    store.put(b"level", topic="t", delay_level=3)
    clock.advance(timedelta(seconds=1))
    for row in range(len(store.core.engine.queues.files)):
        store.core.engine.queues.prepare(row, ahead=True)
    if hand_over:
        store.handover()
    else:
        store.close()
    assert not empty_files(path)
    assert verify(path).ok and validate(path).ok

    with open_small(path, clock) as store:
        store.put(b"two", topic="t")
        clock.advance(timedelta(seconds=20))
        batch = store.pull("t", timeout=0, max_count=100)
        assert sorted(batch.bodies.to_pylist()) == sorted([b"one"] * count + [b"two", b"level"])
    assert verify(path).ok and not empty_files(path)


def test_a_gap_that_a_broker_left_is_passed(tmp_path: Path) -> None:
    """Its first message behind a file that was made ahead has the second entry of that file."""
    path, end = tmp_path / "s", 0
    messages = [timer("t", b"%d" % i, START_MS + i, f"key-{i}") for i in range(ENTRIES + 3)]
    for i, message in enumerate(messages):
        message.queue_offset = i + (i >= ENTRIES)
        message.offset = naive.place_behind(SMALL.commitlog_segment_bytes, end, message.size_bytes)
        end = message.offset + message.size_bytes
    segments = naive.lay_out(
        messages, SMALL.commitlog_segment_bytes, end // SMALL.commitlog_segment_bytes + 1
    )
    write_log(path, segments, SMALL.commitlog_segment_bytes)
    clock = ManualClock(START_MS - 60_000, force=True)
    with open_small(path, clock) as store:
        assert store.count("t") == len(messages) == len(list(store.pending()))
        assert store.core.engine.queues.rows(TIMERS.encode()) == [0]
    for _ in range(2):
        assert verify(path).ok, str(verify(path))
        assert validate(path).ok, str(validate(path))
        with open_small(path, clock) as store:
            assert store.count("t") == len(messages)
            assert store.health().ok
    with open_small(path, clock) as store:
        clock.advance(timedelta(seconds=70))
        assert len(store.pull("t", timeout=0, max_count=100)) == len(messages)
