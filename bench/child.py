"""Measurements that need a process of their own; prints one JSON object.

child.py pending PATH COUNT    put COUNT timers for later; private memory once all are linked
child.py open PATH             time of the imports, of opening, of closing
child.py first PATH            import, open, put, fire, close, each timed
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

STARTED_S = time.perf_counter()


class Laps:
    """Seconds of what follows each other, by name, since the process began."""

    def __init__(self) -> None:
        self.found, self._at_s = dict[str, float](), STARTED_S

    def end(self, name: str) -> None:
        """Note what has just ended."""
        now_s = time.perf_counter()
        self.found[f"{name}_s"], self._at_s = now_s - self._at_s, now_s


def pending(path: str, count: str) -> dict[str, float]:
    """Fill a store."""
    import machine
    import numpy as np
    import ours

    rows, left = np.full((ours.BATCH_COUNT, ours.BODY_BYTES), 65, np.uint8), int(count)
    with ours.open_store(Path(path), "process") as store:
        while left > 0:
            part = rows[:left]
            delay_ms = np.random.randint(6 * 3_600_000, 40 * 3_600_000, len(part))
            store.put_many(part, delay_ms=delay_ms)
            left -= len(part)
        ours.settle(store)
        assert store.count() == int(count)
        time.sleep(1)  # what was allocated for the last flush is free again
        return {"private_bytes": machine.private_bytes(), "disk_bytes": store.stats().disk_bytes}


def reopen(path: str) -> dict[str, float]:
    """Open a store, and close it."""
    import timerstore

    laps = Laps()
    laps.end("import")
    store = timerstore.open(path, config=timerstore.Config(durability="process"))
    laps.end("open")
    count = store.count()
    store.close()
    laps.end("close")
    return {**laps.found, "count": count}


def first(path: str) -> dict[str, float]:
    """Make a store and let one timer fire."""
    import timerstore

    laps = Laps()
    laps.end("import")
    with timerstore.open(path) as store:
        laps.end("open")
        store.put(b"first")
        laps.end("put")
        for delivery in store.consume("default", timeout=120):
            delivery.ack()
            break
        laps.end("fire")
    laps.end("close")
    return {**laps.found, "total_s": time.perf_counter() - STARTED_S}


if __name__ == "__main__":
    plays: dict[str, Callable[..., dict[str, float]]]
    plays = {"pending": pending, "open": reopen, "first": first}
    print(json.dumps(plays[sys.argv[1]](*sys.argv[2:])))
