"""Plays the same workloads through timerstore, then through each peer, in rounds that take turns.

A peer that is not installed is named as missing. Each round opens a peer anew in an empty folder,
and checks that every timer came once, none before its time. `--json` adds what was found to a file,
`--fill` puts the tables of that file into a page.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
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
        """Open them below an empty folder."""
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


def play(
    folder: Path,
    workload: str,
    peers: Sequence[Peer],
    rounds: int,
    *,
    synced: bool,
    scale: float = 1.0,
    seconds: float = 5.0,
    lead_s: float = 2.0,
) -> list[Found]:
    """Play a workload in rounds that take turns.

    If there are several, one before them warms, and is left out. A peer that fails is told so, with
    why: its figures are left out.
    """
    found: dict[str, Found] = {}
    gone = set[str]()
    for number in range(rounds + (rounds > 1)):
        for peer in peers:
            if peer.name in gone or workload in peer.leaves_out:
                continue
            count = count_of(workload, peer, scale, synced=synced)
            load = Load(count, lead_s + count / peer.per_second, seconds)
            with machine.scratch_folder(str(folder)) as path:
                path.chmod(0o755)
                try:
                    figures = play_round(peer, workload, path, load, synced=synced)
                except MissingError as e:
                    print(f"{peer.name} is not played: {e}", flush=True)
                    gone.add(peer.name)
                    continue
            if number or rounds == 1:
                found.setdefault(peer.name, Found(peer.name, count, [])).rounds.append(figures)
    return list(found.values())


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
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"of {list(WORKLOADS)}")
    parser.add_argument("--peers", default=",".join(names), help=f"of {names}")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the timers")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help=f"length of {', '.join(LATE)} (default: 60)"
    )
    parser.add_argument("--synced", action="store_true", help="each put is durable on return")
    parser.add_argument("--folder", help="where stores are made (default: the temporary folder)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="add what is found to a file")
    parser.add_argument("--fill", metavar="PAGE", type=Path, help="put that file into a page")
    arguments = parser.parse_args()
    workloads = [name for name in arguments.workloads.split(",") if name]
    workloads = report.chosen(parser, arguments.workloads, tuple(WORKLOADS)) if workloads else []
    chosen = report.chosen(parser, arguments.peers, names)
    if arguments.fill and not arguments.json:
        parser.error("--fill needs --json")
    print(machine.headline())
    for workload in workloads:
        loads = [os.getloadavg()[0]]
        with ExitStack() as stack:
            folder = stack.enter_context(machine.scratch_folder(arguments.folder))
            folder.chmod(0o711)
            found = play(
                folder,
                workload,
                [peer for peer in PEERS if peer.name in chosen],
                arguments.rounds,
                synced=arguments.synced,
                scale=arguments.scale,
                seconds=arguments.seconds,
            )
        loads.append(os.getloadavg()[0])
        print(f"{workload}{', synced' if arguments.synced else ''}; load {loads}", flush=True)
        print("\n".join(map(told, found)), flush=True)
        if arguments.json:
            machine_and_day = f"{machine.describe()}; {time.strftime('%Y-%m-%d')}"
            seconds = arguments.seconds if workload in LATE else 0.0
            played = tables.Played(
                workload, arguments.synced, machine_and_day, max(loads), seconds, found
            )
            tables.keep(arguments.json, played)
    if arguments.fill:
        tables.fill(arguments.fill, tables.kept(arguments.json))


if __name__ == "__main__":
    main()
