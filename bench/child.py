"""Measurements that need a process of their own; prints one JSON object.

child.py pending PATH COUNT    put COUNT timers for later; private memory once all are linked
child.py open PATH             time of the imports, of opening, of closing
child.py first PATH            import, open, put, fire, close, each timed
"""

import json
import sys
import time
from pathlib import Path

STARTED = time.perf_counter()


def pending(path: str, count: int) -> dict[str, float]:
    """Fill a store."""
    import machine
    import numpy as np
    import ours

    rows = np.full((ours.BATCH_COUNT, ours.BODY_BYTES), 65, np.uint8)
    with ours.open_store(Path(path), "process") as store:
        left = count
        while left > 0:
            part = rows[: min(left, len(rows))]
            store.put_many(
                part, delay_ms=np.random.randint(6 * 3_600_000, 40 * 3_600_000, len(part))
            )
            left -= len(part)
        ours.settle(store)
        assert store.count() == count
        time.sleep(1)  # what was allocated for the last flush is free again
        return {"private_bytes": machine.private_bytes(), "disk_bytes": store.stats().disk_bytes}


def reopen(path: str) -> dict[str, float]:
    import timerstore

    imported = time.perf_counter()
    store = timerstore.open(path, config=timerstore.Config(durability="process"))
    opened = time.perf_counter()
    count = store.count()
    store.close()
    closed = time.perf_counter()
    return {
        "import_s": imported - STARTED,
        "open_s": opened - imported,
        "close_s": closed - opened,
        "count": count,
    }


def first(path: str) -> dict[str, float]:
    """Make a store and let one timer fire."""
    import timerstore

    imported = time.perf_counter()
    with timerstore.open(path) as store:
        opened = time.perf_counter()
        store.put(b"first")
        put = time.perf_counter()
        for delivery in store.consume("default", timeout=120):
            delivery.ack()
            break
        fired = time.perf_counter()
    return {
        "import_s": imported - STARTED,
        "open_s": opened - imported,
        "put_s": put - opened,
        "fire_s": fired - put,
        "close_s": time.perf_counter() - fired,
        "total_s": time.perf_counter() - STARTED,
    }


def main() -> None:
    what, path, *rest = sys.argv[1:]
    if what == "pending":
        result = pending(path, int(rest[0]))
    else:
        result = {"open": reopen, "first": first}[what](path)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
