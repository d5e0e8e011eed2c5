"""A small program whose messages expire, to be ended at each step."""

import time

import timerstore
from tests.rigs.orders import config_of
from timerstore.testing import say


def work(path: str) -> None:
    """Put what expires soon and what does not, and handle it; it may be called again."""
    with timerstore.open(path, config=config_of("group")) as store:
        for number in range(6):
            now_ms = time.time_ns() // 1_000_000
            last_ms = now_ms + (3_600_000 if number % 2 else -1)
            say("put", store.put(b"x", topic="t", at_ms=now_ms - 5, expires_ms=last_ms))

        def handle(d: timerstore.Delivery) -> None:
            is_late = d.expires_ms is None or d.expires_ms < d.fired_ms
            say("late" if is_late else "came", d.id)

        consumer = timerstore.Consumer(store, "g", threads=2, expired="dead_letter")
        consumer.subscribe("t", handle)
        with consumer:
            for _ in range(2_000):
                groups = [g for g in store.stats().groups if g.topic == "t"]
                if store.count() == 0 and groups and groups[0].lag_count == 0:
                    return
                time.sleep(0.005)
        raise TimeoutError("not all was handled")
