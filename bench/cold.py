"""How late timers are in a store that is larger than the memory that it may use.

A store is filled with timers due at random times, so that each second's timers lie anywhere in its
logs. Its pages are dropped, and it is opened in a cgroup whose memory is limited (root, cgroup
version 1 or 2). Then timers fall due, and beside them one is put each 50 ms that is due 100 ms
later: `probe`. How late each came is told for each five seconds; of us, at `pull`. Of a peer, the
same is played by one thread that takes what is due, and puts. Before them stands how many pages the
disk brings at random: a store that is behind cannot fire faster than its pages come.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine
import numpy as np
from lateness import quantiles
from peers import embedded
from peers.timers import Timers, now_ms

import timerstore

PEERS: dict[str, Any] = {"lmdb": embedded.Lmdb, "rocksdb": embedded.RocksDb}
CONFIG = timerstore.Config(durability="process")
TOPICS = ("cold", "probe")
ROUND_S = 5.0
PROBE_S, PROBE_MS = 0.05, 100
DEPTH, READ_S = 16, 2.0
PEER_PUTS = 40_000
"""So many are put into a peer in a second, about; else the first ones are late."""
CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def limited_memory(bytes_max: int) -> Iterator[None]:
    """Have this process in a cgroup of its own with so much memory, the page cache included."""
    version_1 = (CGROUP / "memory").is_dir()
    above = CGROUP / "memory" if version_1 else CGROUP
    group, me = above / f"timerstore-{os.getpid()}", str(os.getpid())
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(
            str(bytes_max)
        )
        (group / "cgroup.procs").write_text(me)
        yield
    finally:
        (above / "cgroup.procs").write_text(me)
        group.rmdir()


def due_times(count: int, per_second: int, lead_s: float) -> Iterator[np.ndarray]:
    """Yield when `count` timers are due, so many in each second, in no order."""
    rng, step = np.random.default_rng(1), 1 << 16
    span_ms, start_ms = count * 1_000 // per_second, int((time.time() + lead_s) * 1_000)
    for first in range(0, count, step):
        yield start_ms + rng.integers(0, span_ms, min(step, count - first))


def fill(path: Path, due_ms: Iterator[np.ndarray]) -> None:
    """Put timers into a new store."""
    body = np.random.default_rng(1).integers(0, 255, (1 << 16, 100), np.uint8)
    with timerstore.open(path, config=CONFIG) as store:
        for at_ms in due_ms:
            store.put_many(body[: len(at_ms)], topic=TOPICS[0], at_ms=at_ms)


def fill_peer(timers: Timers, due_ms: Iterator[np.ndarray]) -> None:
    """Put timers into a peer; their bodies say when they are due."""
    rest = os.urandom(100 - 8)
    for at_ms in due_ms:
        bodies = [each + rest for each in at_ms.astype(">i8").view("S8").tolist()]
        timers.put_many(at_ms.tolist(), bodies)


def drop_pages(path: Path) -> None:
    """Have nothing of a closed store in the page cache."""
    os.sync()
    for each in filter(Path.is_file, path.rglob("*")):
        fd = os.open(each, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_bytes() -> int:
    """Return what this process has had read from disks."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def random_reads(path: Path) -> float:
    """Return how many pages of the largest file a disk brings in a second, DEPTH at a time."""
    file = max(filter(Path.is_file, path.rglob("*")), key=lambda each: each.stat().st_size)
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    pages, stop_s, counts = file.stat().st_size // mmap.PAGESIZE, time.monotonic() + READ_S, []

    def read() -> None:
        page, rnd, count = mmap.mmap(-1, mmap.PAGESIZE), random.Random(), 0
        while time.monotonic() < stop_s:
            os.preadv(fd, [page], rnd.randrange(pages) * mmap.PAGESIZE)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=read) for _ in range(DEPTH)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(fd)
    return sum(counts) / READ_S


Late = dict[str, list[np.ndarray]]


def watch(path: Path, rounds: int) -> None:
    """Open the store, and print how late its timers are."""
    late: Late = {topic: [] for topic in TOPICS}
    stop = threading.Event()
    began_s = time.time()
    with timerstore.open(path) as store:
        print(f"opened in {time.time() - began_s:.2f} s")

        def put() -> None:
            while not stop.wait(PROBE_S):
                store.put(b"x", topic=TOPICS[1], delay_ms=PROBE_MS)

        def pull(topic: str) -> None:
            while not stop.is_set():
                batch = store.pull(topic, group="g", max_count=65_536, timeout=0.5)
                late[topic].append(time.time() * 1_000 - np.asarray(batch.due_ms))
                batch.ack()

        threads = [threading.Thread(target=put)]
        threads += [threading.Thread(target=pull, args=(topic,)) for topic in TOPICS]
        tell(late, rounds, threads, stop)


def watch_peer(timers: Timers, rounds: int) -> None:
    """Print how late the timers of a peer are."""
    late: Late = {topic: [] for topic in TOPICS}
    stop = threading.Event()

    def play() -> None:
        put_s = 0.0
        while not stop.is_set():
            if time.monotonic() - put_s > PROBE_S:
                put_s, due_ms = time.monotonic(), now_ms() + PROBE_MS
                timers.put_one(due_ms, due_ms.to_bytes(8, "big"))
            bodies = timers.take_due()
            for topic, is_cold in zip(TOPICS, (True, False), strict=True):
                due = b"".join(each[:8] for each in bodies if (len(each) > 8) is is_cold)
                late[topic].append(time.time() * 1_000 - np.frombuffer(due, ">i8"))
            if not bodies:
                time.sleep(0.001)

    tell(late, rounds, [threading.Thread(target=play)], stop)


def tell(late: Late, rounds: int, threads: list[threading.Thread], stop: threading.Event) -> None:
    """Run the threads; print of each round how late timers were."""
    for thread in threads:
        thread.start()
    before = read_bytes()
    for number in range(rounds):
        time.sleep(ROUND_S)
        after = read_bytes()
        read_pages = (after - before) / ROUND_S / mmap.PAGESIZE
        row = f"{(number + 1) * ROUND_S:4.0f} s  {read_pages:7,.0f} pages/s"
        before = after
        for topic in TOPICS:
            parts, late[topic] = [each for each in late[topic] if len(each)], []
            said = "none came"
            if parts:
                of = quantiles(parts)
                said = f"{of.count / ROUND_S:,.0f}/s p50 {of.median:.0f} p99 {of.p99:.0f}"
                said += f" most {of.maximum:.0f} ms"
            row += f"  {topic}: {said}"
        print(row, flush=True)
    stop.set()
    for thread in threads:
        thread.join()


def main() -> None:
    """Fill a store, limit the memory, watch."""
    parser = argparse.ArgumentParser(prog="./run bench --cold", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=8_000_000, help="pending timers")
    parser.add_argument("--rate", type=int, default=5_000, help="timers due in a second")
    parser.add_argument("--memory-mib", type=int, default=1_200, help="limit of the cgroup")
    parser.add_argument("--rounds", type=int, default=8, help="of five seconds each")
    parser.add_argument("--peer", choices=PEERS, help="instead of timerstore")
    parser.add_argument("--path", help="folder for the store, on a disk")
    options = parser.parse_args()
    print(machine.headline())
    limit_bytes, lead_s = options.memory_mib << 20, options.count / 500_000
    with machine.scratch_folder(options.path) as folder, limited_memory(limit_bytes):
        began_s = time.time()
        if options.peer is None:
            fill(folder / "s", due_times(options.count, options.rate, lead_s))
            drop_pages(folder)
            print(f"disk: {random_reads(folder):,.0f} random pages/s, {DEPTH} at a time")
            watch(folder / "s", options.rounds)
            return
        timers = PEERS[options.peer](folder, synced=False)
        lead_s = options.count / PEER_PUTS
        fill_peer(timers, due_times(options.count, options.rate, lead_s))
        print(f"filled in {time.time() - began_s:.0f} s; the first is due after {lead_s:.0f}")
        drop_pages(folder)
        print(f"disk: {random_reads(folder):,.0f} random pages/s, {DEPTH} at a time")
        time.sleep(max(0.0, began_s + lead_s - time.time()))
        watch_peer(timers, options.rounds)
        timers.close()


if __name__ == "__main__":
    main()
