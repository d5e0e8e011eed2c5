"""What following a store costs, what its copy takes, how fast that is a store again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import harness
import machine
import numpy as np
import ours
from harness import sized
from results import Row

import timerstore
from timerstore.copies.follow_status import read_statuses

BATCH = 20_000
CALL = 2_000
"""So many timers one call puts at that rate, and each of these calls is timed."""
RATE = 200_000
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Sizes:
    """How much is copied."""

    rounds: int = sized(5, 1)
    """Of restoring."""
    turns: int = sized(25, 2)
    """With a follower, and without."""
    seconds: float = sized(2.0, 1.0)
    """Of a turn."""
    timers: int = sized(10_000_000, 100_000)
    """To restore."""


Ground = harness.Ground[Sizes]


def dest_of(ground: Ground, name: str) -> str:
    return f"file://{ground.folder}/objects-{name}"


def bodies(count: int, *, random: bool) -> np.ndarray:
    """Return bodies of 100 bytes: noise, or text as a program writes it."""
    if random:
        return np.random.default_rng(7).integers(0, 256, (count, ours.BODY_BYTES), np.uint8)
    text = '{{"user": {}, "order": "{:010d}", "what": "reminder", "mail": true}}'
    texts = [text.format(i * 7_919 % 1_000_000, i).encode() for i in range(count)]
    texts = [each.ljust(ours.BODY_BYTES)[: ours.BODY_BYTES] for each in texts]
    return np.frombuffer(b"".join(texts), np.uint8).reshape(count, ours.BODY_BYTES)


def put_for(store: timerstore.TimerStore, seconds: float, block: np.ndarray) -> float:
    """Put RATE a second; return the median time of a call in ms."""
    took, began_s = list[float](), time.perf_counter()
    delays = np.full(len(block), 6 * HOUR_MS)
    while (now_s := time.perf_counter()) - began_s < seconds:
        store.put_many(block, topic="copies", delay_ms=delays)
        took.append(1_000 * (time.perf_counter() - now_s))
        time.sleep(max(0.0, began_s + len(took) * len(block) / RATE - time.perf_counter()))
    return float(np.median(took))


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


def following_of(ground: Ground, kind: str) -> Iterator[Row]:
    """Put beside a follower and beside one that stands still, in turns; say what that cost.

    The follower's turns have more work than they would: it ships what was put in the others, too.
    """
    block, found = bodies(CALL, random=kind == "noise"), list[tuple[float, ...]]()
    with (
        ground.path() as path,
        ours.open_store(path / "s", "process") as store,
        following(path / "s", dest_of(ground, kind)) as child,
    ):
        while not read_statuses(path / "s"):
            put_for(store, 1, block)
        wait_for_copy(store)
        start, before = store.stats().commitlog_end, read_statuses(path / "s")[0]
        used_s, began_s = machine.cpu_s(child.pid), time.perf_counter()
        for turn in range(ground.sizes.turns):
            took_ms = dict[bool, float]()
            for runs in (True, False) if turn % 2 else (False, True):
                child.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
                took_ms[runs] = put_for(store, ground.sizes.seconds, block)
            found.append((took_ms[True], took_ms[False]))
        child.send_signal(signal.SIGCONT)
        passed_s, appended = time.perf_counter() - began_s, store.stats().commitlog_end - start
        wait_for_copy(store)
        used_s, after = machine.cpu_s(child.pid) - used_s, read_statuses(path / "s")[0]
    beside, alone = np.array(found).T
    slower = 100 * (beside / alone - 1)
    low, high = np.percentile(slower, (25, 75))
    sent = (after.sent_bytes - before.sent_bytes) / appended
    calls = (after.request_count - before.request_count) / passed_s
    cores, more = used_s / passed_s, float(np.median(slower))
    told = f"{np.median(beside):.2f} ms beside it, {np.median(alone):.2f} alone: {more:+.1f} % "
    told += f"(half of the turns: {low:+.0f} to {high:+.0f})"
    yield Row(f"a `put_many` of {CALL:,}, {kind}", "< + 5 %", told, more < 5)
    yield Row(f"the follower, {kind}", "≤ 0.5 of a core", f"{cores:.2f}", cores <= 0.5)
    told = f"{sent:.3f} of {appended / passed_s / 1e6:.0f} MB/s, {calls:.1f} calls a second"
    yield Row(f"sent, {kind}", "≤ 0.5 of what was appended", told, sent <= 0.5)


def following_rows(ground: Ground) -> Iterator[Row]:
    """Follow a store of text, then one of noise."""
    for kind in ("text", "noise"):
        yield from following_of(ground, kind)


def wait_for_copy(store: timerstore.TimerStore) -> None:
    """Wait until all that was put is in the copy."""
    while store.stats().copies[0].lag_bytes:
        time.sleep(0.1)


def restore(ground: Ground) -> Iterator[Row]:
    """Back up many pending timers; copy their log, restore them, in turns."""
    count, dest = ground.sizes.timers, dest_of(ground, "many")
    block, found = bodies(BATCH, random=False), None
    with ground.path() as folder:
        path = folder / "many"
        with ours.open_store(path, "process") as store:
            for _ in range(count // BATCH):
                delays = np.random.default_rng(1).integers(HOUR_MS, 24 * HOUR_MS, BATCH)
                store.put_many(block, topic="copies", delay_ms=delays)
            store.backup(dest)
        ways: dict[str, Callable[[Path], object]] = {
            "its log is copied": lambda target: copy_durably(path / "commitlog", target),
            "it is a store again": lambda target: timerstore.restore(dest, target),
        }
        taken_s: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ground.sizes.rounds):
            for name, way in ways.items():
                os.sync()
                began_s = time.perf_counter()
                found = way(folder / "laid")
                taken_s[name].append(time.perf_counter() - began_s)
                shutil.rmtree(folder / "laid")
    assert isinstance(found, timerstore.RestoreReport) and found.pending_count >= count
    copied_s = np.array(taken_s["its log is copied"])
    for name, each in taken_s.items():
        ratio = float(np.median(np.array(each) / copied_s))
        reach, reached = ("≤ 1.5 × copying", ratio <= 1.5) if "store" in name else ("", None)
        yield Row(name, reach, f"{ratio:.2f} ×: {np.median(each):.1f} s", reached, each)


def copy_durably(path: Path, target: Path) -> None:
    """Copy a folder of files, as one would without us."""
    shutil.copytree(path, target)
    for each in target.iterdir():
        fd = os.open(each, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


PARTS = {"following": following_rows, "restore": restore}

if __name__ == "__main__":
    harness.main("--copies", __doc__, Sizes, PARTS)
