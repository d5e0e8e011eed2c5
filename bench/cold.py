"""How late timers are in a store that is larger than the memory that it may use.

A store is filled with timers due at random times, so that each second's timers lie anywhere in its
logs. Its pages are dropped, and it is opened in a cgroup whose memory is limited (root, cgroup
version 1 or 2). Then timers fall due, and beside them one is put each 50 ms that is due 100 ms
later: `probe`. How late each came at `pull` is told for each five seconds.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import machine
import numpy as np
from lateness import quantiles

import timerstore

CONFIG = timerstore.Config(durability="process")
TOPICS = ("cold", "probe")
ROUND_S = 5.0
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


def fill(path: Path, count: int, per_second: int, lead_s: float) -> None:
    """Put `count` timers, so many of which fall due in each second, in no order."""
    rng, step = np.random.default_rng(1), 1 << 16
    body = rng.integers(0, 255, (step, 100), np.uint8)
    span_ms, start_ms = count * 1_000 // per_second, int((time.time() + lead_s) * 1_000)
    with timerstore.open(path, config=CONFIG) as store:
        for first in range(0, count, step):
            some = min(step, count - first)
            at_ms = start_ms + rng.integers(0, span_ms, some)
            store.put_many(body[:some], topic=TOPICS[0], at_ms=at_ms)


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


def watch(path: Path, rounds: int) -> None:
    """Open the store, and print how late its timers are."""
    late: dict[str, list[np.ndarray]] = {topic: [] for topic in TOPICS}
    stop = threading.Event()
    began_s = time.time()
    with timerstore.open(path) as store:
        print(f"opened in {time.time() - began_s:.2f} s")

        def put() -> None:
            while not stop.wait(0.05):
                store.put(b"x", topic=TOPICS[1], delay_ms=100)

        def pull(topic: str) -> None:
            while not stop.is_set():
                batch = store.pull(topic, group="g", max_count=65_536, timeout=0.5)
                late[topic].append(time.time() * 1_000 - np.asarray(batch.due_ms))
                batch.ack()

        threads = [threading.Thread(target=put)]
        threads += [threading.Thread(target=pull, args=(topic,)) for topic in TOPICS]
        for thread in threads:
            thread.start()
        before = read_bytes()
        for number in range(rounds):
            time.sleep(ROUND_S)
            after = read_bytes()
            row = f"{(number + 1) * ROUND_S:4.0f} s  {(after - before) / ROUND_S / 1e6:5.0f} MB/s"
            before = after
            for topic in TOPICS:
                parts, late[topic] = [each for each in late[topic] if len(each)], []
                tell = "none came"
                if parts:
                    of = quantiles(parts)
                    tell = f"{of.count / ROUND_S:,.0f}/s p50 {of.median:.0f} p99 {of.p99:.0f}"
                    tell += f" most {of.maximum:.0f} ms"
                row += f"  {topic}: {tell}"
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
    parser.add_argument("--path", help="folder for the store, on a disk")
    options = parser.parse_args()
    print(machine.headline())
    limit_bytes = options.memory_mib << 20
    with machine.scratch_folder(options.path) as folder, limited_memory(limit_bytes):
        fill(folder / "s", options.count, options.rate, lead_s=options.count / 500_000)
        drop_pages(folder / "s")
        watch(folder / "s", options.rounds)


if __name__ == "__main__":
    main()
