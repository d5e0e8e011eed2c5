"""Pending timers as columns: of an open store, exported from a closed one; beside SQLite's rows."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import ours
import report
from peer import SqliteTimers

from timerstore.offline.export import export

_BODY = bytes(100)
_SPREAD_MS = 1 << 22
_REACH = {"`pending_columns()`": 3e6, "`export` to Parquet": 1e6}


def rows(folder: Path, count: int, rounds: int) -> Iterator[report.Row]:
    """Measure with `count` timers pending, in no order of due time; medians of some rounds."""
    far_ms = time.time_ns() // 1_000_000 + 40 * 3_600_000
    due_ms = far_ms + np.random.default_rng(1).integers(0, _SPREAD_MS, count)
    with tempfile.TemporaryDirectory(dir=folder) as path:
        peer = SqliteTimers(Path(path) / "peer.sqlite", synchronous="NORMAL")
        store_path, out = Path(path) / "store", Path(path) / "pending.parquet"
        with ours.open_store(store_path, "process") as store:
            for at in range(0, count, ours.BATCH_COUNT):
                part = due_ms[at : at + ours.BATCH_COUNT]
                store.put_many([_BODY] * len(part), at_ms=part)
                peer.fill(part.tolist(), [_BODY] * len(part))
            ours.settle(store)
            rates = {
                "`pending_columns()`": _rates(lambda: store.pending_columns().num_rows, rounds),
                "SQLite": _rates(lambda: len(peer.all_rows()), rounds),
            }
        peer.close()
        rates["`export` to Parquet"] = _rates(
            lambda: export(store_path, "pending", out, "parquet"), rounds
        )
    beside = statistics.median(rates["SQLite"])
    for name, reach in _REACH.items():
        rate = statistics.median(rates[name])
        yield report.Row(
            name,
            f"≥ {reach / 1e6:g} million rows/s",
            "",
            f"{rate / 1e6:.2f} million/s; SQLite, all rows as tuples, {beside / 1e6:.2f}",
            rate >= reach,
            {"rates": rates[name], "peer_rates": rates["SQLite"]},
        )


def _rates(call: Callable[[], int], rounds: int) -> list[float]:
    """Return rows a second of each round but the first, which warms caches."""
    taken = []
    for _ in range(rounds + 1):
        began_s = time.perf_counter()
        count = call()
        taken.append(count / (time.perf_counter() - began_s))
    return taken[1:]
