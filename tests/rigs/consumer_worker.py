"""Consumes with many threads until it is killed.

It handles what is there; one message in ten fails. What each handler has decided is a line of
the file `handled` beside the store: id, attempt, "done" or "failed".
"""

import logging
import os
import random
import tempfile
import threading
import time
from pathlib import Path

from timerstore import Config, Consumer, Delivery, TimerStore, Tuning

GROUP, TOPIC, THREADS, MAX_ATTEMPTS = "workers", "jobs", 20, 2
CONFIG = Config(
    durability="process",
    flush_interval_ms=20,
    delay_levels="1s 1s 1s 1s 1s 1s",
    tuning=Tuning(commitlog_segment_bytes=1 << 22, consumequeue_segment_bytes=20 * 5000),
)


class NoLuckError(Exception):
    """What a handler raises for one message in ten."""


def open_consumer(store: TimerStore, seed: object) -> Consumer:
    """A consumer that writes down what its handlers decide."""
    rnd = random.Random(str(seed))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    handled = os.open(store.path.parent / "handled", flags, 0o600)
    consumer = Consumer(store, GROUP, threads=THREADS, max_attempts=MAX_ATTEMPTS)

    @consumer.on(TOPIC)
    def handle(d: Delivery) -> None:
        time.sleep(0.001)
        fails = rnd.random() < 0.1
        os.write(handled, f"{d.id} {d.attempt} {'failed' if fails else 'done'}\n".encode())
        if fails:
            raise NoLuckError

    return consumer


def prepare() -> None:
    """Load all kernels: whoever is forked finds them."""
    logging.disable(logging.CRITICAL)  # failures are meant
    folder = tempfile.TemporaryDirectory()
    with folder as path, TimerStore(Path(path) / "store", config=CONFIG) as store:
        store.put_many([b"warm"] * 50, topic=TOPIC)
        with open_consumer(store, 1):
            time.sleep(1.3)


def work(path: str, seed: str) -> None:
    """Consume for ever."""
    open_consumer(TimerStore(path, config=CONFIG), seed).start()
    threading.Event().wait()
