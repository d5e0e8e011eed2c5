"""The decision table of docs/recovery.md, one row a case."""

import json
import os
import random
import re
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests import naive
from tests.markdown import ROOT
from tests.models.ledger import read_ledger, read_messages
from tests.small_store import small
from timerstore import Config, CorruptStoreError, ManualClock, TimerStore, Tuning
from timerstore.testing.disk import QuietDisk
from timerstore.testing.ledger import TIMER_TOPIC, check_damaged, check_store
from timerstore.timelog.files.checkpoint import TimerCheckpoint, read_checkpoint
from timerstore.timelog.writing.compose import ACKS_TOPIC

START_MS = 1_800_000_000_000
SLOT_MS = 1_000
CONFIG = small(
    8_192,
    200,
    520,
    precision_ms=SLOT_MS,
    roll_window_slots=6,
    near_count_max=1 << 16,
    retention_ms=3_600_000,
)


@dataclass
class Case:
    """A way to end, what is done to the files, and what opening says."""

    name: str
    end: str  # "close" or "kill"
    damage: Callable[[Path], object] = lambda path: None
    findings: dict[str, Any] = field(default_factory=dict)
    error: str | None = None  # the file that CorruptStoreError names
    now_slots: int = 0  # how long the stop was
    lost: bool = False  # a message cannot be read any more


# --- what is done to the files


def commitlog_bytes(path: Path, offset: int, data: bytes) -> None:
    """Write into the commit log."""
    number, position = divmod(offset, CONFIG.commitlog_segment_bytes)
    name = f"{number * CONFIG.commitlog_segment_bytes:020d}"
    with open(path / "commitlog" / name, "r+b") as file:
        file.seek(position)
        file.write(data)


def checkpoint_of(path: Path) -> TimerCheckpoint:
    checkpoint = read_checkpoint(path / "config" / "timercheck")
    assert checkpoint is not None
    return checkpoint


def tear_tail(path: Path) -> None:
    """Half a message behind the log's end, as a process leaves that was killed in the middle."""
    last = read_messages(path)[-1]
    data = naive.encode_message(last)
    end = last.offset + len(data)
    half = data[: len(data) // 2]
    room = CONFIG.commitlog_segment_bytes - end % CONFIG.commitlog_segment_bytes
    commitlog_bytes(path, end, half[: room - 8])


def tear_acknowledgement(path: Path) -> None:
    """A record that two puts shall follow, and one of them."""
    last = read_messages(path)[-1]
    end, known = last.offset + last.size_bytes, [m for m in read_messages(path) if m.topic == "a"]
    record = naive.Message(ACKS_TOPIC.decode(), b'["g", "a", 0, 1, 2]', offset=end)
    record.stored_ms = record.born_ms = last.stored_ms
    put = naive.Message("a", b"torn", queue_offset=len(known), offset=end + record.size_bytes)
    put.stored_ms = put.born_ms = last.stored_ms
    data = naive.encode_message(record) + naive.encode_message(put)
    assert end % CONFIG.commitlog_segment_bytes + len(data) < CONFIG.commitlog_segment_bytes
    commitlog_bytes(path, end, data)


def tear_reschedule(path: Path) -> None:
    """Zero the delete at the log's end: its replacement stands before it."""
    *_, replacement, delete = read_messages(path)
    assert "TIMER_REPLACES" in replacement.properties
    assert "TIMER_DEL_UNIQKEY" in delete.properties
    commitlog_bytes(path, delete.offset, bytes(delete.size_bytes))


def tear_checkpoint(path: Path) -> None:
    with open(path / "config" / "timercheck", "r+b") as file:
        file.seek(70)
        file.write(b"torn")


def tear_both_checkpoints(path: Path) -> None:
    tear_checkpoint(path)
    with open(path / "config" / "timercheck", "r+b") as file:
        file.seek(2048 + 70)
        file.write(b"torn")


def damage_flushed(path: Path) -> None:
    """Change a byte of a message between the copies cursor and what was flushed."""
    checkpoint = checkpoint_of(path)
    offsets = [message.offset for message in read_messages(path)]
    mine = [each for each in offsets if checkpoint.scan_from <= each < checkpoint.commitlog_flushed]
    commitlog_bytes(path, mine[-1] + 60, b"\xff\xff")


def damage_unit(path: Path) -> None:
    """Change a byte of the last unit that was flushed."""
    at = checkpoint_of(path).timerlog_flushed - naive.UNIT_BYTES
    number, position = divmod(at, CONFIG.timerlog_segment_bytes)
    name = f"{number * CONFIG.timerlog_segment_bytes:020d}"
    with open(path / "timerlog" / name, "r+b") as file:
        file.seek(position + 30)
        file.write(b"\xff")


def remove(*names: str) -> Callable[[Path], None]:
    def removing(path: Path) -> None:
        for name in names:
            each = path / name
            shutil.rmtree(each) if each.is_dir() else each.unlink()

    return removing


def files_of(path: Path, folder: str) -> list[Path]:
    return sorted((path / folder).iterdir())


def cut(folder: str, which: int, to_bytes: int = 0) -> Callable[[Path], None]:
    """Cut a segment's file, as a copy that failed leaves it."""

    def cutting(path: Path) -> None:
        os.truncate(files_of(path, folder)[which], to_bytes)

    return cutting


def zero_last(folder: str, count: int, behind: int = 0) -> Callable[[Path], None]:
    """Zero `count` entries of a queue, the last but `behind`."""

    def zeroing(path: Path) -> None:
        files = [file for file in files_of(path, folder) if any(file.read_bytes())]
        data = bytearray(files[-1].read_bytes())
        end = -(-len(bytes(data).rstrip(b"\0")) // 20) - behind
        first = max(0, end - count)
        data[first * 20 : end * 20] = bytes((end - first) * 20)
        files[-1].write_bytes(data)

    return zeroing


def zero_and_lose(path: Path) -> None:
    """Zero entries inside the timer topic's queue, and lose the timer log."""
    zero_last(TIMER_QUEUE, 2, 1)(path)
    shutil.rmtree(path / "timerlog")


def write(name: str, text: str) -> Callable[[Path], None]:
    def writing(path: Path) -> None:
        (path / name).write_text(text)

    return writing


def change_sizes(path: Path) -> None:
    """A file that is sound JSON, and wrong."""
    described = json.loads((path / "timerstore.json").read_text())
    described["precision_ms"] = 500
    (path / "timerstore.json").write_text(json.dumps(described))


def cut_flushed(path: Path) -> None:
    """Cut the last file of the commit log that was flushed, shortly before that point."""
    number, position = divmod(checkpoint_of(path).commitlog_flushed, CONFIG.commitlog_segment_bytes)
    os.truncate(files_of(path, "commitlog")[number], position // 2)


def lose(folder: str, which: int) -> Callable[[Path], None]:
    """Lose a segment's file."""

    def losing(path: Path) -> None:
        files_of(path, folder)[which].unlink()

    return losing


TIMER_QUEUE = f"consumequeue/{TIMER_TOPIC}/0"


class StopBefore(QuietDisk):
    """Stops, as a kill would, before the given event at a path."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name

    def event(self, kind: str, path: Path) -> None:
        if (kind, path.name) == (self.kind, self.name):
            raise KilledError


class KilledError(Exception):
    """The process ends here."""


def kill_opening(kind: str, name: str) -> Callable[[Path], None]:
    """Open once more, and be killed on the way."""

    def opening(path: Path) -> None:
        with pytest.raises(KilledError):
            TimerStore(
                path,
                config=CONFIG,
                clock=ManualClock(now_ms(), force=True),
                disk=StopBefore(kind, name),
            )

    return opening


def kill_closing(kind: str, name: str) -> Callable[[Path], None]:
    """Open once more, and be killed when it is closed."""

    def closing(path: Path) -> None:
        store = TimerStore(
            path,
            config=CONFIG,
            clock=ManualClock(now_ms(), force=True),
            disk=StopBefore(kind, name),
        )
        store.core.engine.wheel.clear()
        with pytest.raises(KilledError):
            store.close()
        store.abandon()

    return closing


@pytest.mark.parametrize(
    ("kind", "name"), [("replace", "abort"), ("mkdir", "commitlog"), ("create", f"{0:020d}")]
)
def test_the_first_opening_ends_early(tmp_path: Path, kind: str, name: str) -> None:
    """The wheel is made before the first segment; what goes on with it writes checkpoints."""
    path, clock = tmp_path / "store", ManualClock(START_MS, force=True)
    with pytest.raises(KilledError):
        TimerStore(path, config=CONFIG, clock=clock, disk=StopBefore(kind, name))
    assert (path / "timerwheel").stat().st_size
    with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as store:
        store.put(b"x", at_ms=START_MS + 60_000)
        clock.advance(timedelta(milliseconds=1))
        store.flush()
    with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as store:
        assert store.core.findings.clean and store.count() == 1


# --- the table

CLEAN = {"clean": True, "rebuilt": []}
SIZES = {"by_broker": False, "rebuilt": [], "restored_sizes": True}
QUEUES = {"rebuilt": ["consume queues"]}
KILLED = {"clean": False, "rebuilt": [], "by_broker": False}
CASES = [
    Case("clean close", "close", findings=CLEAN),
    Case("kill", "kill", findings=KILLED),
    Case("kill, then a stop longer than the ring", "kill", findings=KILLED, now_slots=700),
    Case("kill, then a clock set back", "kill", findings=KILLED, now_slots=-40),
    Case("torn tail", "kill", tear_tail, KILLED),
    Case("torn acknowledgement", "kill", tear_acknowledgement, KILLED),
    Case("torn reschedule", "kill", tear_reschedule, KILLED | {"repaired_reschedule": True}),
    Case("no consume queues", "close", remove("consumequeue"), QUEUES),
    Case("no timer log", "close", remove("timerlog"), {"rebuilt": ["timer index"]}),
    Case("no timer wheel", "kill", remove("timerwheel"), KILLED),
    Case(
        "no checkpoint",
        "kill",
        remove("config/timercheck"),
        {"rebuilt": ["timer index", "checkpoint"]},
    ),
    Case(
        "commit log alone",
        "kill",
        remove("consumequeue", "timerlog", "timerwheel", "config", "abort"),
        {"rebuilt": ["timer index", "checkpoint", "consume queues"]},
    ),
    Case("no stored counts", "close", remove("config/timermetrics"), CLEAN),
    Case("torn checkpoint", "kill", tear_checkpoint, KILLED),
    Case("both copies torn", "kill", tear_both_checkpoints, {"by_broker": True, "rebuilt": []}),
    Case("killed before the wheel", "close", kill_closing("sync", "timerwheel"), KILLED),
    Case("killed before the checkpoint", "close", kill_opening("write", "timercheck"), KILLED),
    Case("no timerstore.json", "close", remove("timerstore.json"), SIZES),
    Case("empty timerstore.json", "kill", write("timerstore.json", ""), SIZES),
    Case("torn timerstore.json", "kill", write("timerstore.json", '{"version": 1,'), SIZES),
    Case("another version's", "close", write("timerstore.json", '{"version": 7}'), SIZES),
    Case("wrong sizes", "kill", change_sizes, SIZES),
    Case("cut commit log segment", "close", cut("commitlog", 0), error="commitlog"),
    Case("cut end of the commit log", "kill", cut_flushed, error="commitlog"),
    Case("lost commit log segment", "kill", lose("commitlog", 1), error="commitlog"),
    Case("cut timer log segment", "close", cut("timerlog", 1), {"rebuilt": ["timer index"]}),
    Case("lost timer log segment", "kill", lose("timerlog", 1), {"rebuilt": ["timer index"]}),
    Case("cut queue segment", "close", cut(TIMER_QUEUE, 1, 20), QUEUES),
    Case("lost queue segment", "kill", lose(TIMER_QUEUE, 1), QUEUES),
    Case("cut end of a queue", "kill", cut("consumequeue/a/0", -1), QUEUES),
    Case("zeros at a queue's end", "close", zero_last("consumequeue/a/0", 3), QUEUES),
    Case(
        "zeros inside the timer queue, no timer log",
        "close",
        zero_and_lose,
        {"rebuilt": ["timer index", "consume queues"]},
    ),
    Case("damage before the watermark", "kill", damage_flushed, KILLED, lost=True),
    Case("damaged unit", "kill", damage_unit, {"rebuilt": ["timer index"]}),
]


def now_ms() -> int:
    return START_MS + 25 * SLOT_MS + 250


def make_store(path: Path, end: str) -> None:
    """A store with fired, cancelled, moved, rolled, overdue and unlinked timers."""
    rnd = random.Random(7)
    clock = ManualClock(START_MS, force=True)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    ids = [
        store.put(b"%d" % i * 9, topic="ab"[i % 2], at_ms=START_MS + rnd.randrange(60_000))
        for i in range(40)
    ]
    store.put(b"far", topic="a", at_ms=START_MS + 10**9)
    store.put(b"just fired", topic="b", at_ms=START_MS + 20_480)
    store.cancel_many(ids[::7])
    clock.advance(timedelta(seconds=20, milliseconds=500))  # within a slot that was not passed
    store.pull("a", max_count=4, timeout=0).ack()
    waiting = [timer.id for timer in store.pending()]
    store.reschedule(waiting[5], at_ms=START_MS + 90_000)
    store.flush()
    clock.advance(timedelta(seconds=4, milliseconds=750))
    waiting = [timer.id for timer in store.pending()]
    store.cancel_many(waiting[-4:-1])
    ahead = [START_MS + 28_000, START_MS + 300_000]
    store.put_many([b"late"] * 12, topic="b", at_ms=[*ahead * 6])
    store.reschedule(waiting[1], at_ms=START_MS + 50_000)
    assert clock.now_ms == now_ms()
    store.close() if end == "close" else store.abandon()


def content_of(path: Path) -> dict[str, bytes]:
    """All files, but for what says who holds the store."""
    files = [file for file in path.rglob("*") if file.is_file() and file.name != "lock"]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_decision_table(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "store"
    make_store(path, case.end)
    before = read_ledger(path)
    case.damage(path)
    clock = ManualClock(now_ms() + case.now_slots * SLOT_MS, force=True)
    if case.error is not None:
        left = content_of(path)
        with pytest.raises(CorruptStoreError) as caught:
            TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
        assert caught.value.file == case.error
        assert f"{case.error} is damaged at offset {caught.value.offset}" in str(caught.value)
        if case.name.startswith(("cut", "lost")):
            assert content_of(path) == left
        return

    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    found = {name: getattr(store.core.findings, name) for name in case.findings}
    assert found == case.findings
    if case.lost:
        assert [place["file"] for place in store.stats().damage] == ["commitlog"]
        clock.advance(timedelta(seconds=400))
        check_damaged(store, before)
        store.close()
        return
    ledger = read_ledger(path)
    ledger.check()
    check_store(store, ledger)
    assert ledger.roots.keys() == before.roots.keys()
    for offset, root in before.roots.items():
        assert ledger.roots[offset].deleted == root.deleted, "a cancel was forgotten"
    store.abandon()  # and once more: what recovery made is as good as what it found

    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    clock.advance(timedelta(seconds=400))
    clock.advance(timedelta(milliseconds=1))
    ledger = read_ledger(path)
    ledger.check()
    check_store(store, ledger)
    assert [root.body for root in ledger.roots.values() if root.pending] == [b"far"]
    for root in ledger.roots.values():
        if root.fired_ms and root.due_ms > now_ms() + max(0, case.now_slots) * SLOT_MS:
            assert root.fired_ms == [root.due_ms]
    for topic in "ab":
        fired = [r.key for r in ledger.roots.values() if r.fired_ms and r.topic == topic]
        found_ids = [d.id for d in store.consume(topic, group="audit", timeout=0)]
        assert sorted(found_ids) == sorted(fired)
    store.close()


def test_the_table_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "recovery.md").read_text()
    rows = re.findall(r"^\| ([^|]+?) \|", text.partition("## Decision table")[2], re.M)
    names = [name for row in rows if row not in ("case", "---") for name in row.split("; ")]
    assert sorted(names) == sorted(case.name for case in CASES)


def test_offsets_behind_the_queue_are_cut_for_good(tmp_path: Path) -> None:
    """A power cut takes fired messages whose acknowledgement was already written."""
    path, clock = tmp_path / "store", ManualClock(START_MS, force=True)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    store.put_many([b"x"] * 6, topic="a", at_ms=START_MS + 1)
    store.flush()
    shutil.copytree(path, tmp_path / "cut")
    clock.advance(timedelta(seconds=1))
    store.pull("a", timeout=0).ack()
    store.flush()
    offsets = (path / "config" / "consumerOffset.json").read_bytes()
    store.abandon()
    path = tmp_path / "cut"
    (path / "config" / "consumerOffset.json").write_bytes(offsets)
    for _ in range(2):  # killed again before the first checkpoint
        store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
        clock.advance(timedelta(0))
        store.abandon()
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    assert len(store.pull("a", timeout=0)) == 6
    store.close()


class SyncWatch(QuietDisk):
    """Remembers which files were synced."""

    def __init__(self) -> None:
        self.synced: set[Path] = set()

    def event(self, kind: str, path: Path) -> None:
        if kind == "sync":
            self.synced.add(path)


def test_what_recovery_keeps_is_made_durable(tmp_path: Path) -> None:
    """After a kill the tail is in the page cache alone; the next checkpoint counts on it."""
    path, clock = tmp_path / "store", ManualClock(START_MS, force=True)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    store.flush()
    store.put_many([b"x" * 100] * 60, topic="a", at_ms=START_MS + 10**6)
    clock.advance(timedelta(seconds=1))
    store.abandon()
    disk = SyncWatch()
    store = TimerStore(path, config=CONFIG, clock=clock, disk=disk)
    for folder, end, length in (
        (path / "commitlog", store.core.engine.commitlog.end, CONFIG.commitlog_segment_bytes),
        (path / "timerlog", store.core.engine.timerlog.end, CONFIG.timerlog_segment_bytes),
        (path / "consumequeue" / TIMER_TOPIC / "0", 60 * 20, CONFIG.consumequeue_segment_bytes),
    ):
        used = {folder / f"{start:020d}" for start in range(0, end, length)}
        assert len(used) > 1 and used <= disk.synced
    store.close()


def test_a_log_may_end_with_a_full_segment(tmp_path: Path) -> None:
    """A power cut takes the next one, whose name was not durable, and leaves the blank before."""
    path, clock = tmp_path / "store", ManualClock(START_MS, force=True)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    store.flush()
    store.put_many([b"x" * 100] * 60, topic="a", at_ms=START_MS + 10**6)
    store.abandon()
    for file in sorted((path / "commitlog").iterdir())[1:]:
        file.unlink()
    count = sum(message.topic == TIMER_TOPIC for message in read_messages(path))
    with timerstore.open(path, read_only=True, clock=clock) as looking:
        assert looking.count() == count > 0
    with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as store:
        assert store.core.engine.commitlog.end >= CONFIG.commitlog_segment_bytes
        assert store.count() == count and store.core.findings.torn_bytes == 0


# --- stores that a broker wrote


def test_what_a_killed_broker_left_in_memory_is_made_durable(tmp_path: Path) -> None:
    """Its units behind its last flush are in the page cache alone; they are taken as they are."""
    path, clock = tmp_path / "store", ManualClock(START_MS, force=True)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    store.put_many([b"x" * 100] * 60, topic="a", at_ms=START_MS + 10**6)
    clock.advance(timedelta(seconds=1))
    end = store.core.engine.timerlog.end
    store.flush()
    store.abandon()
    file = path / "config" / "timercheck"
    checkpoint = read_checkpoint(file)
    assert checkpoint is not None
    checkpoint.timerlog_flushed = CONFIG.timerlog_segment_bytes
    file.write_bytes(checkpoint.base().tobytes().ljust(4_096, b"\0"))
    disk = SyncWatch()
    store = TimerStore(path, config=CONFIG, clock=clock, disk=disk)
    assert store.core.findings.by_broker and store.core.engine.timerlog.end >= end
    starts = range(CONFIG.timerlog_segment_bytes, end, CONFIG.timerlog_segment_bytes)
    used = {path / "timerlog" / f"{start:020d}" for start in starts}
    assert len(used) > 1 and used <= disk.synced
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision_ms", "days"),
    [("pending", 1000, 11), ("fired", 100, 1), ("crashed", 100, 1)],
)
def test_a_brokers_store_goes_on(
    name: str,
    precision_ms: int,
    days: int,
    golden: Callable[[str], Path],
    golden_list: Callable[[str], list[dict[str, Any]]],
) -> None:
    path, account = golden(name), golden_list(name)
    deleted = set()
    for row in account:
        if row["kind"] == "delete":
            named = row["properties"]["TIMER_DEL_UNIQKEY"]
            prefix = row["topic"] + "+"
            deleted.add((row["topic"], named.removeprefix(prefix)))
    timers = {(r["topic"], r["unique_key"]): r for r in account if r["kind"] in ("timer", "level")}
    levels_ms = Config().delay_levels_ms()
    stored_ms = {message.offset: message.stored_ms for message in read_messages(path)}
    before = fired_by_key(path)
    newest = max(message.stored_ms for message in read_messages(path))
    config = Config(
        tuning=Tuning(precision_ms=precision_ms, roll_window_slots=20 if days == 1 else 172_800)
    )
    clock = ManualClock(newest, force=True)
    store = TimerStore(path, config=config, clock=clock, disk=QuietDisk())
    assert store.core.findings.by_broker and not store.core.findings.rebuilt
    waiting = timers.keys() - before.keys() - deleted
    now_fired = fired_by_key(path)
    assert store.count() == len(waiting - now_fired.keys())
    clock.advance(timedelta(seconds=1))
    store.abandon()
    store = TimerStore(path, config=config, clock=clock, disk=QuietDisk())
    clock.advance(timedelta(days=days))
    after = fired_by_key(path)
    for who, timer in timers.items():
        if who in waiting:
            assert len(after[who]) == 1, timer
            assert after[who][0] >= timer["due_ms"]
            if timer["kind"] == "level":  # to the millisecond, unless it was overdue when opened
                due_ms = stored_ms[timer["commit_log_offset"]] + levels_ms[timer["level"] - 1]
                assert after[who] == [max(due_ms, newest)]
        else:
            assert after[who] == before[who]
    assert store.count() == 0
    assert store.stats().collision_count == 0
    store.close()


def fired_by_key(path: Path) -> dict[tuple[str, str], list[int]]:
    """Stored times of the messages of real topics, by topic and unique key."""
    fired: dict[tuple[str, str], list[int]] = defaultdict(list)
    for message in read_messages(path):
        if message.topic not in (TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX"):
            key = message.topic, message.properties.get("UNIQ_KEY", "")
            fired[key].append(message.stored_ms)
    return fired
