"""What each call costs, as a program writes it, beside SQLite doing the same.

Every figure is µs a call, the median of its rounds. The calls take turns within a round, so that a
machine that slows down slows all of them; the first round, which warms caches, is left out. What
is durable on return is measured in `durable.py`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count as count_from
from pathlib import Path
from typing import Any

import columns
import durable
import machine
import numpy as np
import ours
import report
from peer import SqliteTimers

from timerstore import TimerStore

FILL_BEGIN = "<!-- calls: begin -->"
FILL_END = "<!-- calls: end -->"
PARTS = ("put", "by_id", "by_key", "pending", "columns", "consume", "pull", "group")
BODY = bytes(100)


@dataclass(frozen=True)
class Sizes:
    """How much of each thing one round does."""

    pending: int
    count: int
    rounds: int


FULL = Sizes(pending=1_900_000, count=10_000, rounds=7)
QUICK = Sizes(pending=200_000, count=3_000, rounds=3)

Calls = dict[str, Callable[[int], None]]
"""By name: what makes so many calls of a kind."""


def in_turns(calls: Calls, sizes: Sizes) -> dict[str, float]:
    """Return the median µs of each call."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(sizes.rounds + 1):
        for name, call in calls.items():
            began_s = time.perf_counter()
            call(sizes.count)
            if round_number:
                taken[name].append((time.perf_counter() - began_s) / sizes.count * 1e6)
    return {name: statistics.median(each) for name, each in taken.items()}


class Ids:
    """Ids of pending timers, each given out once, from all over the store."""

    def __init__(self, ids: list[str]) -> None:
        """Shuffle them, and make each anew, as who reads its ids from somewhere.

        So they lie in memory in the order of their use: to fetch a text from anywhere takes 0.3 µs.
        """
        np.random.default_rng(7).shuffle(ids)
        self._ids = iter([id.encode().decode() for id in ids])

    def take(self, count: int) -> list[str]:
        """Return so many that nobody had yet."""
        return [next(self._ids) for _ in range(count)]


def put_calls(store: TimerStore, far_ms: int) -> Calls:
    """Return the ways of saying when, and what."""
    at = datetime.fromtimestamp(far_ms / 1000, UTC)
    ways: dict[str, dict[str, Any]] = {
        "at_ms=": {"at_ms": far_ms},
        "delay=": {"delay": timedelta(hours=1)},
        "at=": {"at": at},
        "at_ms=, key=": {"at_ms": far_ms, "key": "user:1234"},
        "at_ms=, tag=": {"at_ms": far_ms, "tag": "mail"},
        "at_ms=, key=, tag=, properties=": {
            "at_ms": far_ms,
            "key": "user:1234",
            "tag": "mail",
            "properties": {"trace": "0123456789abcdef", "attempt": "1"},
        },
        "delay_level=": {"delay_level": 16},
    }

    def way(given: dict[str, Any]) -> Callable[[int], None]:
        def put(count: int) -> None:
            for _ in range(count):
                store.put(BODY, **given)

        return put

    return {f"put({name})": way(given) for name, given in ways.items()}


def id_calls(store: TimerStore, ids: Ids, far_ms: int) -> Calls:
    """Return what is done to one timer by its id, and to many."""

    def get(count: int) -> None:
        for id in ids.take(count):
            assert store.get(id)

    def cancel(count: int) -> None:
        for id in ids.take(count):
            assert store.cancel(id)

    def cancel_many(count: int) -> None:
        assert store.cancel_many(ids.take(count)).all()

    def reschedule(count: int) -> None:
        for id in ids.take(count):
            store.reschedule(id, at_ms=far_ms)

    return {"get": get, "cancel": cancel, "cancel_many": cancel_many, "reschedule": reschedule}


def key_calls(store: TimerStore, pending: int, far_ms: int) -> Calls:
    """Return what is done by a key, of as many timers that have one."""
    for at in range(0, pending, ours.BATCH_COUNT):
        keys = [f"user:{i}" for i in range(at, min(at + ours.BATCH_COUNT, pending))]
        store.put_many([BODY] * len(keys), topic="keyed", at_ms=far_ms, keys=keys)
    numbers, new = iter(np.random.default_rng(7).permutation(pending).tolist()), count_from(0)

    def get_key(count: int) -> None:
        for _ in range(count):
            assert store.get_key("keyed", f"user:{next(numbers)}")

    def get_none(count: int) -> None:
        for _ in range(count):
            assert store.get_key("keyed", f"nobody:{next(new)}") is None

    def cancel_key(count: int) -> None:
        for _ in range(count):
            assert store.cancel_key("keyed", f"user:{next(numbers)}") == 1

    def put(key: Callable[[], str], **given: Any) -> Callable[[int], None]:
        def call(count: int) -> None:
            for _ in range(count):
                store.put(BODY, topic="keyed", at_ms=far_ms, key=key(), **given)

        return call

    return {
        "get_key": get_key,
        "get_key, none": get_none,
        "cancel_key": cancel_key,
        "put(if_absent=True), there is one": put(lambda: f"user:{next(numbers)}", if_absent=True),
        "put(if_absent=True), there is none": put(lambda: f"new:{next(new)}", if_absent=True),
        "put(replace=True)": put(lambda: f"user:{next(numbers)}", replace=True),
    }


def peer_calls(peer: SqliteTimers, rows: Ids, far_ms: int) -> Calls:
    """Return the same with SQLite."""

    def put(count: int) -> None:
        for _ in range(count):
            peer.put_one(far_ms, BODY)

    def get(count: int) -> None:
        for row in rows.take(count):
            assert peer.get_one(int(row))

    def delete(count: int) -> None:
        for row in rows.take(count):
            peer.delete_one(int(row))

    def update(count: int) -> None:
        for row in rows.take(count):
            peer.update_one(int(row), far_ms)

    return {"insert": put, "select": get, "delete": delete, "update": update}


def list_pending(store: TimerStore, count: int) -> None:
    """Look at all that is pending."""
    assert sum(1 for _ in store.pending()) >= count


def consume_each(folder: Path, sizes: Sizes) -> report.Row:
    """Return how many a second are iterated and acknowledged, one by one; all of them are due."""
    ours_rates, peer_rates, count = [], [], 20 * sizes.count
    with tempfile.TemporaryDirectory(dir=folder) as path:
        peer = SqliteTimers(Path(path) / "peer.sqlite", synchronous="NORMAL")
        with ours.open_store(Path(path) / "store", "process") as store:
            for i in range(sizes.rounds + 1):
                now_ms = time.time_ns() // 1_000_000
                store.put_many([BODY] * count, topic=f"round{i}", at_ms=now_ms)
                peer.put_many([now_ms] * count, [BODY] * count)
                while store.count():
                    time.sleep(0.01)
                time.sleep(0.3)
                began_s, seen = time.perf_counter(), 0
                for delivery in store.consume(f"round{i}", timeout=0):
                    delivery.ack()
                    seen += 1
                ours_rates.append(seen / (time.perf_counter() - began_s))
                assert seen == count
                began_s = time.perf_counter()
                while taken := peer.take_due(now_ms):
                    for _ in taken:
                        pass
                peer_rates.append(count / (time.perf_counter() - began_s))
        peer.close()
    rate, beside = (statistics.median(each[1:]) for each in (ours_rates, peer_rates))
    return report.Row(
        "`for d in consume()`, `ack`",
        "≥ 1.2 million/s",
        "2",
        f"{rate / 1e6:.2f} million/s, SQLite {beside / 1e6:.2f} (taken by a thousand)",
        rate >= 1.2e6,
        {"rates": ours_rates, "peer_rates": peer_rates},
    )


def pull_each_ms(folder: Path, sizes: Sizes) -> report.Row:
    """Return what a pull with its `ack` takes of the caller, who makes one each millisecond.

    A timer is due each millisecond. Processor time of the calling thread, which sleeps in between.
    """
    median_us = {}
    for durability in ("process", "group"):
        taken_us = []
        with (
            tempfile.TemporaryDirectory(dir=folder) as path,
            ours.open_store(Path(path) / "store", durability) as store,
        ):
            begin_ms = time.time_ns() // 1_000_000 + 500
            store.put_many([BODY] * sizes.count, at_ms=begin_ms + np.arange(sizes.count))
            time.sleep(0.6)
            for _ in range(sizes.count // 2):
                began_ns = time.thread_time_ns()
                store.pull("default", timeout=0).ack()
                taken_us.append((time.thread_time_ns() - began_ns) / 1_000)
                time.sleep(0.001)
        median_us[durability] = statistics.median(taken_us)
    us, group_us = median_us["process"], median_us["group"]
    return report.Row(
        "`pull`, `ack`, once a millisecond",
        "≤ 20 µs",
        "",
        f"{us:.0f} µs of the thread's processor time, {group_us:.0f} under `group`",
        us <= 20,
        {"us": us, "group_us": group_us},
    )


# --- the table

_PUT_REACH = {"delay=": 1.5, "at=": 1.5, "delay_level=": 1.5}
_ID_REACH = {"get": 6.0, "cancel": 4.0, "cancel_many": 0.5, "reschedule": 8.0, "pending": 2.0}
_KEY_REACH = {
    "get_key": 10.0,
    "get_key, none": 10.0,
    "cancel_key": 10.0,
    "put(if_absent=True), there is one": 20.0,
    "put(if_absent=True), there is none": 30.0,
    "put(replace=True)": 40.0,
}
_PEER = {"get": "select", "cancel": "delete", "reschedule": "update"}


def table(us: dict[str, float]) -> Iterator[report.Row]:
    """Turn figures into rows."""
    plain = us.get("put(at_ms=)", 0.0)
    for name, value in us.items():
        peer = us.get(_PEER.get(name, "insert" if name.startswith("put") else ""))
        beside = f", SQLite {peer:.1f}" if peer is not None else ""
        figures = {"us": value, "peer_us": peer}
        if name == "put(at_ms=)":
            yield report.Row(
                f"`{name}`", "≤ 1.2 µs", "0.9", f"{value:.2f} µs{beside}", value <= 1.2, figures
            )
        elif name in _KEY_REACH:
            reach = _KEY_REACH[name]
            yield report.Row(
                f"`{name}`", f"≤ {reach:g} µs", "", f"{value:.2f} µs", value <= reach, figures
            )
        elif name.startswith("put("):
            reach = _PUT_REACH.get(name[4:-1], 2.5)
            ratio = value / plain
            yield report.Row(
                f"`{name}`",
                f"≤ {reach} × `at_ms=`",
                "",
                f"{ratio:.2f} ×: {value:.2f} µs{beside}",
                ratio <= reach,
                figures,
            )
        elif name in _ID_REACH:
            reach = _ID_REACH[name]
            measured = f"{value:.2f} µs{beside}"
            if name == "pending":
                measured += " each, the call included"
            yield report.Row(f"`{name}`", f"≤ {reach:g} µs", "", measured, value <= reach, figures)


def measure(folder: Path, parts: list[str], sizes: Sizes) -> dict[str, float]:
    """Measure the parts that were asked for; µs by call."""
    far_ms = time.time_ns() // 1_000_000 + 40 * 3_600_000
    calls: Calls = {}
    with tempfile.TemporaryDirectory(dir=folder) as path:
        peer = SqliteTimers(Path(path) / "peer.sqlite", synchronous="NORMAL")
        with ours.open_store(Path(path) / "store", "process") as store:
            ids, due_ms = [], far_ms + np.random.default_rng(1).integers(0, 1 << 22, sizes.pending)
            for at in range(0, sizes.pending, ours.BATCH_COUNT):
                part = due_ms[at : at + ours.BATCH_COUNT]
                ids += list(store.put_many([BODY] * len(part), at_ms=part))
                peer.fill(part.tolist(), [BODY] * len(part))
            store.put(BODY, delay_level=16)
            if "put" in parts:
                calls |= put_calls(store, far_ms)
            if "by_id" in parts:
                calls |= id_calls(store, Ids(ids), far_ms)
            if "by_key" in parts:
                calls |= key_calls(store, sizes.pending // 2, far_ms)
            if "put" in parts or "by_id" in parts:
                calls |= peer_calls(peer, Ids([str(i + 1) for i in range(sizes.pending)]), far_ms)
            us = in_turns(calls, sizes)
            if "pending" in parts:
                few = replace(sizes, count=store.count(), rounds=min(3, sizes.rounds))
                us |= in_turns({"pending": lambda count: list_pending(store, count)}, few)
        peer.close()
    return us


def main() -> None:
    """Measure, show, and fill a table if that is asked for."""
    parser = report.new_parser(
        "./run bench --calls", __doc__, "small sizes: half a minute", "--parts", PARTS
    )
    arguments = parser.parse_args()
    parts = report.chosen(parser, arguments.parts, PARTS)
    report.check_files(parser, arguments, (FILL_BEGIN, FILL_END))
    report.check_whole(parser, arguments, parts, PARTS)
    sizes = report.sizes_of(arguments, FULL, QUICK)
    header = machine.headline(f"{sizes.pending:,} pending")
    with machine.scratch_folder(arguments.folder) as folder:
        of_calls = {"put", "by_id", "by_key", "pending"} & {*parts}
        us = measure(folder, parts, sizes) if of_calls else {}
        rows = list(table(us))
        if "columns" in parts:
            rows += columns.rows(folder, sizes.pending, min(3, sizes.rounds))
        if "consume" in parts:
            rows.append(consume_each(folder, sizes))
        if "pull" in parts:
            rows.append(pull_each_ms(folder, sizes))
        if "group" in parts:
            rows += durable.rows(folder, sizes.count, sizes.rounds)
    figures = {"sizes": asdict(sizes), "us": us, "rows": [asdict(row) for row in rows]}
    report.deliver(arguments, header, rows, figures, (FILL_BEGIN, FILL_END))


if __name__ == "__main__":
    main()
