"""Plays the same workloads through timerstore, then through each peer, in rounds that take turns.

A peer that is not installed is named as missing. Each round opens a peer anew in an empty folder,
and checks that every timer came once, none before its time. Ratios are those of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import machine
import report
from beside import short
from peers.beanstalkd import Beanstalkd
from peers.embedded import Lmdb, Ours, RocksDb, Sqlite
from peers.postgres import Postgres
from peers.redis import Redis
from peers.timers import MissingError, Peer
from peers.workloads import WORKLOADS, Round

PEERS = (
    Peer("timerstore", Ours, "`process`; synced: `group`"),
    Peer("SQLite", Sqlite, "write-ahead log, `synchronous=NORMAL`; synced: `FULL`", 5),
    Peer("LMDB", Lmdb, "`sync=False`; synced: `sync=True`"),
    Peer("RocksDB", RocksDb, "by rocksdict, write-ahead log; synced: `sync`", 2),
    Peer("Redis", Redis, "a sorted set, append-only file each second; synced: `always`", 2),
    Peer("PostgreSQL", Postgres, "`synchronous_commit=off`; synced: `on`", 5),
    Peer("beanstalkd", Beanstalkd, "binlog synced each second; synced: each write", 5),
)
COUNTS = {"singles": 20_000, "batches": 500_000, "due_now": 500_000, "same_ms": 200_000}
COUNTS |= {"lateness": 50_000, "small_bodies": 200_000, "large_bodies": 50_000}
_SINGLE_SYNCED = 2_000


@dataclass(frozen=True)
class Found:
    """The rounds of one peer in one workload, the first one left out."""

    peer: str
    rounds: list[Round]

    @property
    def rates(self) -> list[float]:
        """Timers a second."""
        return [each.per_second for each in self.rounds]

    def told(self) -> str:
        """Return its median with its range, or how late it was."""
        if self.rounds[0].late_ms:
            names = self.rounds[0].late_ms
            words = (
                f"{name} {statistics.median(each.late_ms[name] for each in self.rounds):.0f}"
                for name in names
            )
            return f"{self.peer} {', '.join(words)} ms"
        rates = self.rates
        return (
            f"{self.peer} {short(statistics.median(rates))}/s "
            f"({short(min(rates))} to {short(max(rates))})"
        )


def ratios(found: Sequence[Found]) -> str:
    """Return how many times each peer's median the first one's is."""
    first, *others = found
    mine = statistics.median(first.rates)
    return ", ".join(f"{mine / statistics.median(each.rates):.3g} × {each.peer}" for each in others)


def row_of(workload: str, synced: bool, found: Sequence[Found]) -> report.Row:
    """Return a row of the table."""
    words = "; ".join(each.told() for each in found)
    if not found[0].rounds[0].late_ms and len(found) > 1:
        words = f"{ratios(found)}: {words}"
    what = f"`{workload}`" + (", synced" if synced else "")
    return report.Row(what, "", "", words, None, {"found": [asdict(each) for each in found]})


def play(
    folder: Path, workload: str, peers: Sequence[Peer], count: int, rounds: int, *, synced: bool
) -> list[Found]:
    """Play a workload in rounds that take turns; the first round of each warms, and is left out."""
    played: dict[str, list[Round]] = {}
    missing = set[str]()
    for number in range(rounds + 1):
        for peer in peers:
            if peer.name in missing:
                continue
            path = folder / f"{peer.name}-{number}"
            path.mkdir()
            try:
                timers = peer.open(path, synced)
            except MissingError as e:
                print(f"{peer.name} is not played: {e}", flush=True)
                missing.add(peer.name)
                continue
            try:
                found = WORKLOADS[workload](timers, max(100, count // peer.share))
            finally:
                timers.close()
            if number:
                played.setdefault(peer.name, []).append(found)
    return [Found(name, each) for name, each in played.items()]


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(prog="./run bench --peers", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"of {list(WORKLOADS)}")
    parser.add_argument("--peers", default=",".join(names), help=f"of {names}")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the timers")
    parser.add_argument("--synced", action="store_true", help="each put is durable on return")
    parser.add_argument("--folder", help="where stores are made (default: the temporary folder)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures")
    arguments = parser.parse_args()
    workloads = report.chosen(parser, arguments.workloads, tuple(WORKLOADS))
    chosen = report.chosen(parser, arguments.peers, names)
    header, rows = machine.headline(), list[report.Row]()
    print(header)
    for workload in workloads:
        count = round(COUNTS[workload] * arguments.scale)
        if arguments.synced and workload == "singles":
            count = min(count, _SINGLE_SYNCED)
        with machine.scratch_folder(arguments.folder) as folder:
            peers = [peer for peer in PEERS if peer.name in chosen]
            found = play(folder, workload, peers, count, arguments.rounds, synced=arguments.synced)
        rows.append(row_of(workload, arguments.synced, found))
        print(f"{rows[-1].what}: {rows[-1].measured}; load {os.getloadavg()[0]:.1f}", flush=True)
    if arguments.json:
        document = {"machine": header, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(document, indent=1, default=float) + "\n")


if __name__ == "__main__":
    main()
