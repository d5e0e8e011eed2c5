"""Rates of timerstore beside those of its peers, in interleaved rounds of one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import numpy as np
import ours
from jobs import MISSING
from peer import SqliteTimers
from peer_lmdb import LmdbTimers

Timers = SqliteTimers | LmdbTimers


@dataclass(frozen=True)
class Peer:
    """A peer of one row: how it is opened, how many timers it plays in a round."""

    name: str
    open: Callable[[Path], Timers]
    count: int
    reach: float | None = None
    """What part of it ours must reach, at least."""


def sqlite(count: int, reach: float | None = None, *, synchronous: str = "NORMAL") -> Peer:
    """Return SQLite as a peer."""
    return Peer("SQLite", lambda path: SqliteTimers(path, synchronous=synchronous), count, reach)


def lmdb(count: int, reach: float | None = None, *, synced: bool = False) -> Peer:
    """Return LMDB as a peer."""
    return Peer("LMDB", lambda path: LmdbTimers(path, synced=synced), count, reach)


# --- what a peer does in a round


def far_due_ms(count: int) -> list[int]:
    """Return due times at random milliseconds of the hour after the next."""
    start_ms = int(time.time() * 1_000) + ours.FAR_MS
    due_ms: list[int] = (start_ms + np.random.randint(0, ours.FAR_MS, count)).tolist()
    return due_ms


def put_many(peer: Timers, bodies: list[bytes]) -> None:
    """Put timers in batches."""
    peer.put_many(far_due_ms(len(bodies)), bodies)


def put_single(peer: Timers, bodies: list[bytes]) -> None:
    """Put timers, a transaction each."""
    assert isinstance(peer, SqliteTimers)
    for due_ms, body in zip(far_due_ms(len(bodies)), bodies, strict=True):
        peer.put_one(due_ms, body)


def whole_life(peer: Timers, bodies: list[bytes]) -> None:
    """Put timers that are due, and take them all."""
    now_ms = int(time.time() * 1_000)
    peer.put_many([now_ms - i * 7_919 % 100 for i in range(len(bodies))], bodies)
    got = 0
    while rows := peer.take_due(now_ms):
        got += len(rows)
    assert got == len(bodies)


# --- the rounds


@dataclass(frozen=True)
class Rounds:
    """Rounds of ours, and of peers between them; in all, `standing` others stay pending."""

    standing: list[bytes]
    count: int
    """Rounds that count; one before them warms."""
    warm_bytes: int

    def play(
        self,
        folder: Path,
        mine: Callable[[Any, list[bytes]], ours.Rate],
        bodies: list[bytes],
        theirs: Callable[[Timers, list[bytes]], None],
        peers: Sequence[Peer],
        durability: str = "process",
    ) -> dict[str, Any]:
        """Play all; return median rates, ratios, bytes for each timer."""
        played: list[ours.Rate] = []
        known: dict[str, tuple[Timers, list[ours.Rate]]] = {}
        with ours.open_store(folder / "ours", durability) as store:
            ours.put_many(store, self.standing)
            for peer in peers:
                try:
                    timers = peer.open(folder / peer.name)
                except ModuleNotFoundError as e:
                    print(f"{peer.name} needs {e.name}; {MISSING}", flush=True)
                    continue
                timers.fill(far_due_ms(len(self.standing)), self.standing)
                known[peer.name] = timers, []
            for _ in range(self.count + 1):
                machine.warm_memory(self.warm_bytes)
                played.append(mine(store, bodies))
                for peer in peers:
                    if peer.name in known:
                        timers, rates = known[peer.name]
                        rates.append(_play(timers, theirs, bodies[: peer.count]))
            for timers, _rates in known.values():
                timers.close()
        figures = _figures(played)
        figures["peers"] = {name: _figures(rates) for name, (_, rates) in known.items()}
        return figures


def _play(
    timers: Timers, play: Callable[[Timers, list[bytes]], None], bodies: list[bytes]
) -> ours.Rate:
    written, start = machine.written_bytes(), time.perf_counter()
    play(timers, bodies)
    elapsed = time.perf_counter() - start
    return ours.Rate(len(bodies) / elapsed, (machine.written_bytes() - written) / len(bodies))


def median(rates: list[ours.Rate]) -> int:
    """Return the median rate, the first round left out."""
    return round(statistics.median(rate.per_second for rate in rates[1:]))


def _figures(rates: list[ours.Rate]) -> dict[str, Any]:
    return {
        "per_second": median(rates),
        "bytes_each": round(rates[-1].bytes_each),
        "rounds": [round(rate.per_second) for rate in rates],
    }


# --- in words


def short(number: float) -> str:
    """Return a number with three digits."""
    if number >= 1e6:
        return f"{number / 1e6:.3g} M"
    return f"{number / 1e3:.3g} k" if number >= 1e4 else f"{number:,.0f}"


def ratio(figures: dict[str, Any], name: str) -> float:
    """Return how many times a peer's rate ours is."""
    return float(figures["per_second"] / figures["peers"][name]["per_second"])


def measured(figures: dict[str, Any], peers: Sequence[Peer]) -> str:
    """Return rates and ratios as a line."""
    known = [peer.name for peer in peers if peer.name in figures["peers"]]
    words = ", ".join(f"{ratio(figures, name):.3g} × {name}" for name in known)
    words += f": {short(figures['per_second'])}/s"
    for name in known:
        words += f", {name} {short(figures['peers'][name]['per_second'])}/s"
    missing = [peer.name for peer in peers if peer.name not in known]
    return words + "".join(f"; {name} {MISSING}" for name in missing)


def reached(figures: dict[str, Any], peers: Sequence[Peer]) -> bool | None:
    """Tell whether what is asked for is reached; None if nothing is, or a peer is missing."""
    asked = [peer for peer in peers if peer.reach is not None]
    if not asked or any(peer.name not in figures["peers"] for peer in asked):
        return None
    return all(ratio(figures, peer.name) >= float(peer.reach or 0) for peer in asked)


def reach(peers: Sequence[Peer]) -> str:
    """Return what is asked for in words."""
    return ", ".join(f"≥ {peer.reach:g} × {peer.name}" for peer in peers if peer.reach is not None)
