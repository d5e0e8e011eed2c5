"""A process that writes to a store as fast as it can, until it is told to stop on its stdin.

Tiny segments, a checkpoint every few milliseconds, and retention that removes what was consumed at
once: whoever looks at this store meanwhile sees files come and go. With `slow` it puts ten times a
second into a store of the usual sizes. It ends with status 0 only if nothing went wrong.
"""

import contextlib
import random
import sys
import threading
import time

import timerstore
from tests.small_store import small

TINY = small(
    1 << 14,
    2_000,
    5_248,
    precision_ms=100,
    cleaning_factor=1,
    cleaning_slack_bytes=0,
    near_count_max=1 << 16,
    flush_interval_ms=20,
    retention_ms=1,
    delay_levels="1s 2s",
)

LOG_BYTES_MAX = 4 << 20


def put(store: timerstore.TimerStore, stop: threading.Event, wait_s: float) -> None:
    chance, ids, log = random.Random(7), list[str](), store.core.engine.commitlog
    while not stop.is_set():
        now_ms = time.time_ns() // 1_000_000
        kind = chance.random()
        if kind < 0.2 and wait_s == 0:
            count = chance.randrange(1, 60)
            due_ms = [now_ms + chance.randrange(3_000) for _ in range(count)]
            store.put_many([b"many" * 9] * count, topic=f"t{chance.randrange(3)}", at_ms=due_ms)
        elif kind < 0.3:
            store.put(b"level", topic="t0", delay_level=chance.choice([1, 2]))
        else:
            due_ms = now_ms + chance.choice([0, 300, 2_000, 9_000])
            ids.append(store.put(b"one" * 20, topic="t1", at_ms=due_ms, key=f"k{kind}"))
        if len(ids) > 40:
            id = ids.pop(chance.randrange(len(ids)))
            if chance.random() < 0.5:
                store.cancel(id)
            else:
                with contextlib.suppress(timerstore.TooLateError):
                    store.reschedule(id, at_ms=now_ms + 1_000)
        if wait_s:
            time.sleep(wait_s)
        # Else the readers are measured by how much there is, and run out of maps.
        while (
            wait_s == 0
            and not stop.is_set()
            and (store.count() > 5_000 or log.end - log.start > LOG_BYTES_MAX)
        ):
            time.sleep(0.01)


def consume(store: timerstore.TimerStore, stop: threading.Event, topic: str) -> None:
    while not stop.is_set():
        store.pull(topic, timeout=0.1).ack()


def main() -> None:
    path, speed = sys.argv[1:]
    stop, errors = threading.Event(), list[BaseException]()
    config = TINY if speed == "full" else timerstore.Config(durability="process")
    with timerstore.open(path, config=config) as store:
        works = [(put, (0.0 if speed == "full" else 0.1,))]
        works += [(consume, (f"t{i}",)) for i in range(3)]

        def run(work: object, args: tuple[object, ...]) -> None:
            try:
                work(store, stop, *args)  # type: ignore[operator]
            except BaseException as e:
                errors.append(e)
                print(repr(e), flush=True)

        threads = [threading.Thread(target=run, args=each) for each in works]
        for thread in threads:
            thread.start()
        while not errors and not store.stats().fired_count:
            time.sleep(0.01)  # kernels may have to be compiled first
        store.flush()
        print("ready", flush=True)
        sys.stdin.read()
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


if __name__ == "__main__":
    main()
