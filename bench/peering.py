"""Plays the same workloads through timerstore, then through each peer, in rounds that take turns.

A peer that is not installed is named as missing. Each round opens a peer anew in an empty folder,
and checks that every timer that is due came once, none before its time. A peer that fails is named,
the others go on, and the run ends with 1. `--json` adds what was found to a file, `--fill` puts the
tables of that file into a page; with `--workloads ''` nothing else is done.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import harness
import machine
import results
from peers import queues, tables
from peers.celery import Celery
from peers.embedded import Lmdb, Ours, RocksDb, Sqlite
from peers.postgres import Postgres
from peers.redis import Redis
from peers.rocketmq import RocketMq
from peers.server import none_left
from peers.timers import MissingError, Peer, Timers
from peers.workloads import LATE, WORKLOADS, Figures, Load

_LEAVES_OUT = ("late_50k", "pending")
PEERS = (
    Peer("timerstore", Ours, per_second=300_000),
    Peer("SQLite", Sqlite, 5),
    Peer("LMDB", Lmdb, per_second=80_000),
    Peer("RocksDB", RocksDb, 2, 80_000),
    Peer("Redis", Redis, 2),
    Peer("PostgreSQL", Postgres, 5),
    Peer("RocketMQ", RocketMq, 25, 3_000),
    Peer("huey", queues.Huey, 250, 250, _LEAVES_OUT),
    Peer("APScheduler", queues.ApScheduler, 250, 250, _LEAVES_OUT),
    Peer("Celery", Celery, 250, 70, _LEAVES_OUT),
)
COUNTS = dict.fromkeys(("batches", "due_now", "cancel_half", "over_ten"), 500_000)
COUNTS |= {"singles": 20_000, "pending": 10_000_000}
_SINGLE_SYNCED = 2_000
_LEAST = 100
_SINGLES_SHARE = 10
"""Slow peers put a tenth as many one by one, not a 250th."""


def count_of(workload: str, peer: Peer, scale: float, *, synced: bool) -> int:
    """Return how many timers a peer plays."""
    count, share = COUNTS.get(workload, 0) * scale, peer.share
    if workload == "singles":
        share = min(share, _SINGLES_SHARE)
        count = min(count, _SINGLE_SYNCED) if synced else count
    return max(_LEAST, round(count / share))


def play_round(
    peer: Peer, workload: str, folder: Path, count: int, lead_s: float, run: Run
) -> Figures:
    """Play one round of one peer below an empty folder."""
    timers = peer.open(folder, run.synced)

    def open_again(_: Timers) -> Timers:
        nonlocal timers
        timers.close()
        timers = peer.open(folder, run.synced)
        return timers

    gc.collect()
    try:
        load = Load(count, lead_s + count / peer.per_second, run.seconds, open_again, folder)
        return WORKLOADS[workload](timers, load)
    finally:
        timers.close()


@dataclass
class Run:
    """How workloads are played, and what one has found so far of each peer."""

    synced: bool = False
    scale: float = 1.0
    seconds: float = 5.0
    counts: dict[str, int] = field(default_factory=dict)
    found: dict[str, list[Figures]] = field(default_factory=dict)
    """The rounds of each."""
    gone: set[str] = field(default_factory=set)
    """Peers that are missing, or have failed."""
    failures: list[str] = field(default_factory=list)


def play(
    run: Run,
    folder: Path,
    workload: str,
    peers: Sequence[Peer],
    rounds: int,
    lead_s: float = 2.0,
) -> None:
    """Play a workload in rounds that take turns; `run` gets what each round has found.

    If there are several, one before them warms, and is left out. A peer that fails is named, with
    why; its figures are left out, and the others go on.
    """
    for number in range(rounds + (rounds > 1)):
        for peer in peers:
            if peer.name in run.gone or workload in peer.leaves_out:
                continue
            count = count_of(workload, peer, run.scale, synced=run.synced)
            with machine.scratch_folder(str(folder)) as path, none_left():
                path.chmod(0o755)
                try:
                    figures = play_round(peer, workload, path, count, lead_s, run)
                except MissingError as e:
                    print(f"{peer.name} is not played: {e}", flush=True)
                    run.gone.add(peer.name)
                    continue
                except Exception as e:
                    traceback.print_exc()
                    said = f"{peer.name} fails in {workload}: {type(e).__name__}: {e}"
                    run.failures.append(said)
                    print(f"FAULT: {said}", flush=True)
                    run.gone.add(peer.name)
                    run.found.pop(peer.name, None)
                    continue
            if number or rounds == 1:
                run.found.setdefault(peer.name, []).append(figures)
                run.counts[peer.name] = count


def told(peer: str, rounds: Sequence[Figures]) -> str:
    words = []
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        median = statistics.median(values)
        words.append(f"{name} {median:,.3g} ({min(values):,.3g} to {max(values):,.3g})")
    return f"  {peer:12} {', '.join(words)}"


def play_and_keep(workload: str, peers: Sequence[Peer], given: argparse.Namespace) -> list[str]:
    """Play a workload, show what was found, keep it; if this is cut short, keep what there is.

    A peer that has fewer rounds than were asked for takes no place of one that has more. Returns
    which peers failed, with why.
    """
    run, loads = Run(given.synced, given.scale, given.seconds), [os.getloadavg()[0]]
    try:
        with machine.scratch_folder(given.folder) as folder:
            folder.chmod(0o711)
            play(run, folder, workload, peers, given.rounds)
    finally:
        loads.append(os.getloadavg()[0])
        said = "; ".join(f"{each:.1f}" for each in loads)
        print(f"{workload}{', synced' if given.synced else ''}; load {said}", flush=True)
        print("\n".join(told(*each) for each in run.found.items()), flush=True)
        seconds, records = given.seconds if workload in LATE else 0.0, results.read(given.json)
        for peer, rounds in run.found.items():
            name = f"{tables.KIND}/{tables.name_of(workload, given.synced, peer)}"
            if len(rounds) == given.rounds or len(rounds) >= len(
                records.get(name, {"rounds": []})["rounds"]
            ):
                records[name] = results.record(
                    max(loads), seconds=seconds, count=run.counts[peer], rounds=rounds
                )
        if given.json:
            results.write_json(given.json, records)
    return run.failures


def main() -> None:
    parser = argparse.ArgumentParser(prog="./run bench --peers", description=__doc__)
    names = [peer.name for peer in PEERS]
    add, number = parser.add_argument, harness.above_zero
    words = f"of {harness.listed(WORKLOADS)}"
    add("--workloads", default=",".join(WORKLOADS), help=words)
    add("--peers", default=",".join(names), help=f"of {harness.listed(names)}")
    words = "rounds that count (default: 5)"
    add("--rounds", type=harness.count_above_zero, default=5, help=words)
    add("--scale", type=number, default=1.0, help="so many times the timers (default: 1)")
    words = f"length of {harness.listed(LATE)} (default: 60)"
    add("--seconds", type=number, default=60.0, help=words)
    add("--synced", action="store_true", help="each put is durable on return")
    harness.add_files(parser)
    given = parser.parse_args()
    workloads = harness.chosen(parser, given.workloads, WORKLOADS)
    chosen = harness.chosen(parser, given.peers, names)
    found = harness.check_files(parser, given, tables.KIND)
    if given.fill and not (given.json and (workloads or found)):
        parser.error("--fill needs --json, with something to put into a page")
    print(machine.headline())
    failures = list[str]()
    for workload in workloads:
        failures += play_and_keep(workload, [p for p in PEERS if p.name in chosen], given)
    if given.fill:
        found = results.of(results.read(given.json), tables.KIND)
        results.fill(given.fill, tables.KIND, tables.tables(found, names))
    sys.exit("\n".join(failures) if failures else 0)


if __name__ == "__main__":
    main()
