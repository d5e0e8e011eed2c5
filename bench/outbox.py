"""How soon a row of an outbox is a timer, and how many rows a relay puts a second."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import harness
import ours
from harness import sized
from results import Row

import timerstore
from timerstore.outbox import Outbox, Relay

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Sizes:
    """How many commits of one row, then rows of one commit."""

    commits: int = sized(1_000, 50)
    rows: int = sized(50_000, 2_000)
    apart_s: float = sized(0.01, 0.01)


Ground = harness.Ground[Sizes]


@contextmanager
def sqlite(folder: Path) -> Iterator[tuple[str, Any]]:
    """Make a file."""
    file = folder / "app.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("pragma journal_mode = wal")
        yield str(file), db


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[str, Any]]:
    """Start a server."""
    import psycopg
    from peers.postgres import start

    server, url = start(folder, True), f"postgresql:///postgres?host={folder}&user=postgres"
    try:
        with psycopg.connect(url) as db:
            yield url, db
    finally:
        server.stop()


def part(kind: str, ground: Ground) -> Iterator[Row]:
    """Commit row by row, then many at once."""
    size, late_ms = ground.sizes, list[float]()
    make = {"sqlite": sqlite, "postgres": postgres}[kind]
    outbox, body = Outbox(), b"x" * ours.BODY_BYTES
    with ground.path() as folder, make(folder) as (url, db):
        outbox.create(db)
        db.commit()
        with timerstore.open(folder / "s") as store, Relay(store, url):
            for number in range(size.commits):
                outbox.put(db, body, topic="t", delay_ms=HOUR_MS)
                db.commit()
                began_s = time.perf_counter()
                while store.count("t") <= number:
                    time.sleep(0.0002)
                late_ms.append(1e3 * (time.perf_counter() - began_s))
                time.sleep(size.apart_s)
            for _ in range(size.rows):
                outbox.put(db, body, topic="t", delay_ms=HOUR_MS)
            db.commit()
            began_s = time.perf_counter()
            while store.count("t") < size.commits + size.rows:
                time.sleep(0.001)
            rate = size.rows / (time.perf_counter() - began_s)
    late_ms.sort()
    median, p99 = late_ms[len(late_ms) // 2], late_ms[len(late_ms) * 99 // 100]
    told = f"{median:.1f} ms, p99 {p99:.1f}, most {late_ms[-1]:.1f}"
    yield Row(f"from the commit to the timer, {kind}", "≤ 10 ms", told, None, late_ms)
    yield Row(f"rows a second of a relay, {kind}", "", f"{rate:,.0f}", None, [rate])


PARTS: dict[str, Callable[[Ground], Iterator[Row]]] = {
    kind: partial(part, kind) for kind in ("sqlite", "postgres")
}

if __name__ == "__main__":
    harness.main("--outbox", __doc__, Sizes, PARTS)
