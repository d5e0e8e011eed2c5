"""Snapshots of a store that is in use, busy and healthy: no rule speaks."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.tiers import SEED, Told, how_many
from timerstore import pipeline

pytestmark = pytest.mark.slow
SNAPSHOTS = how_many("SNAPSHOTS", 3, 50)
PER_SECOND, BATCHES = 300, 10
ALIKE = 20
"""Snapshots that are one history."""
WAIT_S = 60


def use(store: timerstore.TimerStore, over: threading.Event) -> None:
    """Put timers of three kinds of traffic, and cancel some of them, until it is over."""
    rng = np.random.default_rng(SEED)
    while not over.wait(1 / BATCHES):
        count = PER_SECOND // BATCHES
        soon_ms = rng.exponential(10_000, count).astype(np.int64) + 100
        later_ms = rng.integers(60_000, 40 * 86_400_000, count // 10)
        ids = store.put_many([b"x" * 100] * count, topic="retries", delay_ms=soon_ms)
        store.put_many([b"x" * 40] * len(later_ms), topic="reminders", delay_ms=later_ms)
        store.put_many([b"x"] * (count // 3), topic="timeouts", delay_ms=[30_000] * (count // 3))
        store.cancel_many(list(ids[: count // 20]))


def handle(store: timerstore.TimerStore, topic: str, over: threading.Event) -> None:
    while not over.is_set():
        for each in store.consume(topic, group="app", timeout=0.5):
            each.ack()


@pytest.mark.timeout(120 + 20 * SNAPSHOTS)
def test_nothing_is_said_of_a_live_store(tmp_path: Path, record_property: Told) -> None:
    """Each snapshot is taken at another moment of a second, of a program that goes on meanwhile."""
    over, path = threading.Event(), tmp_path / "shop"
    with timerstore.open(path) as store:
        work = [threading.Thread(target=use, args=(store, over))]
        for topic in ("retries", "reminders", "timeouts"):
            work.append(threading.Thread(target=handle, args=(store, topic, over)))
        for each in work:
            each.start()
        try:
            wanted = time.monotonic() + WAIT_S
            while store.count() < 100 and time.monotonic() < wanted:
                time.sleep(0.1)
            store.flush()  # a run reads what a checkpoint says
            for number in range(SNAPSHOTS):
                out = tmp_path / f"tables-{number // ALIKE}"
                found = pipeline.run({"shop": str(path)}, out, run=f"snapshot-{number}")
                (said,) = found.stores
                assert said.verdict == "ok", found
                assert said.messages > 100
                time.sleep(0.137)
        finally:
            over.set()
            for each in work:
                each.join()
    record_property("alarms", SNAPSHOTS)
