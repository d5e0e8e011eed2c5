"""The kernel that runs the services: each gets its turn."""

import time
from pathlib import Path

import timerstore
from tests.small_store import SMALL
from timerstore.services.running.runner import provide
from timerstore.services.running.steps import run
from timerstore.services.world.state import DEQUEUE_PUT, ENQUEUE_GET

START_MS = 1_700_000_000_000
FAR_MS = 1 << 61


def test_a_need_of_one_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    """Enqueue-put needs a segment at every call, for more is put than it ever gets done."""
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path, config=SMALL, clock=clock) as store:
        engine = store.core.engine
        store.put(b"due", topic="t", at_ms=START_MS + 1_000)
        with store.core.gate.guard():
            store.core.runner.play(START_MS, START_MS)  # it has its unit
        for _ in range(200):
            store.put_many([b"later"] * 101, topic="t", delay_ms=3_600_000)  # a segment's units
            run(engine.world, ENQUEUE_GET, DEQUEUE_PUT, START_MS + 1_001, START_MS + 1_001)
            if engine.world.dequeue_put.counts.fired_count:
                break
            provide(engine, engine.needing())
        assert engine.world.dequeue_put.counts.fired_count == 1
        if engine.needing() >= 0:
            provide(engine, engine.needing())


def test_firing_goes_on_while_tiny_segments_turn_over(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, config=SMALL) as store:
        until = time.monotonic() + 60
        put = 0
        while time.monotonic() < until and store.stats().fired_count < 100:
            store.put_many([b"x"] * 500, topic="t", delay_ms=1)
            put += 500
        assert store.stats().fired_count >= 100
