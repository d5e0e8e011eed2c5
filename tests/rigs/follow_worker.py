"""A store's owner, or its follower.

An owner opens the store on the wall clock, puts, cancels and consumes at a moderate rate, and says
what was acknowledged, with the time at which it was. A follower ships the store every 30 ms. Both
work until they are killed.
"""

import random
import tempfile
import time
from pathlib import Path

from tests.small_store import small
from timerstore import TimerStore
from timerstore.copies.destination import find_destination
from timerstore.copies.follower import Follower
from timerstore.services.world.background import Flag
from timerstore.testing import say

CONFIG = small(
    1 << 15,
    20 * 500,
    5248,
    precision_ms=100,
    roll_window_slots=8,
    near_count_max=1 << 16,
    flush_interval_ms=15,
    retention_ms=3_600_000,
)


def own(path: str, seed: str) -> None:
    """Use a store until killed."""
    rnd, ids = random.Random(seed), list[str]()
    store = TimerStore(path, config=CONFIG)
    while True:
        act = rnd.random()
        if act < 0.6:
            count = rnd.choice((1, 1, 5, 40))
            due = [rnd.choice((0, 200, 2_000, 60_000)) for _ in range(count)]
            put = list(store.put_many([b"x" * rnd.randrange(1, 300)] * count, delay_ms=due))
            ids = [*ids, *put][-50:]
            say("put", time.time_ns() // 1_000_000, *put)
        elif act < 0.75 and ids:
            id = ids.pop(rnd.randrange(len(ids)))
            say("cancelling", id)
            if store.cancel(id):
                say("cancelled", time.time_ns() // 1_000_000, id)
        else:
            store.pull("default", timeout=0).ack()
        time.sleep(rnd.random() * 0.01)


def work(path: str, seed: str, role: str, address: str) -> None:
    """Do what a line says."""
    if role == "own":
        own(path, seed)
    else:
        follower = Follower(
            Path(path), lambda: find_destination(address), every_s=0.03, config=CONFIG
        )
        follower.run(Flag())


def prepare() -> None:
    """Load all kernels: whoever is forked finds them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        TimerStore(f"{folder}/store", config=CONFIG) as store,
    ):
        store.cancel(store.put(b"x", at_ms=1 << 45))
        store.pull("default", timeout=0)
        store.backup(f"file://{folder}/copy")
