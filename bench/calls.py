"""What each call costs, as a program writes it, beside SQLite doing the same.

Every figure is µs a call, the median of its rounds. The calls take turns within a round, so that a
machine that slows down slows all of them; the first round, which warms caches, is left out. What
is durable on return is measured alone beside the bare disk, and of many threads.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count as count_from
from itertools import islice
from typing import Any

import harness
import numpy as np
import ours
from bare import BareFile
from harness import sized
from peers.embedded import Sqlite
from peers.timers import now_ms
from results import Row

from timerstore import TimerStore
from timerstore.offline.export import export

BODY = bytes(100)
THREADS = 32
_AT_ONCE = 50
FAR_MS = now_ms() + 40 * 3_600_000


@dataclass(frozen=True)
class Sizes:
    """How much of each thing one round does."""

    rounds: int = sized(7, 3)
    pending: int = sized(1_900_000, 200_000)
    count: int = sized(10_000, 3_000)


Ground = harness.Ground[Sizes]
Calls = dict[str, Callable[[int], object]]
"""By name: what makes so many calls of a kind."""


def in_turns(calls: Calls, count: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of each call."""
    ways = {name: partial(seconds_each, call, count) for name, call in calls.items()}
    return {n: statistics.median(each) for n, each in harness.in_turns(ways, rounds).items()}


def seconds_each(call: Callable[[int], object], count: int) -> float:
    began_s = time.perf_counter()
    call(count)
    return (time.perf_counter() - began_s) / count


class Ids:
    """Ids of pending timers, or keys, each given out once, from all over the store."""

    def __init__(self, ids: Sequence[str]) -> None:
        """Shuffle them, and make each anew, as who reads its ids from somewhere.

        So they lie in memory in the order of their use: to fetch a text from anywhere takes 0.3 µs.
        """
        ids = np.random.default_rng(7).permutation(np.array(ids, object)).tolist()
        self._ids = iter([id.encode().decode() for id in ids])

    def each(self, call: Callable[[str], object]) -> Callable[[int], None]:
        """Return what calls with so many that nobody had yet; each time something is found."""

        def play(count: int) -> None:
            for id in self.take(count):
                assert call(id)

        return play

    def take(self, count: int) -> list[str]:
        """Return so many that nobody had yet."""
        return list(islice(self._ids, count))


def put_calls(store: TimerStore) -> Calls:
    """Return the ways of saying when, and what."""
    described = {"trace": "0123456789abcdef", "attempt": "1"}
    far: dict[str, Any] = {"at_ms": FAR_MS}
    ways: dict[str, dict[str, Any]] = {
        "at_ms=": far,
        "delay=": {"delay": timedelta(hours=1)},
        "at=": {"at": datetime.fromtimestamp(FAR_MS / 1000, UTC)},
        "at_ms=, key=": far | {"key": "user:1234"},
        "at_ms=, tag=": far | {"tag": "mail"},
        "at_ms=, key=, tag=, properties=": far
        | {"key": "user:1234", "tag": "mail", "properties": described},
        "delay_level=": {"delay_level": 16},
    }

    def way(given: dict[str, Any]) -> Callable[[int], None]:
        def put(count: int) -> None:
            for _ in range(count):
                store.put(BODY, **given)

        return put

    return {f"put({name})": way(given) for name, given in ways.items()}


def id_calls(store: TimerStore, ids: Ids) -> Calls:
    """Return what is done to one timer by its id, and to many."""

    def cancel_many(count: int) -> None:
        assert store.cancel_many(ids.take(count)).all()

    return {
        "get": ids.each(store.get),
        "cancel": ids.each(store.cancel),
        "cancel_many": cancel_many,
        "reschedule": ids.each(lambda id: store.reschedule(id, at_ms=FAR_MS)),
    }


def key_calls(store: TimerStore, pending: int, unused: int) -> Calls:
    """Return what is done by a key, of as many timers that have one; of some that have none."""
    names = [f"user:{i}" for i in range(pending)]
    for at in range(0, pending, ours.BATCH_COUNT):
        part = names[at : at + ours.BATCH_COUNT]
        store.put_many([BODY] * len(part), topic="keyed", at_ms=FAR_MS, keys=part)
    keys, new = Ids(names), Ids([f"new:{i}" for i in range(2 * unused)])
    put = partial(store.put, BODY, topic="keyed", at_ms=FAR_MS)
    return {
        "get_key": keys.each(partial(store.get_key, "keyed")),
        "get_key, none": new.each(lambda key: store.get_key("keyed", key) is None),
        "cancel_key": keys.each(partial(store.cancel_key, "keyed")),
        "put(if_absent=True), there is one": keys.each(lambda key: put(key=key, if_absent=True)),
        "put(if_absent=True), there is none": new.each(lambda key: put(key=key, if_absent=True)),
        "put(replace=True)": keys.each(lambda key: put(key=key, replace=True)),
    }


def peer_calls(peer: Sqlite, rows: Ids) -> Calls:
    """Return the same with SQLite."""

    def put(count: int) -> None:
        for _ in range(count):
            peer.put_one(FAR_MS, BODY)

    return {
        "insert": put,
        "select": rows.each(lambda row: peer.get_one(int(row))),
        "delete": rows.each(lambda row: peer.delete_one(int(row))),
        "update": rows.each(lambda row: peer.update_one(int(row), FAR_MS)),
    }


# --- parts

REACH_US = {"get": 6.0, "cancel": 4.0, "cancel_many": 0.5, "reschedule": 8.0, "pending": 2.0}
REACH_US |= {"get_key": 10.0, "get_key, none": 10.0, "cancel_key": 10.0, "put(at_ms=)": 1.2}
REACH_US |= {"put(if_absent=True), there is one": 20.0, "put(replace=True)": 40.0}
REACH_US |= {"put(if_absent=True), there is none": 30.0}
_TIMES_REACH = {"put(delay=)": 1.5, "put(at=)": 1.5, "put(delay_level=)": 1.5}
_PEER = {"get": "select", "cancel": "delete", "reschedule": "update"}


def filled(store: TimerStore, peer: Sqlite, count: int) -> list[str]:
    """Put timers into both, in no order of due time; return the ids."""
    ids, due_ms = [], FAR_MS + np.random.default_rng(1).integers(0, 1 << 22, count)
    for at in range(0, count, ours.BATCH_COUNT):
        part = due_ms[at : at + ours.BATCH_COUNT]
        ids += list(store.put_many([BODY] * len(part), at_ms=part))
        peer.fill(part.tolist(), [BODY] * len(part))
    return ids


def each_call(ground: Ground) -> list[Row]:
    """Return what calls take for one timer, all in turns."""
    s = ground.sizes
    with (
        ground.path() as path,
        closing(Sqlite(path, False)) as peer,
        ours.open_store(path / "store", "process") as store,
    ):
        ids = filled(store, peer, s.pending)
        store.put(BODY, delay_level=16)
        calls = put_calls(store) | id_calls(store, Ids(ids))
        calls |= key_calls(store, s.pending // 2, s.count * (s.rounds + 1))
        calls |= peer_calls(peer, Ids([str(i + 1) for i in range(s.pending)]))
        took_s = in_turns(calls, s.count, s.rounds)
        count = store.count()

        def pending(_: int) -> None:
            assert sum(1 for _ in store.pending()) >= count

        took_s |= in_turns({"pending": pending}, count, min(3, s.rounds))
    return list(table({name: 1e6 * each_s for name, each_s in took_s.items()}))


def table(us: dict[str, float]) -> Iterator[Row]:
    """Turn µs a call into rows: a way of `put` beside the plainest, others beside what is asked."""
    for name, value in us.items():
        is_way = name.startswith("put(") and name not in REACH_US
        peer = us.get(_PEER.get(name, "insert" if is_way or name == "put(at_ms=)" else ""))
        told = f"{value:.2f} µs" + (f", SQLite {peer:.1f}" if peer is not None else "")
        if is_way:
            ratio, reach = value / us["put(at_ms=)"], _TIMES_REACH.get(name, 2.5)
            told, words = f"{ratio:.2f} ×: {told}", f"≤ {reach} × `at_ms=`"
            yield Row(f"`{name}`", words, told, ratio <= reach, figures=value)
        elif name in REACH_US:
            told += " each, the call included" if name == "pending" else ""
            words, reached = f"≤ {REACH_US[name]:g} µs", value <= REACH_US[name]
            yield Row(f"`{name}`", words, told, reached, value)


def columns(ground: Ground) -> Iterator[Row]:
    """Pending timers as columns: of an open store, exported from a closed one; SQLite's rows."""
    count, rounds, took_s = ground.sizes.pending, min(3, ground.sizes.rounds), dict[str, float]()
    with ground.path() as path, closing(Sqlite(path, False)) as peer:
        with ours.open_store(path / "store", "process") as store:
            filled(store, peer, count)
            ours.settle(store)
            looks: Calls = {"pending_columns()": lambda _: store.pending_columns()}
            took_s |= in_turns(looks | {"SQLite": lambda _: peer.all_rows()}, count, rounds)
        out = path / "pending.parquet"
        takes: Calls = {"export": lambda _: export(path / "store", "pending", out, "parquet")}
        took_s |= in_turns(takes, count, rounds)
    rates = {name: 1e-6 / each_s for name, each_s in took_s.items()}
    beside = f"SQLite, all rows as tuples, {rates['SQLite']:.2f}"
    for name, what, reach in (
        ("pending_columns()", "`pending_columns()`", 3),
        ("export", "`export` to Parquet", 1),
    ):
        told, words = f"{rates[name]:.2f} million/s; {beside}", f"≥ {reach} million rows/s"
        yield Row(what, words, told, rates[name] >= reach, figures=rates)


def consume(ground: Ground) -> list[Row]:
    """Return how many a second are iterated and acknowledged, one by one; all of them are due."""
    count = 20 * ground.sizes.count
    with (
        ground.path() as path,
        closing(Sqlite(path, False)) as peer,
        ours.open_store(path / "store", "process") as store,
    ):
        numbers = count_from()

        def mine() -> float:
            topic, seen = f"round{next(numbers)}", 0
            store.put_many([BODY] * count, topic=topic, at_ms=now_ms())
            while store.count():
                time.sleep(0.01)
            time.sleep(0.3)
            began_s = time.perf_counter()
            for delivery in store.consume(topic, timeout=0):
                delivery.ack()
                seen += 1
            assert seen == count
            return (time.perf_counter() - began_s) / count

        def theirs() -> float:
            peer.put_many([now_ms()] * count, [BODY] * count)
            began_s = time.perf_counter()
            while taken := peer.take_due():
                for _ in taken:
                    pass
            return (time.perf_counter() - began_s) / count

        took_s = harness.in_turns({"ours": mine, "SQLite": theirs}, ground.sizes.rounds)
    rate, beside = (1e-6 / statistics.median(each) for each in took_s.values())
    told = f"{rate:.2f} million/s, SQLite {beside:.2f} (taken by a thousand)"
    what, reach = "`for d in consume()`, `ack`", "≥ 1.2 million/s"
    return [Row(what, reach, told, rate >= 1.2, took_s)]


def pull(ground: Ground) -> list[Row]:
    """Return what a pull with its `ack` takes of the caller, who makes one each millisecond.

    A timer is due each millisecond. Processor time of the calling thread, which sleeps in between.
    """
    us, count = dict[str, float](), ground.sizes.count
    for durability in ("process", "group"):
        taken_us = []
        with ground.path() as path, ours.open_store(path / "store", durability) as store:
            store.put_many([BODY] * count, at_ms=now_ms() + 500 + np.arange(count))
            time.sleep(0.6)
            for _ in range(count // 2):
                began_ns = time.thread_time_ns()
                store.pull("default", timeout=0).ack()
                taken_us.append((time.thread_time_ns() - began_ns) / 1_000)
                time.sleep(0.001)
        us[durability] = statistics.median(taken_us)
    told = f"{us['process']:.0f} µs of the thread's processor time, {us['group']:.0f} under `group`"
    what, reached = "`pull`, `ack`, once a millisecond", us["process"] <= 20
    return [Row(what, "≤ 20 µs", told, reached, figures=us)]


# --- durable on return


def _median_us(calls: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    """Return the median µs of each call; they take turns, `_AT_ONCE` at a time."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(max(1, count // _AT_ONCE)):
        for name, call in calls.items():
            for _ in range(_AT_ONCE):
                began_s = time.perf_counter()
                call()
                taken[name].append((time.perf_counter() - began_s) * 1e6)
    return {name: statistics.median(each) for name, each in taken.items()}


def _together(store: TimerStore, threads: int, seconds: float) -> tuple[float, float]:
    """Let threads put, each without a pause; return puts a second, and fsyncs a put."""
    counts, begin, stop = [0] * threads, threading.Event(), threading.Event()

    def put(i: int) -> None:
        begin.wait()
        while not stop.is_set():
            store.put(BODY, at_ms=FAR_MS)
            counts[i] += 1

    workers = [threading.Thread(target=put, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    syncs, began_s = store.stats().sync_count, time.perf_counter()
    begin.set()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    elapsed_s, count = time.perf_counter() - began_s, sum(counts)
    return count / elapsed_s, (store.stats().sync_count - syncs) / count


def group(ground: Ground) -> list[Row]:
    """Measure puts that are durable on return: alone, then of one thread and of many, in turns."""
    count, rounds = ground.sizes.count, ground.sizes.rounds
    with (
        ground.path() as path,
        closing(BareFile(path / "bare")) as bare,
        closing(Sqlite(path, True)) as peer,
        ours.open_store(path / "store", "group") as store,
    ):
        calls: dict[str, Callable[[], object]] = {
            "bare": bare.append,
            "put": lambda: store.put(BODY, at_ms=FAR_MS),
            "peer": lambda: peer.put_one(FAR_MS, BODY),
        }
        _median_us(calls, _AT_ONCE)
        us = _median_us(calls, count)
        turns = [(_together(store, 1, 1.0), _together(store, THREADS, 1.0)) for _ in range(rounds)]
    ratio = us["put"] / us["bare"]
    alone = statistics.median(rate for (rate, _), _ in turns)
    per_second, fsyncs = (
        statistics.median(each) for each in zip(*(b for _, b in turns), strict=True)
    )
    told = (
        f"{ratio:.2f} ×: {us['put']:.0f} µs beside {us['bare']:.0f}; SQLite `FULL` {us['peer']:.0f}"
    )
    reach, what = "≤ 1.2 × write and `fdatasync`", f"{THREADS} threads"
    many_told = f"{per_second / alone:.1f} ×: {per_second:,.0f}/s beside {alone:,.0f}"
    reached = per_second >= 10 * alone
    return [
        Row("`put`, `group`, one thread", reach, told, ratio <= 1.2, figures=us),
        Row(f"`put`, `group`, {what}", "≥ 10 × one thread", many_told, reached, turns),
        Row(f"fsyncs a put, {what}", "≤ 0.1", f"{fsyncs:.3f}", fsyncs <= 0.1),
    ]


PARTS: dict[str, Callable[[Ground], Any]] = {
    "calls": each_call,
    "columns": columns,
    "consume": consume,
    "pull": pull,
    "group": group,
}

if __name__ == "__main__":
    harness.main("--calls", __doc__, Sizes, PARTS)
