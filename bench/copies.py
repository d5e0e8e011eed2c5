"""What following a store costs, what its copy takes, how fast that is a store again."""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import machine
import numpy as np

import timerstore
from timerstore.backups.followed import read_statuses

BODY_BYTES = 100
BATCH = 20_000
CALL = 2_000
"""So many timers one call puts at that rate, and each of these calls is timed."""
RATE = 200_000
HOUR_MS = 3_600_000


def bodies(count: int, *, random: bool) -> np.ndarray:
    """Return bodies of 100 bytes: noise, or text as a program writes it."""
    if random:
        return np.random.default_rng(7).integers(0, 256, (count, BODY_BYTES), np.uint8)
    text = '{{"user": {}, "order": "{:010d}", "what": "reminder", "mail": true}}'
    texts = [text.format(i * 7_919 % 1_000_000, i).encode() for i in range(count)]
    texts = [each.ljust(BODY_BYTES)[:BODY_BYTES] for each in texts]
    return np.frombuffer(b"".join(texts), np.uint8).reshape(count, BODY_BYTES)


def put_for(store: timerstore.TimerStore, seconds: float, block: np.ndarray) -> tuple[float, float]:
    """Put RATE a second; return the median time of a call in ms, and its processor time."""
    took, used, began_s = list[float](), list[float](), time.perf_counter()
    delays = np.full(len(block), 6 * HOUR_MS)
    while (now_s := time.perf_counter()) - began_s < seconds:
        used_s = time.thread_time()
        store.put_many(block, topic="copies", delay_ms=delays)
        used.append(1_000 * (time.thread_time() - used_s))
        took.append(1_000 * (time.perf_counter() - now_s))
        time.sleep(max(0.0, began_s + len(took) * len(block) / RATE - time.perf_counter()))
    return float(np.median(took)), float(np.median(used))


@contextmanager
def following(path: Path, dest: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `timerstore follow` beside the block."""
    code = "from timerstore.cli import main; main()"
    command = [sys.executable, "-P", "-c", code, "follow", os.fspath(path), dest]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGCONT)
        child.send_signal(signal.SIGTERM)
        child.wait(120)


def measure_following(folder: Path, dest: str, seconds: float, turns: int, *, random: bool) -> None:
    """Put beside a follower and beside one that stands still, in turns; say what that cost.

    The follower's turns have more work than they would: it ships what was put in the others, too.
    """
    path, block = folder / "store", bodies(CALL, random=random)
    found = list[tuple[float, ...]]()
    with (
        timerstore.open(path, config=timerstore.Config(durability="process")) as store,
        following(path, dest) as child,
    ):
        while not read_statuses(path):
            put_for(store, 1, block)
        wait_for_copy(store)
        start, before = store.stats().commitlog_end, read_statuses(path)[0]
        used_s, began_s = machine.cpu_s(child.pid), time.perf_counter()
        for turn in range(turns):
            took_ms = dict[bool, tuple[float, float]]()
            for runs in (True, False) if turn % 2 else (False, True):
                child.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
                took_ms[runs] = put_for(store, seconds, block)
            found.append((*took_ms[True], *took_ms[False]))
        child.send_signal(signal.SIGCONT)
        passed_s, appended = time.perf_counter() - began_s, store.stats().commitlog_end - start
        wait_for_copy(store)
        caught_up_s = time.perf_counter() - began_s - passed_s
        used_s, after = machine.cpu_s(child.pid) - used_s, read_statuses(path)[0]
    beside, beside_cpu, alone, alone_cpu = np.array(found).T
    slower, slower_cpu = 100 * (beside / alone - 1), 100 * (beside_cpu / alone_cpu - 1)
    low, high = np.percentile(slower, (25, 75))
    sent = after.sent_bytes - before.sent_bytes
    calls = after.request_count - before.request_count
    print(f"{'noise' if random else 'text'}: {appended / passed_s / 1e6:.0f} MB/s appended")
    print(f"  follower      {used_s / passed_s:.2f} of a core")
    print(f"  sent          {sent / appended:.3f} of what was appended")
    print(f"  calls         {calls / passed_s:.1f} a second")
    print(f"  all is there  {caught_up_s:.1f} s after the last put")
    print(
        f"  {CALL:,} a call  {np.median(beside):.2f} ms beside it, {np.median(alone):.2f} alone: "
        f"{np.median(slower):+.1f} % (half of the turns: {low:+.0f} to {high:+.0f}); "
        f"processor time {np.median(slower_cpu):+.1f} %"
    )


def wait_for_copy(store: timerstore.TimerStore) -> None:
    """Wait until all that was put is in the copy."""
    while store.stats().copies[0].lag_bytes:
        time.sleep(0.1)


def measure_idle(folder: Path, dest: str, seconds: float) -> None:
    """Let a store idle; say how often its follower asked for something."""
    path = folder / "idle"
    with timerstore.open(path) as store, following(path, dest):
        store.put_many([b"x"] * 100, topic="t", delay_ms=[HOUR_MS] * 100)
        while not read_statuses(path):
            time.sleep(0.1)
        wait_for_copy(store)
        time.sleep(70)
        before = read_statuses(path)[0].request_count
        time.sleep(seconds)
        time.sleep(11)  # it says so every ten seconds
        (status,) = read_statuses(path)
        print(f"idle: {status.request_count - before} calls in {seconds:.0f} s")


def measure_restore(folder: Path, dest: str, count: int, rounds: int) -> None:
    """Back up many pending timers; copy their log, lay it down, restore them, in turns."""
    path, block = folder / "many", bodies(BATCH, random=False)
    with timerstore.open(path, config=timerstore.Config(durability="process")) as store:
        for _ in range(count // BATCH):
            delays = np.random.default_rng(1).integers(HOUR_MS, 24 * HOUR_MS, BATCH)
            store.put_many(block, topic="copies", delay_ms=delays)
        began_s = time.perf_counter()
        report = store.backup(dest)
        print(
            f"backup of {report.point.bytes_count / 1e9:.2f} GB: "
            f"{time.perf_counter() - began_s:.1f} s"
        )
    found = None
    ways: dict[str, Callable[[Path], object]] = {
        "copied": lambda target: copy_durably(path / "commitlog", target),
        "laid": lambda target: lay_down(dest, target),
        "restored": lambda target: timerstore.restore(dest, target),
    }
    took_s: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            os.sync()
            began_s = time.perf_counter()
            found = way(folder / name)
            took_s[name].append(time.perf_counter() - began_s)
            shutil.rmtree(folder / name)
    assert isinstance(found, timerstore.RestoreReport) and found.pending_count >= count
    copied_s = np.array(took_s["copied"])
    for name, said in (
        ("copied", "its log is copied"),
        ("laid", "its log is laid down, each byte checked"),
        ("restored", "it is a store again, with indexes"),
    ):
        ratio = np.median(np.array(took_s[name]) / copied_s)
        print(f"{np.median(took_s[name]):6.1f} s, {ratio:.2f} of a copy: {said}")


def copy_durably(path: Path, target: Path) -> None:
    """Copy a folder of files, as one would without us."""
    shutil.copytree(path, target)
    for each in target.iterdir():
        fd = os.open(each, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def lay_down(dest: str, target: Path) -> None:
    """Lay down the log of a destination's last point."""
    from timerstore.backups.catalog import read_catalog
    from timerstore.backups.destination import find_destination
    from timerstore.backups.fetching import lay_log
    from timerstore.backups.progress import Summed
    from timerstore.timelog.files.disk import Disk

    catalog = read_catalog(find_destination(dest))
    point = catalog.points[-1]
    span = catalog.run_of(point), point.log_start, point.log_end
    lay_log(catalog, *span, target, disk=Disk(), told=Summed(None, 1))


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="./run bench --copies", description=__doc__)
    parser.add_argument("--dest", help="an address; else a folder beside the stores")
    parser.add_argument("--seconds", type=float, default=2, help="of a turn")
    parser.add_argument("--turns", type=int, default=25, help="with a follower, and without")
    parser.add_argument("--timers", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["following", "idle", "restore"])
    given = parser.parse_args()
    with machine.scratch_folder(None) as folder:
        dest = given.dest or f"file://{folder}/objects"
        if given.only in (None, "following"):
            for random in (False, True):
                where = folder / ("noise" if random else "text")
                where.mkdir()
                measure_following(
                    where, f"{dest}-{where.name}", given.seconds, given.turns, random=random
                )
                shutil.rmtree(where)
        if given.only in (None, "idle"):
            measure_idle(folder, f"{dest}-idle", 60.0)
        if given.only in (None, "restore"):
            measure_restore(folder, f"{dest}-many", given.timers, given.rounds)
    most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"most memory of this process: {most_bytes / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
