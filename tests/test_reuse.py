"""A store whose commit log segments are used again: who reads it meanwhile, how it ends."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests import naive
from tests.models.archive import KeptDisk
from tests.models.ledger import read_ledger
from tests.rigs.storm_taken import run_of
from tests.rigs.tablerows import rows_in
from tests.small_store import small
from tests.sparse_copy import copy_tree
from timerstore import Config, ManualClock, TimerStore, verify
from timerstore.testing.disk import QuietDisk
from timerstore.testing.ledger import check_store
from timerstore.timelog.bytes.decode import decode_message
from timerstore.timelog.files.segmenttable import apron_bytes
from timerstore.timelog.reading.reader import StoreReader

pytestmark = [pytest.mark.on_disk, pytest.mark.linux]

SEGMENT_BYTES = 1 << 14
START_MS = 1_800_000_000_000
CONFIG = small(SEGMENT_BYTES, 2_000, 5_248, precision_ms=100, retention_ms=1)


def open_store(path: Path, config: Config = CONFIG, now_ms: int = START_MS) -> TimerStore:
    store = TimerStore(path, config=config, clock=ManualClock(now_ms, force=True), disk=KeptDisk())
    store.core.upkeep.retention._wanted_ahead = lambda: 3  # type: ignore[method-assign]
    return store


def live(store: TimerStore, rounds: int) -> None:
    """Put, fire, consume; a checkpoint each time, after which what was consumed goes."""
    assert isinstance(store.core.clock, ManualClock)
    for _ in range(rounds):
        store.put_many([b"x" * 100] * 20, topic="t", delay_ms=50)
        store.core.clock.advance(timedelta(milliseconds=400))
        batch = store.pull("t", max_count=100, timeout=0)
        assert len(batch) == 20 and set(batch.bodies.to_pylist()) == {b"x" * 100}
        batch.ack()
        store.flush()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    """A store in which files have changed their place often, with old bytes behind the end."""
    store = open_store(tmp_path / "store")
    live(store, 40)
    assert store.core.engine.commitlog.reused_count > 12
    yield store
    store.abandon()


def behind_end(store: TimerStore) -> bytes:
    log = store.core.engine.commitlog
    number = log.end // SEGMENT_BYTES
    data = b"".join(log.path(each).read_bytes() for each in log.numbers if each >= number)
    return data[log.end % SEGMENT_BYTES :]


def test_old_bytes_lie_behind_an_apron(store: TimerStore) -> None:
    old = behind_end(store)
    assert any(old)
    assert not any(old[: apron_bytes(SEGMENT_BYTES)])


def test_a_killed_store_opens_as_it_was(store: TimerStore) -> None:
    store.put(b"waits", topic="t", at_ms=store.core.clock.now_ms + 10_000)
    end = store.core.engine.commitlog.end
    store.abandon()
    assert read_ledger(store.path).end == end  # it reaches up to zeros: where a broker stops
    report = verify(store.path)
    assert report.ok and not report.warnings, str(report)
    again = open_store(store.path, now_ms=store.core.clock.now_ms)
    check_store(again, read_ledger(store.path))
    assert again.core.engine.commitlog.end == end and not any(behind_end(again))
    assert again.count() == 1
    live(again, 10)
    again.close()
    assert verify(store.path).ok


def test_a_clean_close_leaves_nothing_old(store: TimerStore) -> None:
    store.close()
    assert not any(behind_end(store))
    assert verify(store.path).ok
    with open_store(store.path, now_ms=store.core.clock.now_ms) as again:
        live(again, 3)


def offsets(reader: StoreReader) -> list[int]:
    return [offset for rows in reader.scan() for offset in rows.offset.tolist()]


def test_what_a_reader_sees_does_not_change(store: TimerStore) -> None:
    log = store.core.engine.commitlog
    reader, count = StoreReader(store.path, store.core.engine.level_ms), log.reused_count
    before = offsets(reader)
    with timerstore.open(store.path, read_only=True) as looking:
        live(store, 20)
        assert log.reused_count == count  # they go, as if no file were used again
        assert offsets(reader)[: len(before)] == before
        assert looking.count() == 0
    del reader
    live(store, 20)
    assert log.reused_count > count


def test_a_reader_without_the_lock_gets_no_wrong_row(store: TimerStore) -> None:
    """Its files are used again under it: what it reads is of their place, or it says that not."""
    changed_count = 0
    for _ in range(12):
        reader = StoreReader(store.path, store.core.engine.level_ms, shares=False)
        starts = [number * SEGMENT_BYTES for number in reader.commitlog.numbers]
        starts = [start for start in starts if reader.is_message(start)]
        before = {row[0]: row for rows in reader.scan() for row in rows_in(rows)}
        live(store, 2)
        for start in starts:
            for rows in reader.scan(start, start + SEGMENT_BYTES):
                for row in rows_in(rows):
                    assert before.get(row[0], row) == row
            if not reader.is_message(start):
                changed_count += 1
                with pytest.raises(timerstore.CorruptStoreError):
                    decode_message(reader.commitlog.view(start), start)
    assert changed_count


def test_a_batch_that_is_held_keeps_its_segments(store: TimerStore) -> None:
    assert isinstance(store.core.clock, ManualClock)
    bodies = [b"%05d" % i * 20 for i in range(20)]
    store.put_many(bodies, topic="t", delay_ms=0)
    held = store.pull("t", max_count=100, timeout=0)
    deliveries = list(held)
    held.ack()
    pinned = set(run_of(held).pins)
    live(store, 20)
    names = [file.path for file in pinned]
    assert len(set(names)) == len(names)
    assert all(not path.exists() for path in names)  # removed, not used again
    assert sorted(each.body for each in deliveries) == sorted(bodies)


def test_a_limit_is_no_trap(tmp_path: Path) -> None:
    """What is kept to be used again never takes the room that is left to put."""
    config = replace(CONFIG, max_bytes=16 * SEGMENT_BYTES + 200_000)
    store = TimerStore(
        tmp_path, config=config, clock=ManualClock(START_MS, force=True), disk=QuietDisk()
    )
    live(store, 60)
    store.close()


def test_what_a_broker_wrote_is_not_used_again(
    tmp_path: Path, golden_unpacked: Callable[[str], Path]
) -> None:
    """Its blanks do not say their place."""
    path = tmp_path / "store"
    copy_tree(golden_unpacked("fired"), path)
    config = Config(retention_ms=1)
    segments = {int(file.name): file.read_bytes() for file in (path / "commitlog").iterdir()}
    latest_ms = max(message.stored_ms for message in naive.scan_commit_log(segments).messages)
    with TimerStore(path, config=config, clock=ManualClock(latest_ms, force=True)) as store:
        log = store.core.engine.commitlog
        assert log.reusable_from == log.end // log.segment_bytes + 1


def test_a_broker_without_a_timer_wheel_may_go_on(store: TimerStore) -> None:
    """It writes no cursors: its messages behind the end, and its blank, count all the same."""
    store.close()
    end = store.core.engine.commitlog.end
    message = naive.Message(
        "plain", b"b" * 300, {"a": "b"}, has_crc=False, store_host=naive.BROKER_HOST
    )
    log = Path(store.path) / "commitlog"
    count = 0
    while end // SEGMENT_BYTES == store.core.engine.commitlog.end // SEGMENT_BYTES:
        message.offset, message.queue_offset = end, count
        data = naive.encode_message(message)
        left = SEGMENT_BYTES - end % SEGMENT_BYTES
        if len(data) + 8 > left:
            data = naive.blank_message(left)
        file = log / f"{end - end % SEGMENT_BYTES:020d}"
        whole = bytearray(file.read_bytes())
        whole[end % SEGMENT_BYTES : end % SEGMENT_BYTES + len(data)] = data
        file.write_bytes(whole)
        count, end = count + 1, end + len(data)
    following = log / f"{end:020d}"
    message.offset, message.queue_offset = end, count - 1
    following.write_bytes(naive.encode_message(message).ljust(SEGMENT_BYTES, b"\0"))
    with open_store(store.path, now_ms=store.core.clock.now_ms) as again:
        assert again.core.engine.commitlog.end > end
        assert len(again.pull("plain", max_count=1000, timeout=0)) == count


def test_how_many_are_kept(tmp_path: Path) -> None:
    """So many as are filled in seconds, and none where the store is half full of its limit."""
    config = replace(CONFIG, max_bytes=1 << 30)
    with TimerStore(
        tmp_path, config=config, clock=ManualClock(START_MS, force=True), disk=QuietDisk()
    ) as s:
        log, wanted = s.core.engine.commitlog, s.core.upkeep.retention._wanted_ahead
        assert wanted() == 0
        before = log.end
        log.end = before + SEGMENT_BYTES - 1
        assert wanted() == 1  # it is more than half full
        log.end = before + 7 * SEGMENT_BYTES
        assert wanted() == 7
        assert [wanted() for _ in range(9)][-1] == 0
        log.end = before + 20 * SEGMENT_BYTES
        s.core.engine.config = replace(CONFIG, max_bytes=s.core.engine.disk_bytes)
        assert wanted() == 0
        log.end = before
