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
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import machine
import report
from peers import queues, tables
from peers.beanstalkd import Beanstalkd
from peers.celery import Celery
from peers.embedded import Lmdb, Ours, PlainFile, RocksDb, Sqlite
from peers.postgres import Postgres
from peers.redis import Redis
from peers.rocketmq import RocketMq
from peers.server import none_left
from peers.tables import Found
from peers.timers import MissingError, Peer, Timers
from peers.workloads import LATE, WORKLOADS, Figures, Load

_FAST_LATE = ("late_10k", "late_50k", "pending")
_ONLY_PUTS = tuple(name for name in WORKLOADS if name not in ("singles", "batches"))
PEERS = (
    Peer("timerstore", Ours, "`process`; synced: `group`", per_second=300_000),
    Peer("SQLite", Sqlite, "write-ahead log, `synchronous=NORMAL`; synced: `FULL`", 5),
    Peer("LMDB", Lmdb, "`sync=False`; synced: `sync=True`", per_second=80_000),
    Peer("RocksDB", RocksDb, "by rocksdict, write-ahead log; synced: `sync`", 2, 80_000),
    Peer("Redis", Redis, "a sorted set, append-only file each second; synced: `always`", 2),
    Peer("PostgreSQL", Postgres, "`synchronous_commit=off`; synced: `on`", 5),
    Peer("beanstalkd", Beanstalkd, "binlog synced each second; synced: each write", 25, 2_000),
    Peer(
        "RocketMQ", RocketMq, "in its JVM, `ASYNC_FLUSH`, 100 ms; synced: `SYNC_FLUSH`", 25, 3_000
    ),
    Peer("huey", queues.huey, "SQLite, 20 threads", 250, 250, _FAST_LATE),
    Peer("APScheduler", queues.apscheduler, "SQLite, 20 threads", 250, 250, _FAST_LATE),
    Peer("Celery", Celery, "Redis, ETA, two processes", 250, 70, _FAST_LATE),
    Peer("a plain file", PlainFile, "as many bytes as timerstore's", leaves_out=_ONLY_PUTS),
)
COUNTS = {"singles": 20_000, "batches": 500_000, "due_now": 500_000, "same_ms": 1_000_000}
COUNTS |= {"bodies_16": 500_000, "bodies_1000": 500_000, "bodies_10000": 500_000}
COUNTS |= {"cancel_half": 500_000, "over_ten": 500_000, "pending": 10_000_000}
_SINGLE_SYNCED = 2_000
_LEAST = 100
_SINGLES_SHARE = 10
"""Slow peers put a tenth as many one by one, not a 250th."""


class Opened:
    """The timers of a round, which may be opened again."""

    def __init__(self, peer: Peer, folder: Path, synced: bool) -> None:
        self._peer, self._folder, self._synced = peer, folder, synced
        self.timers = peer.open(folder, synced)

    def again(self, _: Timers) -> Timers:
        """Close them, and open the same."""
        self.timers.close()
        self.timers = self._peer.open(self._folder, self._synced)
        return self.timers


def count_of(workload: str, peer: Peer, scale: float, *, synced: bool) -> int:
    """Return how many timers a peer plays."""
    count, share = COUNTS.get(workload, 0) * scale, peer.share
    if workload == "singles":
        share = min(share, _SINGLES_SHARE)
        count = min(count, _SINGLE_SYNCED) if synced else count
    return max(_LEAST, round(count / share))


def play_round(peer: Peer, workload: str, folder: Path, load: Load, *, synced: bool) -> Figures:
    """Play one round of one peer below an empty folder."""
    opened = Opened(peer, folder, synced)
    gc.collect()
    try:
        ready = Load(load.count, load.lead_s, load.seconds, opened.again, folder)
        return WORKLOADS[workload](opened.timers, ready)
    finally:
        opened.timers.close()


@dataclass
class Run:
    """What a workload has found so far, of each peer."""

    found: dict[str, Found] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Peers that are missing, or have failed."""
    failures: list[str] = field(default_factory=list)


def play(
    run: Run,
    folder: Path,
    workload: str,
    peers: Sequence[Peer],
    rounds: int,
    *,
    synced: bool,
    scale: float = 1.0,
    seconds: float = 5.0,
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
            count = count_of(workload, peer, scale, synced=synced)
            load = Load(count, lead_s + count / peer.per_second, seconds)
            with machine.scratch_folder(str(folder)) as path, none_left():
                path.chmod(0o755)
                try:
                    figures = play_round(peer, workload, path, load, synced=synced)
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
                found = run.found.setdefault(peer.name, Found(peer.name, count, []))
                found.rounds.append(figures)


def told(found: Found) -> str:
    """Return the medians of a peer in words."""
    words = []
    for name in found.rounds[0]:
        values = [each[name] for each in found.rounds]
        words.append(f"{name} {statistics.median(values):,.3g} ({min(values):,.3g} to ")
        words[-1] += f"{max(values):,.3g})"
    return f"  {found.peer:12} {', '.join(words)}"


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(prog="./run bench --peers", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument(
        "--workloads", default=",".join(WORKLOADS), help=f"of {', '.join(WORKLOADS)}"
    )
    parser.add_argument("--peers", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument(
        "--rounds", type=report.count_above_zero, default=5, help="rounds that count (default: 5)"
    )
    parser.add_argument(
        "--scale", type=report.above_zero, default=1.0, help="so many times the timers (default: 1)"
    )
    parser.add_argument(
        "--seconds",
        type=report.above_zero,
        default=60.0,
        help=f"length of {', '.join(LATE)} (default: 60)",
    )
    parser.add_argument("--synced", action="store_true", help="each put is durable on return")
    report.add_files(parser, adds=True)
    arguments = parser.parse_args()
    workloads = report.chosen(parser, arguments.workloads, tuple(WORKLOADS))
    chosen = report.chosen(parser, arguments.peers, names)
    report.check_files(parser, arguments, tables.MARKS, tables.kept)
    if arguments.fill and not arguments.json:
        parser.error("--fill needs --json")
    if arguments.fill and not (workloads or tables.kept(arguments.json)):
        parser.error(f"{arguments.json} has nothing to put into a page")
    print(machine.headline())
    failures = list[str]()
    for workload in workloads:
        failures += play_and_keep(workload, [p for p in PEERS if p.name in chosen], arguments)
    if arguments.fill:
        tables.fill(arguments.fill, tables.kept(arguments.json), names)
    sys.exit("\n".join(failures) if failures else 0)


def play_and_keep(workload: str, peers: Sequence[Peer], arguments: argparse.Namespace) -> list[str]:
    """Play a workload, show what was found, keep it; if this is cut short, keep what there is.

    Returns which peers failed, with why.
    """
    run, loads, cut = Run(), [os.getloadavg()[0]], True
    try:
        with machine.scratch_folder(arguments.folder) as folder:
            folder.chmod(0o711)
            play(
                run,
                folder,
                workload,
                peers,
                arguments.rounds,
                synced=arguments.synced,
                scale=arguments.scale,
                seconds=arguments.seconds,
            )
        cut = False
    finally:
        found = list(run.found.values())
        loads.append(os.getloadavg()[0])
        said = "; ".join(f"{each:.1f}" for each in loads)
        print(f"{workload}{', synced' if arguments.synced else ''}; load {said}", flush=True)
        print("\n".join(map(told, found)), flush=True)
        if arguments.json and found:
            day = f"{machine.describe()}; {time.strftime('%Y-%m-%d')}"
            seconds = arguments.seconds if workload in LATE else 0.0
            played = tables.Played(workload, arguments.synced, day, max(loads), seconds, found)
            tables.keep(arguments.json, played, cut=cut)
    return run.failures


if __name__ == "__main__":
    main()
