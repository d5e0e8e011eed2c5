"""Files that are gone from either end of a queue, or have grown: the queue is written anew."""

import struct
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.services.test_damage import CONFIG, START_MS
from tests.sparse_copy import copy_tree
from timerstore import ManualClock, TimerStore
from timerstore.services.opening import recover_log
from timerstore.testing.damage import flip_bit
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.checkpoint import read_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60, method="signal")]
SECOND = timedelta(seconds=1)
COUNTS = {"a": 52, "small": 2, "b": 30}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], int]:
    """A store as it was left by a kill, and closed, with messages in every kind of queue."""
    path, clock = tmp_path_factory.mktemp("queues") / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    for _ in range(20):
        store.put(b"level", topic="a", delay_level=4)
    store.put_many([b"body"] * 30, topic="a", delay_ms=1_000)
    store.put(b"only", topic="small", delay=SECOND)
    store.put_many([b"later"] * 30, topic="b", delay_ms=60_000)
    clock.advance(3 * SECOND)
    store.core.flusher.flush()
    killed = copy_tree(path, path.parent / "killed")
    store.close()
    return {"closed": path, "killed": killed}, clock.now_ms


@pytest.mark.tier(
    "prove", only=("[ar]*closed", "s*killed", "S*killed", "[rS]*-last-*", "[as]*-grown-*")
)
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("what", ["nothing", "first", "last", "all", "grown"])
@pytest.mark.parametrize(
    "queue", ["a/0", "small/0", "SCHEDULE_TOPIC_XXXX/3", "rmq_sys_wheel_timer/0"]
)
def test_nothing_is_lost(
    queue: str, what: str, end: str, stores: tuple[dict[str, Path], int], tmp_path: Path
) -> None:
    path = copy_tree(stores[0][end], tmp_path / "s")
    files = sorted((path / "consumequeue" / queue).iterdir())
    used = [file for file in files if any(file.read_bytes())]
    gone = {"first": used[:1], "last": files[files.index(used[-1]) :], "all": files}
    for file in gone.get(what, []):
        file.unlink()
    if what == "grown":
        with used[0].open("ab") as grown:
            grown.write(b"\0" * 20)
    clock = ManualClock(stores[1])
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    assert store.core.findings.rebuilt == ([] if what == "nothing" else ["consume queues"])
    store.put(b"new", topic="a", delay=SECOND)
    store.put(b"new", topic="a", delay_level=1)
    store.put(b"new", topic="small")
    clock.advance(100 * SECOND)
    for topic, count in COUNTS.items():
        assert len(store.pull(topic, timeout=0)) == count
    store.close()
    report = timerstore.verify(path)
    assert report.ok, str(report)


@pytest.mark.parametrize("queue", ["a/0", "small/0", "new/0", "rmq_sys_wheel_timer/0"])
def test_a_file_that_was_about_to_be_made_is_no_damage(
    queue: str, stores: tuple[dict[str, Path], int], tmp_path: Path
) -> None:
    """A kill falls between making a queue's next file and giving it its length."""
    path = copy_tree(stores[0]["killed"], tmp_path / "s")
    folder = path / "consumequeue" / queue
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(folder.iterdir())
    for file in files:
        if not any(file.read_bytes()):
            file.unlink()
    count = len(list(folder.iterdir()))
    (folder / f"{count * CONFIG.consumequeue_segment_bytes:020d}").touch()
    with TimerStore(path, config=CONFIG, clock=ManualClock(stores[1]), disk=QuietDisk()) as store:
        assert store.core.findings.rebuilt == [] and store.health().ok and not store.stats().damage
        store.put_many(
            [b"more"] * 40,
            topic="a" if queue.startswith("rmq") else queue.partition("/")[0],
            delay_ms=0,
        )
    report = timerstore.verify(path)
    assert report.ok, str(report)


@pytest.mark.parametrize("which", ["a/0", "small/0", "rmq_sys_wheel_timer/0"])
def test_an_entry_ahead_of_the_log_is_no_damage(
    which: str, stores: tuple[dict[str, Path], int], tmp_path: Path
) -> None:
    """A power cut may keep a queue's last page and not the log's: nothing that counts is lost."""
    path = copy_tree(stores[0]["killed"], tmp_path / "s")
    checkpoint = read_checkpoint(path / "config" / "timercheck")
    assert checkpoint is not None
    files = sorted((path / "consumequeue" / which).iterdir())
    for file in files:  # behind the last entry
        data = file.read_bytes()
        end = -(-len(data.rstrip(b"\0")) // 20) * 20
        if end < len(data):
            entry = struct.pack(">qiq", checkpoint.commitlog_flushed + 300, 217, 5)
            file.write_bytes(data[:end] + entry + data[end + 20 :])
            break
    with TimerStore(path, config=CONFIG, clock=ManualClock(stores[1]), disk=QuietDisk()) as store:
        assert store.core.findings.rebuilt == [] and store.health().ok and not store.stats().damage
    report = timerstore.verify(path)
    assert report.ok, str(report)


def test_a_damaged_last_entry_is_missed(
    stores: tuple[dict[str, Path], int], tmp_path: Path
) -> None:
    """It looks like one that is ahead of the log, but its message is there."""
    path = copy_tree(stores[0]["killed"], tmp_path / "s")
    file = path / "consumequeue" / "small" / "0" / f"{0:020d}"
    end = -(-len(file.read_bytes().rstrip(b"\0")) // 20) * 20
    flip_bit(file, end - 20 + 2)  # its offset: far ahead
    with TimerStore(path, config=CONFIG, clock=ManualClock(stores[1]), disk=QuietDisk()) as store:
        assert store.core.findings.rebuilt == ["consume queues"] and not store.health().ok
        assert len(store.pull("small", timeout=0)) == 1


def test_a_topic_of_which_nothing_fired_costs_no_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else opening would read the whole log, for each topic whose timers are all far ahead."""
    clock, scans = ManualClock(START_MS), []

    def scan(*where: object) -> list[object]:
        scans.append(where)
        return []

    store = TimerStore(tmp_path / "s", config=CONFIG, clock=clock, disk=QuietDisk())
    store.put_many([b"later"] * 3, topic="b", delay_ms=60_000)
    store.close()
    monkeypatch.setattr(recover_log, "sound_messages", scan)
    store = TimerStore(tmp_path / "s", config=CONFIG, clock=clock, disk=QuietDisk())
    assert scans == []
    store.core.flusher.flush()
    store.abandon()
    TimerStore(tmp_path / "s", config=CONFIG, clock=clock, disk=QuietDisk()).abandon()
    assert len(scans) == 1  # counters may be behind after a kill
