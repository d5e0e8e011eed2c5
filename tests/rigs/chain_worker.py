"""Carries chains on by acknowledging with a put, until it is killed.

Each message "chain:n" is acknowledged with "chain:n+1", and at
every third with a receipt beside it; some handlers raise before, some after.
"""

import logging
import random
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from timerstore import Config, Consumer, Delivery, TimerStore, Tuning

GROUP, TOPIC, RECEIPTS, THREADS, CHAINS = "workers", "chains", "receipts", 6, 40


def config_of(durability: Any) -> Config:
    """Many checkpoints, small files."""
    return Config(
        durability=durability,
        flush_interval_ms=10,
        delay_levels="1s 1s 1s",
        retention_ms=86_400_000,
        tuning=Tuning(commitlog_segment_bytes=1 << 20, consumequeue_segment_bytes=20 * 5000),
    )


def carry_on(store: TimerStore, seed: object) -> Consumer:
    """A consumer that carries all chains on."""
    rnd = random.Random(str(seed))
    consumer = Consumer(store, GROUP, threads=THREADS)

    @consumer.on(TOPIC)
    def handle(d: Delivery) -> None:
        chain, n = map(int, d.body.split(b":"))
        after = timedelta(milliseconds=rnd.choice((0, 1, 3, 40)))
        puts: Any = [{"body": b"%d:%d" % (chain, n + 1), "delay": after}]
        if n % 3 == 0:
            puts.append({"body": d.body, "topic": RECEIPTS})
        d.ack_and_put_many(puts)
        if rnd.random() < 0.05:
            raise ValueError("too late: it is acknowledged")

    return consumer


def prepare() -> None:
    """Load all kernels: whoever is forked finds them."""
    logging.disable(logging.CRITICAL)  # failures are meant
    folder = tempfile.TemporaryDirectory()
    with folder as path, TimerStore(Path(path) / "s", config=config_of("group")) as store:
        store.put(b"0:0", topic=TOPIC)
        with carry_on(store, 1):
            time.sleep(0.5)


def work(path: str, seed: str, durability: str) -> None:
    """Carry on for ever."""
    carry_on(TimerStore(path, config=config_of(durability)), seed).start()
    threading.Event().wait()
