"""Lets RocketMQ's own code open stores that were cleaned, whose files were used again.

    mvn dependency:build-classpath -Dmdep.outputFile=jars      beside a pom.xml with rocketmq-store
    python -m tests.rigs.rocketmq "$(cat jars)"

A store lives through a day of manual time: short timers are fired, consumed beside far ones, what
is pending hops and is cleaned out of the oldest segments again and again, files are used again. The
roll window is twenty minutes, so some timers have hopped often, some once, some never. Then it is
handed over, and `OpenStore.java`, with RocketMQ's message store and timer store, opens it and runs
while a third of what is pending falls due. It has to find the log's start and end where they are,
fire what is due once, and nothing of what fired before, was cancelled, or is far ahead. Another
store is killed in the midst of cleaning first, and handed over by who opens it next. A third is
killed instead: there RocketMQ has to find the log's end, behind which lie old bytes.

What RocketMQ has rolled, each in its own way, has to fire with us, who have the store back.

Needs a JDK; eight minutes, most of which it waits for timers to fall due.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np

from tests import naive
from timerstore import Config, ManualClock, TimerStore, Tuning, verify
from timerstore.validation import validate

TOPIC = "t"
RUN_S = 40
CONFIG = Config(
    durability="process",
    tuning=Tuning(
        roll_window_slots=1_200,
        commitlog_segment_bytes=1 << 18,
        consumequeue_segment_bytes=2_000,
        timerlog_segment_bytes=5_248,
        cleaning_factor=1,
        cleaning_slack_bytes=0,
    ),
)


def live(path: Path, start_ms: int) -> tuple[TimerStore, dict[str, int], set[str]]:
    """Return a store that was cleaned many times, what is pending, what was cancelled.

    Of 1,200 timers that are pending all the while a third is due within RUN_S of `start_ms`, a
    third within an hour, a third within a month; some are cancelled, some are moved. Some more are
    put in the end: half have not hopped, half once.
    """
    clock = ManualClock(start_ms - 86_400_000)
    store = TimerStore(path, config=CONFIG, clock=clock)
    store.core.upkeep.retention._wanted_ahead = lambda: 3  # type: ignore[method-assign]
    random = np.random.default_rng(1)
    due_ms = np.concatenate(
        [
            start_ms + random.integers(15_000, 1_000 * (RUN_S - 15), 400),
            start_ms + random.integers(120_000, 3_600_000, 400),
            start_ms + random.integers(3_600_000, 30 * 86_400_000, 400),
        ]
    )
    ids = [store.put(b"far %d" % i, topic=TOPIC, at_ms=int(each)) for i, each in enumerate(due_ms)]
    pending = dict(zip(ids, due_ms.tolist(), strict=True))
    cancelled: set[str] = set()
    for turn in range(40):
        delay_ms = random.integers(1, 60_000, 2_000)
        store.put_many([b"short"] * 2_000, topic=TOPIC, delay_ms=delay_ms)
        clock.advance(timedelta(milliseconds=(start_ms - 1_500_000 - clock.now_ms) // (40 - turn)))
        while len(batch := store.pull(TOPIC, max_count=4_096, timeout=0)):
            batch.ack()
        store.flush()
        if turn % 10 == 5:
            for id in ids[turn::40][:25]:
                assert store.cancel(id)
                cancelled.add(id)
                del pending[id]
            for id in ids[turn + 1 :: 40][:12]:
                moved_ms = pending.pop(id) + 500
                pending[store.reschedule(id, at_ms=moved_ms)] = moved_ms
                cancelled.add(id)
    for ahead_ms in (1_500_000, 600_000):
        clock.advance(timedelta(milliseconds=start_ms - ahead_ms - clock.now_ms))
        late_ms = start_ms + random.integers(15_000, 1_000 * (RUN_S - 15), 100)
        late = [store.put(b"late", topic=TOPIC, at_ms=int(each)) for each in late_ms]
        pending |= dict(zip(late, late_ms.tolist(), strict=True))
    clock.advance(timedelta(milliseconds=start_ms - 120_000 - clock.now_ms))
    cleaning, log = store.stats().cleaning, store.core.engine.commitlog
    print(f"{store.core.engine.world.dequeue_get.hop_count} hops")
    print(f"{cleaning.copied_count} copied, log from {log.start}, {log.reused_count} files again")
    assert cleaning.copied_count > 5_000 and log.reused_count > 20 and log.start > 10 << 20
    return store, pending, cancelled


def log_of(path: Path) -> naive.LogScan:
    """Read a log that need not begin at 0."""
    files = {int(each.name): each.read_bytes() for each in (path / "commitlog").glob("0*")}
    return naive.scan_commit_log(files, min(files))


def messages_reached(path: Path) -> list[int]:
    """Return where the messages of all units lie that a broker would reach, from its cursor on."""
    files = {int(each.name): each.read_bytes() for each in (path / "timerlog").glob("0*")}
    units = naive.scan_timer_log(files).units
    read_ms = naive.decode_timercheck((path / "config" / "timercheck").read_bytes()).read_ms
    return [
        units[at].message_offset
        for slot in naive.used_slots((path / "timerwheel").read_bytes()).values()
        if slot.number >= read_ms // CONFIG.precision_ms
        for at in naive.walk_chain(units, slot.last_offset)
    ]


SAID = ("loaded", "log", "timers", "queue", "closed")
"""How the lines of OpenStore.java begin; others are its libraries'."""


def open_with_rocketmq(
    jars: str, path: Path, run_s: int, kill_after_s: float = 0
) -> list[list[str]]:
    """Run OpenStore.java; return its lines as words. `kill_after_s`: since it began to fire."""
    source = Path(__file__).with_name("OpenStore.java")
    with tempfile.TemporaryDirectory() as home:
        # On a full disk it removes all but the log's last file, whatever is pending.
        ratios = ("diskSpaceWarningLevelRatio", "diskSpaceCleanForciblyRatio")
        command = ["java", f"-Duser.home={home}", *(f"-Drocketmq.broker.{r}=2" for r in ratios)]
        command += ["-cp", jars, str(source), str(path), str(run_s)]
        command += [str(CONFIG.precision_ms), str(CONFIG.roll_window_slots)]
        command += [str(CONFIG.commitlog_segment_bytes), str(CONFIG.consumequeue_segment_bytes)]
        command += [str(CONFIG.timerlog_segment_bytes), TOPIC]
        lines = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
            watchdog = threading.Timer(run_s + 120, broker.kill)
            watchdog.start()
            assert broker.stdout is not None
            for line in broker.stdout:
                if line.startswith(SAID):
                    print(line, end="", flush=True)
                    lines.append(line.split())
                if kill_after_s and line.startswith("timers"):
                    time.sleep(kill_after_s)
                    broker.kill()
            watchdog.cancel()
    assert broker.returncode == (-9 if kill_after_s else 0)
    return lines


def killed_while_cleaning(store: TimerStore) -> TimerStore:
    """Copy a part of what is pending, and end the process; return the store opened by another."""
    cleaner, clock = store.core.upkeep.cleaner, store.core.clock
    assert isinstance(clock, ManualClock)
    cleaner.stopped = True
    store.put_many([b"short"] * 8_000, topic=TOPIC, delay_ms=1_000)
    clock.advance(timedelta(seconds=2))
    while len(batch := store.pull(TOPIC, max_count=4_096, timeout=0)):
        batch.ack()
    store.flush()
    before, cleaner.stopped, cleaner.units_at_once = store.stats().cleaning.copied_count, False, 500
    while store.stats().cleaning.copied_count < before + 800 and cleaner.step():
        pass
    path = store.core.path
    copied = store.stats().cleaning.copied_count - before
    store.abandon()
    again = TimerStore(path, config=CONFIG, clock=clock)
    print(f"killed with {copied} copied, {again.core.findings.copies_count} copies are known")
    assert copied
    return again


def after_a_handover(jars: str, path: Path, *, by_another: bool) -> None:
    """Let a broker go on with a store that was cleaned.

    `by_another`: not the process that cleaned it hands it over.
    """
    start_ms = int(time.time() * 1_000) + 120_000
    store, pending, cancelled = live(path, start_ms)
    if by_another:
        store = killed_while_cleaning(store)
    clock = store.core.clock
    assert isinstance(clock, ManualClock) and store.count() == len(pending)
    # Cleaning waits for what it left in place: that moves the clock.
    store.handover()
    report = verify(path)
    assert report.ok and report.pending_count == len(pending), str(report)
    before = log_of(path)
    start, end = before.messages[0].offset, before.end
    for message in messages_reached(path):
        assert start <= message < end, f"a unit points to {message}"
    time.sleep(max(0, clock.now_ms - int(time.time() * 1_000)) / 1_000)
    run_s = RUN_S + max(0, start_ms - int(time.time() * 1_000)) // 1_000
    lines = open_with_rocketmq(jars, path, run_s)
    stopped_ms = time.time() * 1_000
    assert lines[0] == ["loaded", "true"]
    assert lines[1] == ["log", str(min(map(int, before_names(path, start)))), str(end)], lines[1]
    fired: Counter[str] = Counter()
    for message in log_of(path).messages:
        if message.offset >= end and message.topic == TOPIC:
            fired[message.properties["UNIQ_KEY"]] += 1
    due = {id for id, due_ms in pending.items() if due_ms < start_ms + 1_000 * RUN_S - 5_000}
    may_be = {id for id, due_ms in pending.items() if due_ms < stopped_ms}
    print(f"{len(pending)} pending, {len(due)} due, {len(fired)} fired by RocketMQ")
    assert set(fired.values()) == {1} and due <= set(fired) <= may_be
    assert not cancelled & set(fired)
    with TimerStore(path, config=CONFIG) as again:
        assert again.count() <= len(pending) - len(fired)
    report = verify(path)
    assert report.ok, str(report)


def after_a_killed_broker(jars: str, path: Path) -> None:
    """Go on with a store whose broker was killed while it fired."""
    start_ms = int(time.time() * 1_000) + 120_000
    store, pending, cancelled = live(path, start_ms)
    store = killed_while_cleaning(store)
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    failed = [store.put(b"fails %d" % i, topic=TOPIC, delay=timedelta(0)) for i in range(60)]
    clock.advance(timedelta(seconds=1))
    batch = store.pull(TOPIC, max_count=100, timeout=0)
    for i, delivery in enumerate(batch):
        delivery.nack(timedelta(milliseconds=start_ms - clock.now_ms + 200 * i + 15_000))
    assert len(batch) == len(failed)
    store.handover()
    end = log_of(path).end
    time.sleep(max(0, start_ms + 15_000 - int(time.time() * 1_000)) / 1_000)
    open_with_rocketmq(jars, path, RUN_S, kill_after_s=12)
    by_broker = fired_behind(path, end)
    print(f"{len(pending)} pending, {len(by_broker)} fired by RocketMQ, which was killed")
    assert by_broker and set(by_broker.values()) == {1}
    report = validate(path)
    assert report.ok, str(report)
    clock = ManualClock(int(time.time() * 1_000), force=True)
    with TimerStore(path, config=CONFIG, clock=clock) as again:
        clock.advance(timedelta(seconds=60))
        again.flush()
        fired = fired_behind(path, end)
        due = {id for id, due_ms in pending.items() if due_ms < start_ms + 1_000 * RUN_S - 5_000}
        twice = {id for id, count in fired.items() if count > 1}
        print(f"{len(fired)} fired in the end, {len(twice)} of them twice")
        assert not twice and due | set(failed) <= set(fired) and not cancelled & set(fired)
        clock.advance(timedelta(days=31))
        again.flush()
        fired = fired_behind(path, end)
        print(f"{len(fired)} fired within a month, of {len(pending) + len(failed)}")
        assert set(fired) == set(pending) | set(failed) and set(fired.values()) == {1}
    for report in verify(path), validate(path):
        assert report.ok, str(report)


def fired_behind(path: Path, end: int) -> Counter[str]:
    """Return how often each timer was fired behind an offset of the log."""
    topics = {TOPIC, f"%RETRY%{TOPIC}", "%RETRY%default"}
    return Counter(
        message.properties["UNIQ_KEY"]
        for message in log_of(path).messages
        if message.offset >= end and message.topic in topics
    )


def before_names(path: Path, offset: int) -> list[str]:
    """Return the name of the log's segment that an offset is in."""
    return [f"{offset // CONFIG.commitlog_segment_bytes * CONFIG.commitlog_segment_bytes}"]


def after_a_kill(jars: str, path: Path) -> None:
    """Let a broker look for the end of a log behind which old bytes lie."""
    store, _, _ = live(path, int(time.time() * 1_000) + 60_000)
    end = store.core.engine.commitlog.end
    store.abandon()
    segment = CONFIG.commitlog_segment_bytes
    behind = b"".join(
        each.read_bytes()
        for each in sorted((path / "commitlog").glob("0*"))
        if int(each.name) >= end // segment * segment
    )[end % segment :]
    assert any(behind), "nothing old lies behind the end"
    lines = open_with_rocketmq(jars, path, 0)
    assert lines[0] == ["loaded", "true"] and lines[1][2] == str(end), (lines, end)


def main() -> None:
    """Do all."""
    folder = Path(tempfile.mkdtemp(prefix="timerstore-rocketmq-"))
    try:
        after_a_kill(sys.argv[1], folder / "killed")
        after_a_handover(sys.argv[1], folder / "handed", by_another=False)
        after_a_handover(sys.argv[1], folder / "another", by_another=True)
        after_a_killed_broker(sys.argv[1], folder / "broker")
        print("RocketMQ opened all")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
