"""Kill a process that puts timers, then show that none was lost, fired twice or early.

    python examples/demo.py [--timers 400000] [--seconds 20] [PATH]

A child puts timers, cancels some, and fires those that are due. After each answer it writes into a
file what it was told; before it cancels, also what it is about to ask, since a cancel that the kill
cuts short may have worked or not. Such a write survives SIGKILL. Then the store is opened again,
all is consumed, and compared with that file. Exit status 1: a promise was broken.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

import timerstore

Int64s = np.ndarray[Any, np.dtype[np.int64]]
TOPIC = "demo"
BATCH_COUNT = 160
PUT_SHARE = 0.4  # of the seconds, over which the puts are spread
CANCEL_SHARE = 0.05
KILL_SHARE = 0.75  # of the timers: the kill comes when the child was told that these are safe
LEAD_MS = 500  # no timer is due sooner after its put, nor cancelled later before it is due
ALIVE_S_MAX = 300.0


def main(arguments: list[str]) -> int:
    """Run the demonstration in a folder, which is kept, or in a temporary one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", nargs="?", type=Path, help="a new folder, which is kept")
    parser.add_argument("--timers", type=int, default=400_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="how far ahead they are due")
    given = parser.parse_args(arguments)
    if given.path is not None and given.path.exists():
        parser.error(f"{given.path} exists already. Pass a folder that does not exist.")
    with tempfile.TemporaryDirectory(prefix="timerstore-demo-") as folder:
        path = given.path or Path(folder, "store")
        return demonstrate(path, Path(folder, "told"), given.timers, given.seconds)


def demonstrate(path: Path, told: Path, timer_count: int, seconds: float) -> int:
    """Put, kill, open again, consume, compare."""
    killed_ms = put_and_kill(path, told, timer_count, seconds)
    put, doubtful, cancelled = read_told(told)
    print(f"   It had been told that {len(put):,} timers are safe, {len(cancelled):,} cancelled.")
    print("3. Opening the store again.")
    with timerstore.open(path) as store:
        ready_ms = time.time_ns() // 1_000_000
        stats = store.stats()
        recovery = stats.recovery
        print(
            f"   Open after {stats.open_s:.2f} s: recovery read {recovery['scanned_count']:,} "
            f"messages behind the last checkpoint, cut {recovery['torn_bytes']:,} torn bytes, and "
            f"found {recovery['pending_count']:,} timers pending."
        )
        print("4. Consuming: first what fired before the kill, then the others as they fall due.")
        ids, due_ms, fired_ms = consume_all(store)
    print(f"   Consumed and acknowledged {len(ids):,} messages.")
    print("5. Comparing this with what the child was told, and checking each byte of the store.\n")
    problems = timerstore.verify(path).problems
    broken = judge(put, doubtful, cancelled, ids, due_ms, fired_ms)
    broken["no byte is damaged"] = len(problems)
    for promise, count in broken.items():
        print(f"{promise:<50}{f'BROKEN {count:,} times' if count else 'kept'}")
    untold = len(set(ids) - put.keys())
    print(f"({untold:,} more were safe and fired, though the child had not been told yet.)\n")
    before = fired_ms <= killed_ms
    overdue = ~before & (due_ms < ready_ms)
    for what, chosen in (
        ("late before the kill", before),
        ("late after reopening", ~before & ~overdue),
        ("late because the process was down", overdue),
    ):
        late_ms = (fired_ms - due_ms)[chosen]
        p50, p99, most = np.percentile(late_ms, [50, 99, 100]) if len(late_ms) else (0, 0, 0)
        print(
            f"{what:<36}{len(late_ms):>9,} timers: {p50:,.0f} ms (median), {p99:,.0f} ms (99 %), "
            f"{most:,.0f} ms at most"
        )
    is_broken = any(broken.values())
    print(f"\n{'A promise was BROKEN.' if is_broken else 'Every promise was kept.'}")
    return int(is_broken)


def judge(
    put: dict[str, int],
    doubtful: set[str],
    cancelled: set[str],
    ids: list[str],
    due_ms: Int64s,
    fired_ms: Int64s,
) -> dict[str, int]:
    """Return how often each promise was broken; `ids` fired, due and fired at these times."""
    fired = set(ids)
    times = zip(ids, due_ms.tolist(), strict=True)
    return {
        "acknowledged, not cancelled: fired": len(put.keys() - cancelled - doubtful - fired),
        "fired once into the log": len(ids) - len(fired),
        "never early": int((fired_ms < due_ms).sum()),
        "fired for the time asked for": sum(put.get(id, due) != due for id, due in times),
        "cancelled: not fired": len(cancelled & fired),
    }


def put_and_kill(path: Path, told: Path, timer_count: int, seconds: float) -> int:
    """Run the child and kill it; return when that was."""
    told.touch()
    spawned = multiprocessing.get_context("spawn")  # as any other program: nothing is inherited
    child = spawned.Process(target=put_until_killed, args=(path, told, timer_count, seconds))
    child.start()
    try:
        print(f"1. Process {child.pid} puts timers, cancels some, and fires those that are due.")
        wait_for_puts(child, told, int(timer_count * KILL_SHARE))
        killed_ms = time.time_ns() // 1_000_000
    finally:
        child.kill()
        child.join()
    print(f"2. Killed process {child.pid} with SIGKILL while it did that.")
    return killed_ms


def wait_for_puts(child: BaseProcess, told: Path, count: int) -> None:
    """Wait until the child was told that so many timers are safe."""
    until_s = time.monotonic() + ALIVE_S_MAX
    with told.open("rb") as file:
        while count > 0:
            time.sleep(0.05)
            if not child.is_alive() or time.monotonic() > until_s:
                sys.exit("The child ended, or put nothing. Read what it wrote above.")
            count -= file.read().count(b"put ")


def put_until_killed(path: Path, told: Path, timer_count: int, seconds: float) -> None:
    """Put timers that fall due within some seconds, and cancel some of them."""
    rng = np.random.default_rng()
    each, span_ms = max(1, timer_count // BATCH_COUNT), int(seconds * 1_000)
    with timerstore.open(path) as store, told.open("ab", buffering=0) as file:
        start_ms = time.time_ns() // 1_000_000
        for i in range(BATCH_COUNT):
            begin_s = (start_ms + i * span_ms * PUT_SHARE / BATCH_COUNT) / 1_000
            time.sleep(max(0.0, begin_s - time.time()))
            first_ms = time.time_ns() // 1_000_000 + LEAD_MS
            due_ms = rng.integers(first_ms, max(start_ms + span_ms, first_ms) + LEAD_MS, each)
            ids = list(store.put_many([b"timer of batch %d" % i] * each, topic=TOPIC, at_ms=due_ms))
            lines = [f"put {id} {due}" for id, due in zip(ids, due_ms.tolist(), strict=True)]
            write(file.fileno(), lines)
            chosen = (rng.random(each) < CANCEL_SHARE) & (due_ms > first_ms + LEAD_MS)
            some = [ids[place] for place in np.flatnonzero(chosen)]
            write(file.fileno(), [f"cancelling {id}" for id in some])
            answers = zip(some, store.cancel_many(some).tolist(), strict=True)
            write(file.fileno(), [f"{'cancelled' if yes else 'late'} {id}" for id, yes in answers])
        time.sleep(ALIVE_S_MAX)


def write(file: int, lines: list[str]) -> None:
    """Write lines, all at once."""
    content = "".join(f"{line}\n" for line in lines).encode()
    while content:
        content = content[os.write(file, content) :]


def read_told(told: Path) -> tuple[dict[str, int], set[str], set[str]]:
    """Return what was put, with its due times; of which nobody knows; what was cancelled.

    A line that the kill cut off is passed over.
    """
    put: dict[str, int] = {}
    of_kind: dict[str, set[str]] = {"cancelling": set(), "cancelled": set(), "late": set()}
    for line in told.read_text().rpartition("\n")[0].split("\n"):
        kind, id, *due = line.split()
        if due:
            put[id] = int(due[0])
        else:
            of_kind[kind].add(id)
    doubtful = of_kind["cancelling"] - of_kind["cancelled"] - of_kind["late"]
    return put, doubtful, of_kind["cancelled"]


def consume_all(store: timerstore.TimerStore) -> tuple[list[str], Int64s, Int64s]:
    """Pull and acknowledge until nothing is pending, and nothing is left to hand out."""
    ids: list[str] = []
    due_ms, fired_ms = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while True:
        pending_count = store.count(TOPIC)
        batch = store.pull(TOPIC, max_count=16_384, timeout=0.2)
        if len(batch):
            ids += batch.ids.to_pylist()
            due_ms.append(batch.due_ms)
            fired_ms.append(batch.fired_ms)
            batch.ack()
        elif pending_count == 0:
            return ids, np.concatenate(due_ms), np.concatenate(fired_ms)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
