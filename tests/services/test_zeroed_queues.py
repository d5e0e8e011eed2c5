"""Pages of a queue's file that are zeros, or of an older version: each message is handed out.

A file that is sparse, or whose page was never written, reads as zeros, as what lies behind a
queue's end does.
"""

import os
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.sparse_copy import copy_tree
from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.testing.disk import QuietDisk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60, method="signal")]
START_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
ENTRY_BYTES = 20
COUNT = 60
CONFIG = Config(
    durability="process",
    retention_ms=0,
    flush_interval_ms=10**6,
    tuning=Tuning(
        precision_ms=100,
        commitlog_segment_bytes=16_384,
        consumequeue_segment_bytes=ENTRY_BYTES * 100,
        cleaning_factor=1,
        cleaning_slack_bytes=0,
    ),
)
TIMERS = "rmq_sys_wheel_timer"
Made = tuple[dict[str, Path], set[str], set[str], int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A store, closed and killed, whose log begins behind 0; what has fired, what is pending."""
    path, clock = tmp_path_factory.mktemp("zeroed") / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    store.put_many([b"gone" * 80] * 100, topic="gone", delay_ms=[1] * 100)
    clock.advance(timedelta(seconds=1))
    store.pull("gone", timeout=0, max_count=1_000).ack()
    for _ in range(3):
        store.flush()
        store.clean()
    assert store.core.engine.commitlog.start > 0
    fired = store.put_many([b"fired"] * COUNT, topic="fired", delay_ms=[1] * COUNT)
    clock.advance(timedelta(seconds=1))
    later = [clock.now_ms + HOUR_MS + i for i in range(COUNT)]
    pending = store.put_many([b"later"] * COUNT, topic="later", at_ms=later)
    cancelled = set(pending[40:50])
    store.cancel_many(list(cancelled))
    store.flush()
    killed = copy_tree(path, path.parent / "killed")
    store.close()
    ends = {"closed": path, "killed": killed}
    return ends, set(fired), set(pending) - cancelled, clock.now_ms


def zero(path: Path, topic: str, first: int, count: int) -> None:
    """Zero entries of a queue, counted from its first message of a kept one."""
    files = sorted((path / "consumequeue" / topic / "0").iterdir())
    for index in range(first, first + count):
        place = index * ENTRY_BYTES
        file = max(each for each in files if int(each.name) <= place)
        with file.open("r+b") as opened:
            opened.seek(place - int(file.name))
            opened.write(bytes(ENTRY_BYTES))


def check(path: Path, made: Made, *, is_rebuilt: bool | None) -> None:
    """Take all there is: nothing is lost, nothing twice, nothing that was cancelled."""
    _, fired, pending, now_ms = made
    clock = ManualClock(now_ms)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    if is_rebuilt is not None:
        assert ("consume queues" in store.core.findings.rebuilt) == is_rebuilt
    new = {store.put(b"new", topic="fired"), store.put(b"new", topic="later")}
    clock.advance(timedelta(hours=2))
    got = list[str]()
    for life in range(2):
        for topic in ("fired", "later"):
            while len(batch := store.pull(topic, group="another", timeout=0, max_count=1_000)):
                got += batch.ids.to_pylist()
                batch.ack()
        if life == 0:
            assert store.stats().damage and not store.health().ok
            store.close()
            store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    assert sorted(got) == sorted(fired | pending | new)
    store.close()
    report = timerstore.verify(path, config=CONFIG)
    assert report.ok, str(report)


def used_entries(path: Path, topic: str) -> int:
    """The index behind a queue's last entry."""
    files = sorted((path / "consumequeue" / topic / "0").iterdir())
    ends = [int(f.name) + len(f.read_bytes().rstrip(b"\0")) for f in files if any(f.read_bytes())]
    return -(-ends[-1] // ENTRY_BYTES)


@pytest.mark.tier(
    "prove", only=("*-fired-closed", "*-all-closed", "*-rmq_sys_wheel_timer-killed", "[57]-*")
)
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("topic", ["fired", TIMERS, "all"])
@pytest.mark.parametrize(("before_end", "count"), [(1, 1), (5, 5), (7, 4), (25, 25)])
def test_zeros_at_a_queues_end_are_not_its_end(
    topic: str, before_end: int, count: int, end: str, made: Made, tmp_path: Path
) -> None:
    path = copy_tree(made[0][end], tmp_path / "s")
    for each in ["fired", TIMERS] if topic == "all" else [topic]:
        zero(path, each, used_entries(path, each) - before_end, count)
    check(path, made, is_rebuilt=None if before_end > count else True)


@pytest.mark.parametrize("count", [1, 3])
def test_a_store_without_a_record_of_its_ends_asks_the_log(
    count: int, made: Made, tmp_path: Path
) -> None:
    path = copy_tree(made[0]["closed"], tmp_path / "s")
    (path / "config" / "topiccounts").unlink()
    zero(path, "fired", used_entries(path, "fired") - count, count)
    check(path, made, is_rebuilt=True)


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize(("first", "count"), [(0, 10), (20, 30), (59, 1)])
def test_zeros_inside_a_topics_queue_hide_nothing(
    first: int, count: int, end: str, made: Made, tmp_path: Path
) -> None:
    path = copy_tree(made[0][end], tmp_path / "s")
    zero(path, "fired", first, count)
    check(path, made, is_rebuilt=None)


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog"])
def test_a_timer_index_is_made_anew_from_the_log(lost: str, made: Made, tmp_path: Path) -> None:
    """Zeros in the timer topic's queue do not say that a message was removed."""
    path = copy_tree(made[0]["closed"], tmp_path / "s")
    end = used_entries(path, TIMERS)
    zero(path, TIMERS, end - 60, 25)
    zero(path, TIMERS, end - 6, 4)  # of deletes
    for file in [path / lost] if lost == "timerwheel" else (path / lost).iterdir():
        os.unlink(file)
    check(path, made, is_rebuilt=True)


def test_the_first_kept_entry_is_found_past_damage(made: Made, tmp_path: Path) -> None:
    path = copy_tree(made[0]["closed"], tmp_path / "s")
    store = TimerStore(path, config=CONFIG, clock=ManualClock(made[3]), disk=QuietDisk())
    queues, log_start = store.core.engine.queues, store.core.engine.commitlog.start
    row, (first, end) = 0, (queues.first_index(0), queues.next_index(0))
    kept = queues.first_kept(row, log_start)
    assert first < kept < end
    file = queues.existing(row, kept // queues.segment_entries)
    for index in range(kept + 1, min(end, (kept // queues.segment_entries + 1) * 100)):
        at = index % queues.segment_entries * ENTRY_BYTES
        before = file.view[at : at + ENTRY_BYTES].copy()
        file.view[at : at + ENTRY_BYTES] = 0
        assert queues.first_kept(row, log_start) == kept
        file.view[at : at + ENTRY_BYTES] = before
        file.view[at : at + 8] = 0  # it says a message that was removed
        assert queues.first_kept(row, log_start) == kept
        file.view[at : at + ENTRY_BYTES] = before
    store.close()
