"""A small program that uses a store, to be ended at each step."""

import sys

import timerstore
from tests.small_store import small
from timerstore.testing import say


def work(path: str, durability: str) -> None:
    """Put, cancel, move and consume; it may be called again."""
    config = config_of(durability)
    with timerstore.open(path, config=config) as store:
        for number in range(8):
            id = store.put(b"order", topic="orders", delay_ms=8 * number)
            if number % 4 == 3:
                store.cancel(id)
        far = store.put(b"far", key="far", delay_ms=90_000)
        store.put(b"far", key="gone", delay_ms=90_000)
        far = store.reschedule(far, delay_ms=80_000)
        store.cancel_key("default", "gone")
        store.cancel_many(store.put_many([b"many"] * 120, delay_ms=200)[:110])
        for d in store.consume("orders", group="g", timeout=0.05):
            say("handled", d.id)
            d.ack()


def config_of(durability: str) -> timerstore.Config:
    return small(1 << 16, 20 * 500, 5248, durability=durability, retention_ms=3_600_000)


def fail(path: str) -> None:
    sys.exit(3)


def wait(path: str) -> None:
    import time

    time.sleep(60)
