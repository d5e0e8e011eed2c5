"""A nursery of processes that consume with many threads until they are killed.

It reads lines "path seed" from stdin. For each it forks a child, which opens the store on the wall
clock, then handles what is there; one message in ten fails. What each handler has decided is a line
of the file `handled` beside the store: id, attempt, "done" or "failed".
"""

import logging
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from timerstore import Config, Consumer, Delivery, TimerStore

GROUP, TOPIC, THREADS, MAX_ATTEMPTS = "workers", "jobs", 20, 2
CONFIG = Config(
    durability="process",
    commitlog_segment_bytes=1 << 22,
    consumequeue_segment_bytes=20 * 5000,
    flush_interval_ms=20,
    delay_levels="1s 1s 1s 1s 1s 1s",
)


class NoLuckError(Exception):
    """What a handler raises for one message in ten."""


def open_consumer(store: TimerStore, seed: int) -> Consumer:
    """A consumer that writes down what its handlers decide."""
    rnd = random.Random(seed)
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


def main() -> None:
    """Warm up, so that children find all kernels loaded, then fork them."""
    logging.disable(logging.CRITICAL)  # failures are meant
    folder = tempfile.TemporaryDirectory()
    with folder as path, TimerStore(Path(path) / "store", config=CONFIG) as store:
        store.put_many([b"warm"] * 50, topic=TOPIC)
        with open_consumer(store, 1):
            time.sleep(1.3)
    print("ready", flush=True)
    for line in sys.stdin:
        path, seed = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                open_consumer(TimerStore(path, config=CONFIG), int(seed)).start()
                threading.Event().wait()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        print("child", pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
