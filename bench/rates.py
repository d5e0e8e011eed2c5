"""Timers a second beside SQLite and LMDB, in interleaved rounds of one process.

Ours, SQLite, LMDB, ours, SQLite, …: each figure is the median of its rounds, the first one, which
warms caches and compiles kernels, left out. In each store others stay pending meanwhile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import harness
import machine
import numpy as np
import ours
from bare import BareFile, Limited
from ours import Rate
from peers.embedded import Lmdb, Sqlite
from peers.timers import MissingError, Timers, now_ms
from results import Row, short
from sizes import Ground

from timerstore import Consumer, TimerStore

MISSING = "not measured: pip install '.[bench]'"
OURS = "timerstore"
THREADS = 20
GROUP_REACH = 14_850
"""Single puts a second with `group`: half more than when blocks were allocated on the way."""


@dataclass(frozen=True)
class Peer:
    """A peer of one row, which plays `count` timers in a round."""

    name: str
    open: Callable[[Path, bool], Timers]
    count: int
    reach: float | None = None
    """How many times its rate ours must be, at least."""


sqlite, lmdb = partial(Peer, "SQLite", Sqlite), partial(Peer, "LMDB", Lmdb)


# --- what a peer does in a round


def far_due_ms(count: int) -> list[int]:
    """Return due times at random milliseconds of the hour after the next."""
    start_ms = now_ms() + ours.FAR_MS
    due_ms: list[int] = (start_ms + np.random.randint(0, ours.FAR_MS, count)).tolist()
    return due_ms


def put_lists(peer: Timers, bodies: list[bytes]) -> None:
    peer.put_many(far_due_ms(len(bodies)), bodies)


def put_singles(peer: Timers, bodies: list[bytes]) -> None:
    for due_ms, body in zip(far_due_ms(len(bodies)), bodies, strict=True):
        peer.put_one(due_ms, body)


def whole_lives(peer: Timers, bodies: list[bytes]) -> None:
    """Put timers that are due, and take them all."""
    past_ms = now_ms()
    peer.put_many([past_ms - i * 7_919 % 100 for i in range(len(bodies))], bodies)
    got = 0
    while rows := peer.take_due():
        got += len(rows)
    assert got == len(bodies)


# --- the rounds


def in_turns(
    ground: Ground,
    mine: Callable[[TimerStore, list[bytes]], Rate],
    count: int,
    theirs: Callable[[Timers, list[bytes]], None],
    peers: Sequence[Peer],
    durability: str = "process",
) -> dict[str, list[Rate]]:
    """Play rounds of ours with `count` timers, and of peers between them; `group`: all synced.

    Returns the rates of each; a peer that is missing is left out.
    """
    bodies, standing = ours.make_bodies(count), ours.make_bodies(ground.sizes.standing)
    with ground.path() as path, ExitStack() as stack:
        store = stack.enter_context(ours.open_store(path / "ours", durability))
        ours.put_many(store, standing)
        ways = {OURS: ground.warmed(partial(mine, store, bodies))}
        for peer in peers:
            try:
                timers = stack.enter_context(closing(peer.open(path, durability == "group")))
            except MissingError as e:
                print(f"{peer.name} is not played: {e}", flush=True)
                continue
            timers.fill(far_due_ms(len(standing)), standing)
            ways[peer.name] = partial(_rate, theirs, timers, bodies[: peer.count])
        return harness.in_turns(ways, ground.sizes.rounds)


def _rate(play: Callable[[Timers, list[bytes]], None], timers: Timers, part: list[bytes]) -> Rate:
    written, start_s = machine.written_bytes(), time.perf_counter()
    play(timers, part)
    elapsed_s = time.perf_counter() - start_s
    return Rate(len(part) / elapsed_s, (machine.written_bytes() - written) / len(part))


def median(rates: Sequence[Rate]) -> float:
    return statistics.median(rate.per_second for rate in rates)


def row(
    what: str,
    durability: str,
    played: dict[str, list[Rate]],
    peers: Sequence[Peer],
) -> Row:
    """Return the row of rounds: rates, ratios, bytes for each timer."""
    if durability == "group":
        what += ", `group` beside peers that fsync each transaction"
    rates = {name: median(each) for name, each in played.items()}
    ratios = {name: rates[OURS] / rate for name, rate in rates.items() if name != OURS}
    told = ", ".join(f"{ratio:.3g} × {name}" for name, ratio in ratios.items())
    told += f": {short(rates[OURS])}/s"
    for name in ratios:
        told += f", {name} {short(rates[name])}/s"
    told += "".join(f"; {peer.name} {MISSING}" for peer in peers if peer.name not in played)
    asked = {peer.name: peer.reach for peer in peers if peer.reach is not None}
    reach = ", ".join(f"≥ {least:g} × {name}" for name, least in asked.items())
    reached = None
    if asked and not asked.keys() - ratios.keys():
        reached = all(ratios[name] >= least for name, least in asked.items())
    return Row(what, reach, told, reached, played_figures(played))


def played_figures(played: dict[str, list[Rate]]) -> dict[str, list[int]]:
    return {name: [round(rate.per_second) for rate in each] for name, each in played.items()}


# --- parts


def _synced(ground: Ground) -> list[Peer]:
    return [sqlite(ground.sizes.sqlite), lmdb(ground.sizes.lmdb)]


def put_many(ground: Ground) -> list[Row]:
    """`put_many` beside batched inserts."""
    s, rows = ground.sizes, list[Row]()
    for durability, peers in (
        ("process", [sqlite(s.sqlite, 22), lmdb(s.lmdb)]),
        ("group", _synced(ground)),
    ):
        played = in_turns(ground, ours.put_many, s.many, put_lists, peers, durability)
        rows.append(row("`put_many` from a list of bytes", durability, played, peers))
    return rows


def put_single(ground: Ground) -> list[Row]:
    """`put` beside single inserts."""
    peers = [sqlite(ground.sizes.sqlite, 25)]
    played = in_turns(ground, ours.put_single, ground.sizes.single, put_singles, peers)
    return [row("single `put` in a loop", "process", played, peers)]


def put_group(ground: Ground) -> list[Row]:
    """`put` that waits for the disk, beside SQLite, beside the disk."""
    peers, bare, count = [sqlite(ground.sizes.synced)], list[float](), ground.sizes.synced
    with ground.path() as path, closing(BareFile(path / "bare")) as file:

        def play(store: TimerStore, bodies: list[bytes]) -> Rate:
            bare.append(file.per_second(count))
            return ours.put_single(store, bodies)

        played = in_turns(ground, play, count, put_singles, peers, "group")
    found, rate = row("", "process", played, peers), statistics.median(bare[1:])
    per_second = median(played[OURS])
    found.what = "single `put` in a loop, one thread, `group`, SQLite `FULL`"
    found.reach = f"≥ 1.5 × 9,900/s ({GROUP_REACH:,})"
    found.reached = per_second >= GROUP_REACH
    found.measured += f"; {per_second / rate:.2f} × a bare write with `fdatasync`: {rate:,.0f}/s"
    return [found]


def _lives(
    ground: Ground,
    what: str,
    mine: Callable[[TimerStore, list[bytes]], Rate],
    count: int,
    peers: Sequence[Peer],
    durability: str = "process",
) -> Row:
    """Play whole lives beside peers, each round of ours followed by the disk alone."""
    with ground.path() as path:
        disk = Limited(path / "bare", mine, durability)
        played = in_turns(ground, disk.play, count, whole_lives, peers, durability)
    found, (words, limit) = row(what, durability, played, peers), disk.told()
    found.measured += words
    found.figures["limit"] = limit
    return found


def life(ground: Ground) -> list[Row]:
    s, what = ground.sizes, "whole life, pulled by columns"
    peers, synced = [sqlite(s.sqlite, 20), lmdb(s.lmdb, 3)], _synced(ground)
    return [
        _lives(ground, what, ours.whole_life, s.life, peers),
        _lives(ground, what, ours.whole_life, s.life, synced, "group"),
    ]


def objects(ground: Ground) -> list[Row]:
    s, what = ground.sizes, "whole life through `for d in consume()` with `ack`"
    peers = [sqlite(s.sqlite, 20)]
    return [_lives(ground, what, ours.whole_life_objects, s.objects, peers)]


def levels(ground: Ground) -> list[Row]:
    """Whole lives through a delay level, beside the same through the wheel."""
    s = ground.sizes
    with ground.path() as path, ours.open_store(path / "store", "process") as store:
        ours.put_many(store, ours.make_bodies(s.standing))
        disk = Limited(path / "bare", partial(ours.whole_life_waiting, level=True), "process")
        plays: dict[str, Callable[[TimerStore, list[bytes]], Rate]]
        plays = {"level": disk.play, "wheel": partial(ours.whole_life_waiting, level=False)}
        bodies = ours.make_bodies(s.life)
        ways = {name: ground.warmed(partial(play, store, bodies)) for name, play in plays.items()}
        played = harness.in_turns(ways, s.rounds)
    level, wheel = (median(each) for each in played.values())
    words, limit = disk.told()
    measured = f"{level / wheel:.2f} ×: {short(level)}/s, the wheel's {short(wheel)}/s{words}"
    what = f"whole life through a delay level of {ours.WAIT_MS} ms, beside the wheel's"
    figures = {**played_figures(played), "limit": limit}
    return [Row(what, "≥ 0.5 ×", measured, level >= wheel / 2, figures=figures)]


def burst(ground: Ground) -> list[Row]:
    """Measure many timers in one millisecond beside the same, spread out."""
    count, rates = ground.sizes.burst, dict[int, list[float]]({1: [], ours.SPREAD_MS: []})
    with ground.path() as path, ours.open_store(path, "process") as store:
        ours.whole_life(store, ours.make_bodies(1_000))  # kernels are compiled
        for _ in range(max(1, ground.sizes.rounds // 2)):
            for spread_ms, played in rates.items():
                ground.warm()
                played.append(ours.burst(store, ours.make_bodies(count), spread_ms).per_second)
    one, spread = map(statistics.median, rates.values())
    measured = f"{short(one)}/s, {one / spread:.2f} × the spread-out {short(spread)}/s"
    what = f"{short(count)} timers in the same millisecond, beside over {ours.SPREAD_MS} ms"
    return [Row(what, "≥ 0.5 ×", measured, one >= spread / 2, figures=rates)]


def consumer(ground: Ground) -> list[Row]:
    """Messages through empty handlers of the concurrent consumer."""
    rows, what = list[Row](), f"`Consumer`, empty handlers, {THREADS} threads, "
    with ground.path() as path, ours.open_store(path, "process") as store:
        for batch_count, reach, how in ((32, 100_000, "lists of 32"), (1, 40_000, "one by one")):
            rounds = range(ground.sizes.rounds + 1)
            rates = [_handled_per_second(store, ground, batch_count) for _ in rounds][1:]
            rate = statistics.median(rates)
            told = f"{rate:,.0f}/s"
            rows.append(Row(what + how, f"≥ {reach:,}/s", told, rate >= reach, figures=rates))
    return rows


def _handled_per_second(store: TimerStore, ground: Ground, batch_count: int) -> float:
    """Handle messages that are all in the log when the clock starts; it stops when all are done."""
    topic, bodies = f"handled{batch_count}", ours.make_bodies(ground.sizes.handled)
    before = store.stats().fired_count
    store.put_many(bodies, topic=topic)
    while store.stats().fired_count < before + len(bodies):
        time.sleep(0.01)
    store.flush()
    ground.warm()
    consumer = Consumer(store, "bench", threads=THREADS, batch_count=batch_count)
    consumer.subscribe(topic, lambda _: None)
    row = store.core.engine.queues.row(topic.encode())
    group = store.consuming.group(topic, "bench")
    end = store.core.engine.queues.next_index(row)
    start_s = time.perf_counter()
    with consumer:
        while group.committed().get((topic, 0), 0) < end:
            time.sleep(0.001)
        return len(bodies) / (time.perf_counter() - start_s)
