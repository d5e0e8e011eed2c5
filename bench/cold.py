"""How late timers are in a store that is larger than the memory that it may use.

A store is filled with timers due at random times, so that each second's timers lie anywhere in its
logs. Its pages are dropped, and it is opened in a cgroup whose memory is limited (root, cgroup
version 1 or 2). Then timers fall due, and beside them one is put each 50 ms that is due 100 ms
later: `probe`. How late each came is told for each five seconds; of us, at `pull`. Of a peer, the
same is played by one thread that takes what is due, and puts. Before them stands how many pages the
disk brings at random: a store that is behind cannot fire faster than its pages come. Two parts have
all memory: `opened` tells how late the first second's timers are after each opening; `calls`, whose
timers are due within 60 days, what opening and each call take.
"""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import harness
import machine
import numpy as np
import ours
from harness import sized
from peers.embedded import Lmdb, RocksDb
from peers.timers import Timers, now_ms
from results import Row

import timerstore

TOPICS = ("cold", "probe")
ROUND_S = 5.0
PROBE_S, PROBE_MS = 0.05, 100
OPENED_S, CLOSED_S = 3.0, 6.0
"""So long timers fall due while the store is open, so long none does before it is opened again."""
DEPTH, READ_S = 16, 2.0
PEER_PUTS = 40_000
"""So many are put into a peer in a second, about; else the first ones are late."""
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Sizes:
    """How much is pending, and falls due."""

    rounds: int = sized(8, 2)
    """Of five seconds each."""
    count: int = sized(8_000_000, 200_000)
    rate: int = sized(5_000, 5_000)
    memory_mib: int = sized(1_200, 1_200)


Ground = harness.Ground[Sizes]


def due_times(count: int, per_second: int, lead_s: float) -> Iterator[np.ndarray]:
    """Yield when `count` timers are due, so many in each second, in no order."""
    rng, step = np.random.default_rng(1), 1 << 16
    span_ms, start_ms = count * 1_000 // per_second, int((time.time() + lead_s) * 1_000)
    for first in range(0, count, step):
        yield start_ms + rng.integers(0, span_ms, min(step, count - first))


def fill(path: Path, due_ms: Iterator[np.ndarray]) -> None:
    body = np.random.default_rng(1).integers(0, 255, (1 << 16, 100), np.uint8)
    with ours.open_store(path, "process") as store:
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


def random_reads(path: Path) -> Row:
    """Say how many pages of the largest file a disk brings in a second, DEPTH at a time."""
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
    told = f"{sum(counts) / READ_S:,.0f} random pages a second, {DEPTH} at a time"
    return Row("the disk", "", told)


Late = dict[str, list[np.ndarray]]


def watch(store: timerstore.TimerStore, rounds: int) -> Iterator[Row]:
    """Tell how late a store's timers are."""

    def put(_: Late) -> None:
        store.put(b"x", topic=TOPICS[1], delay_ms=PROBE_MS)
        time.sleep(PROBE_S)

    def pull(topic: str, late: Late) -> None:
        batch = store.pull(topic, group="g", max_count=65_536, timeout=0.5)
        late[topic].append(time.time() * 1_000 - np.asarray(batch.due_ms))
        batch.ack()

    yield from told("timerstore", rounds, [put, *(partial(pull, topic) for topic in TOPICS)])


def watch_peer(name: str, timers: Timers, rounds: int) -> Iterator[Row]:
    """Tell how late the timers of a peer are."""
    put_s = 0.0

    def play(late: Late) -> None:
        nonlocal put_s
        if time.monotonic() - put_s > PROBE_S:
            put_s, due_ms = time.monotonic(), now_ms() + PROBE_MS
            timers.put_one(due_ms, due_ms.to_bytes(8, "big"))
        bodies = timers.take_due()
        for topic, is_cold in zip(TOPICS, (True, False), strict=True):
            due = b"".join(each[:8] for each in bodies if (len(each) > 8) is is_cold)
            late[topic].append(time.time() * 1_000 - np.frombuffer(due, ">i8"))
        if not bodies:
            time.sleep(0.001)

    yield from told(name, rounds, [play])


def told(name: str, rounds: int, acts: list[Callable[[Late], None]]) -> Iterator[Row]:
    """Repeat each act in a thread of its own; tell of each round how late timers were."""
    late, stop = Late({topic: [] for topic in TOPICS}), threading.Event()

    def repeat(act: Callable[[Late], None]) -> None:
        while not stop.is_set():
            act(late)

    threads = [threading.Thread(target=repeat, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    try:
        for number in range(rounds):
            before = machine.read_bytes()
            time.sleep(ROUND_S)
            words = [
                f"{(machine.read_bytes() - before) / ROUND_S / mmap.PAGESIZE:,.0f} pages a second"
            ]
            for topic in TOPICS:
                parts, late[topic] = [each for each in late[topic] if len(each)], []
                words.append(f"{topic}: none came")
                if parts:
                    of = np.concatenate(parts)
                    median, p99, most = np.percentile(of, [50, 99, 100])
                    words[-1] = f"{topic}: {len(of) / ROUND_S:,.0f} a second, median {median:.1f}, "
                    words[-1] += f"p99 {p99:.1f}, most {most:.0f} ms late"
            yield Row(f"{name}, {(number + 1) * ROUND_S:.0f} s", "", "; ".join(words))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# --- parts


def ours_cold(ground: Ground) -> Iterator[Row]:
    """Fill a store, limit the memory, watch."""
    s = ground.sizes
    with ground.path() as path, machine.limited_memory(s.memory_mib << 20):
        fill(path / "s", due_times(s.count, s.rate, s.count / 500_000))
        drop_pages(path)
        yield random_reads(path)
        with timerstore.open(path / "s") as store:
            yield from watch(store, s.rounds)


def ours_opened(ground: Ground) -> Iterator[Row]:
    """Close the store, drop its pages, open it at the moment from which timers fall due; watch."""
    s, rng = ground.sizes, np.random.default_rng(1)
    turn_ms, open_ms = round((OPENED_S + CLOSED_S) * 1_000), round(OPENED_S * 1_000)
    turns, step = -(-s.count // round(s.rate * OPENED_S)), 1 << 16
    start_ms = round((time.time() + s.count / 200_000 + CLOSED_S) * 1_000)

    def due_ms(count: int) -> np.ndarray:
        return start_ms + turn_ms * rng.integers(0, turns, count) + rng.integers(0, open_ms, count)

    with ground.path() as path:
        steps = range(0, s.count, step)
        fill(path / "s", (due_ms(min(step, s.count - first)) for first in steps))
        for _ in range(s.rounds):
            drop_pages(path)
            wait_ms = start_ms - time.time() * 1_000
            time.sleep((wait_ms if wait_ms > 0 else wait_ms % turn_ms) / 1_000)
            begin_ms, late = time.time() * 1_000, list[np.ndarray]()
            with timerstore.open(path / "s") as store:
                opened_ms = time.time() * 1_000 - begin_ms
                while time.time() * 1_000 < begin_ms + open_ms:
                    batch = store.pull(TOPICS[0], group="g", max_count=65_536, timeout=0.1)
                    due = np.asarray(batch.due_ms)
                    is_first = (begin_ms <= due) & (due < begin_ms + 1_000)
                    late.append(time.time() * 1_000 - due[is_first])
                    batch.ack()
            median, p99, most = np.percentile(np.concatenate(late), [50, 99, 100])
            words = f"opened in {opened_ms:.0f} ms; due in the first second: "
            words += f"median {median:.0f}, p99 {p99:.0f}, most {most:.0f} ms late"
            yield Row("after opening", "", words)


def calls(ground: Ground) -> Iterator[Row]:
    """Fill a store with what is due within 60 days; tell what opening, and each call, takes."""
    s, rng, step = ground.sizes, np.random.default_rng(1), 1 << 16
    config = timerstore.Config(durability="process")
    with ground.path() as path:
        steps = [min(step, s.count - first) for first in range(0, s.count, step)]
        begin_s = time.perf_counter()
        fill(path / "s", (now_ms() + rng.integers(0, 60 * DAY_MS, each) for each in steps))
        words = f"{s.count / (time.perf_counter() - begin_s):,.0f} a second, closing included"
        yield Row("filled", "", f"{words}; {machine.disk_bytes(path) / 1e9:,.1f} GB")
        drop_pages(path)
        begin_s = time.perf_counter()
        with timerstore.open(path / "s", config=config) as store:
            yield Row("open", "", f"{(time.perf_counter() - begin_s) * 1_000:,.1f} ms")
            late_ms = [fresh(store) for _ in range(20)]
            told = f"median {np.median(late_ms):.1f}, most {max(late_ms):.1f} ms late"
            yield Row("20 × put(delay_ms=100), one after the other", "", told)
            yield Row("private memory", "", f"{machine.private_bytes() / 1e6:,.0f} MB")
            id, last = store.put(b"x", topic="other", key="k", delay_ms=DAY_MS), 61 * DAY_MS
            far_ms = now_ms() + 30 * DAY_MS
            acts: dict[str, Callable[[], object]] = {
                "count()": store.count,
                "pending(limit=10)": lambda: list(store.pending(limit=10)),
                "pending(limit=10), in a month": lambda: list(
                    store.pending(start_ms=far_ms, limit=10)
                ),
                "pending, a second of then": lambda: list(
                    store.pending(start_ms=far_ms, end_ms=far_ms + 1_000)
                ),
                "upcoming()": store.upcoming,
                "horizon(an hour)": lambda: store.horizon(3_600_000),
                "get_key": lambda: store.get_key("other", "k"),
                "get": lambda: store.get(id),
                "find": lambda: store.find(id),
                "put": lambda: store.put(b"x", topic="other", delay_ms=last),
                "stats()": store.stats,
                "health()": store.health,
            }
            for name, act in acts.items():
                yield Row(name, "", took_ms(act))
            begin_s = time.perf_counter()
        yield Row("close", "", f"{(time.perf_counter() - begin_s) * 1_000:,.1f} ms")


def fresh(store: timerstore.TimerStore) -> float:
    """Put a timer that is due soon; return by how many milliseconds it came late."""
    store.put(b"x", topic=TOPICS[1], delay_ms=PROBE_MS)
    batch = store.pull(TOPICS[1], group="g", timeout=60)
    late_ms = time.time() * 1_000 - batch.due_ms[0]
    batch.ack()
    return float(late_ms)


def took_ms(act: Callable[[], object]) -> str:
    """Tell what a call takes at first, from the disk, and once more if that was short."""
    taken_ms = list[float]()
    while not taken_ms or (len(taken_ms) < 2 and taken_ms[0] < 10_000):
        begin_s = time.perf_counter()
        act()
        taken_ms.append((time.perf_counter() - begin_s) * 1_000)
    return " ms, then ".join(f"{each:,.2f}" for each in taken_ms) + " ms"


def peer_cold(open_peer: Callable[[Path, bool], Timers], ground: Ground) -> Iterator[Row]:
    """Do the same with a peer."""
    s, begin_s, lead_s = ground.sizes, time.time(), ground.sizes.count / PEER_PUTS
    with (
        ground.path() as path,
        machine.limited_memory(s.memory_mib << 20),
        closing(open_peer(path, False)) as timers,
    ):
        fill_peer(timers, due_times(s.count, s.rate, lead_s))
        drop_pages(path)
        yield random_reads(path)
        time.sleep(max(0.0, begin_s + lead_s - time.time()))
        yield from watch_peer(type(timers).__name__, timers, s.rounds)


PARTS: dict[str, Callable[[Ground], Iterator[Row]]] = {
    "timerstore": ours_cold,
    "opened": ours_opened,
    "calls": calls,
    "lmdb": partial(peer_cold, Lmdb),
    "rocksdb": partial(peer_cold, RocksDb),
}

if __name__ == "__main__":
    harness.main("--cold", __doc__, Sizes, PARTS, default=["timerstore"])
