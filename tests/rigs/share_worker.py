"""One of several processes that share a store, until it is killed: it puts, cancels, consumes.

`share_worker.py FOLDER NAME`. It writes down, in files beside the store that survive a SIGKILL:
what was acknowledged to it (`put.NAME`: id, body), what it was about to cancel, or to move
(`tried.NAME`: id), what it was told is cancelled (`cancelled.NAME`), what it handled
(`handled.NAME`: id); and, with `ready.NAME`, that it has begun. SIGTERM ends it in order.

An owner kills itself too, now and then, between a call that it has made and the answer, where a
client cannot know whether it was made.
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import timerstore
from timerstore import Config, TooLateError, Tuning
from timerstore.share.shared import SharedStore
from timerstore.share.wire import Header, Part, Wire

TOPIC, GROUP = "shared", "workers"
CONFIG = Config(
    durability="process",
    flush_interval_ms=50,
    retention_ms=86_400_000,
    tuning=Tuning(commitlog_segment_bytes=1 << 24, consumequeue_segment_bytes=20 * 50_000),
)


def note(folder: Path, name: str) -> Callable[[str], None]:
    """What adds lines to a file; each is there once it returns, whatever kills the process."""
    fd = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return lambda text: void(os.write(fd, text.encode()))


def void(_: int) -> None:
    """Forget a result."""


def put(store: SharedStore, folder: Path, name: str, stop: threading.Event) -> None:
    """Put ones, and many, with a name in each body that no other has; cancel, or move, some."""
    rnd, acknowledged = random.Random(name), note(folder, f"put.{name}")
    tried, cancelled = note(folder, f"tried.{name}"), note(folder, f"cancelled.{name}")
    number = 0
    while not stop.wait(rnd.random() * 0.004):
        count = rnd.choice((1, 1, 30))
        bodies = [f"{name}-{number + i}".encode() for i in range(count)]
        number += count
        delay_ms = rnd.choice((0, 100, 700, 2_000))
        if count > 1:
            ids = list(store.put_many(bodies, topic=TOPIC, delay_ms=delay_ms))
        else:
            ids = [store.put(bodies[0], topic=TOPIC, delay=timedelta(milliseconds=delay_ms))]
        acknowledged("".join(f"{i} {b.decode()}\n" for i, b in zip(ids, bodies, strict=True)))
        if rnd.random() < 0.2:
            tried(f"{ids[0]}\n")
            if rnd.random() < 0.5:
                if store.cancel(ids[0]):
                    cancelled(f"{ids[0]}\n")
            else:
                try:
                    moved = store.reschedule(ids[0], delay=timedelta(milliseconds=300))
                except TooLateError:
                    continue
                cancelled(f"{ids[0]}\n")
                acknowledged(f"{moved} {bodies[0].decode()}\n")


def handle(store: SharedStore, folder: Path, name: str, stop: threading.Event) -> None:
    """Handle what is due."""
    handled = note(folder, f"handled.{name}")
    while not stop.is_set():
        batch = store.pull(TOPIC, group=GROUP, max_count=50, timeout=0.2)
        if len(batch):
            handled("".join(f"{each}\n" for each in batch.ids.to_pylist()))
            batch.ack()


def die_before_an_answer(seed: str, one_in: int) -> None:
    """Have the process kill itself where an owner would answer."""
    rnd, send = random.Random(seed), Wire.send

    def maybe_send(
        wire: Wire, header: Header, parts: Sequence[Part] = (), bytes_max: int | None = None
    ) -> None:
        if header.get("result") is not None and rnd.randrange(one_in) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        send(wire, header, parts, bytes_max)

    Wire.send = maybe_send  # type: ignore[method-assign]


def main(folder: Path, name: str) -> None:
    """Work until a signal says to end."""
    die_before_an_answer(name, 600)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with timerstore.open(folder / "store", config=CONFIG, share=True) as store:
        note(folder, f"ready.{name}")("\n")
        work = (put, put, handle)
        threads = [
            threading.Thread(target=each, args=(store, folder, f"{name}.{i}", stop))
            for i, each in enumerate(work)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
