"""The demonstration's child: the process that puts timers until it is killed.

python -m timerstore.cli.demochild STORE LEDGER COUNT SPAN_MS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from timerstore.cli.ledger import (
    CANCEL_ASKED,
    CANCEL_REFUSED,
    CANCELLED,
    PUT,
    LedgerWriter,
)
from timerstore.ground.ids import Int64s, TimerIds
from timerstore.serving import entrance
from timerstore.store.store import TimerStore

TOPIC = "demo"
BATCH_COUNT = 160
"""Puts, spread over the first PUT_SHARE of the time span."""
PUT_SHARE = 0.4
CANCEL_SHARE = 0.05
KILL_S_MAX = 120
"""The child ends by itself if no kill comes, once everything was put."""
LEAD_MS = 500
"""No timer is due sooner after its put, nor cancelled later before it is due."""


def put_until_killed(path: Path, ledger: LedgerWriter, count: int, span_ms: int) -> None:
    """Put `count` timers that fall due within `span_ms`, cancelling some of them."""
    rng = np.random.default_rng()
    each = max(1, count // BATCH_COUNT)
    with entrance.open(path) as store:
        start_ms = time.time_ns() // 1_000_000
        before: tuple[Int64s, Int64s] | None = None
        for i in range(BATCH_COUNT):
            pause_s = (start_ms + i * span_ms * PUT_SHARE / BATCH_COUNT) / 1000 - time.time()
            time.sleep(max(0.0, pause_s))
            now_ms = time.time_ns() // 1_000_000
            due_ms = rng.integers(
                now_ms + LEAD_MS, max(start_ms + span_ms, now_ms) + 2 * LEAD_MS, each
            )
            bodies = [b"timer %d of batch %d" % (j, i) for j in range(each)]
            ids = store.put_many(bodies, topic=TOPIC, at_ms=due_ms)
            ledger.write(PUT, ids.offsets, ids.due_ms)
            if before is not None:
                cancel_some(store, ledger, rng, *before)
            before = ids.offsets, ids.due_ms
        time.sleep(KILL_S_MAX)


def cancel_some(
    store: TimerStore,
    ledger: LedgerWriter,
    rng: np.random.Generator,
    offsets: Int64s,
    due_ms: Int64s,
) -> None:
    """Cancel a few of a batch; the ledger has the question before, and the answers after."""
    now_ms = time.time_ns() // 1_000_000
    chosen = np.flatnonzero((rng.random(len(offsets)) < CANCEL_SHARE) & (due_ms > now_ms + LEAD_MS))
    if len(chosen) == 0:
        return
    tag = store.core.engine.store_tag
    ids = TimerIds(due_ms[chosen], offsets[chosen], tag)
    ledger.write(CANCEL_ASKED, ids.offsets)
    worked = store.cancel_many(ids)
    ledger.write(CANCELLED, ids.offsets[worked])
    ledger.write(CANCEL_REFUSED, ids.offsets[~worked])


if __name__ == "__main__":
    store_path, ledger_path, timer_count, span = sys.argv[1:]
    put_until_killed(Path(store_path), LedgerWriter(Path(ledger_path)), int(timer_count), int(span))
