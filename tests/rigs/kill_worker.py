"""Uses a store until it is killed.

It opens the store on the wall clock, then puts, cancels, reschedules and consumes as fast as
it can, in one thread or in several.
"""

import contextlib
import os
import random
import threading
import traceback
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tests.models.archive import ArchivingDisk
from tests.small_store import small
from timerstore import StoreClosedError, TimerStore, TooLateError
from timerstore.testing import say

GROUP = "workers"
CONFIG = small(
    1 << 17,
    20 * 500,
    5248,
    precision_ms=100,
    roll_window_slots=8,
    near_count_max=1 << 16,
    flush_interval_ms=15,
    retention_ms=3_600_000,
    delay_levels="1s 2s",
)
CONFIGS = {
    "kept": CONFIG,
    "reused": replace(CONFIG, retention_ms=1, commitlog_segment_bytes=1 << 14),
    "cleaned": replace(
        CONFIG,
        retention_ms=0,
        cleaning_factor=1,
        cleaning_slack_bytes=0,
        commitlog_segment_bytes=1 << 14,
    ),
}
"""The log as a whole; segments that go at once, of which some are used again; and those that go
because what is pending in them is copied."""


class SayingDisk(ArchivingDisk):
    """Says which segment is used again."""

    def rename(self, path: Path, name: Path) -> bool:
        done = super().rename(path, name)
        if done:
            say("reused", name.name)
        return done


def open_store(path: Path | str, kind: str) -> TimerStore:
    store = TimerStore(path, config=CONFIGS[kind], disk=SayingDisk())
    store.core.upkeep.retention._wanted_ahead = lambda: 4  # type: ignore[method-assign]
    store.core.upkeep.cleaner.wait_slots = 2
    return store


class Known:
    """Ids that were put lately, for whichever thread asks."""

    def __init__(self) -> None:
        self.ids: deque[str] = deque(maxlen=200)

    def take(self, rnd: random.Random) -> str | None:
        """Return one of them; now and then it stays, to be asked about again."""
        ids = list(self.ids)
        if not ids:
            return None
        id = rnd.choice(ids)
        if rnd.random() < 0.8:
            with contextlib.suppress(ValueError):  # another thread was quicker
                self.ids.remove(id)
        return id


def use(store: TimerStore, rnd: random.Random, most_ms: int, known: Known, levels: Known) -> None:
    """Use the store until it is closed, by this thread or by another."""
    while True:
        act = rnd.random()
        if act < 0.1:
            level = rnd.randrange(1, 3)
            if act < 0.08:
                ids = [store.put(b"level", delay_level=level)]
            else:
                ids = list(store.put_many([b"level"] * 20, delay_level=level))
            levels.ids.extend(ids)
        elif act < 0.14:
            cancel(store, levels.take(rnd))
        elif act < 0.45:
            delay_ms = rnd.choice((0, rnd.randrange(60), rnd.randrange(400), rnd.randrange(4000)))
            delay_ms %= most_ms
            id = store.put(b"x" * rnd.randrange(1, 400), at_ms=store.core.clock.now_ms + delay_ms)
            known.ids.append(id)
        elif act < 0.55:
            ids = store.put_many(
                [b"many"] * 20, delay_ms=[rnd.randrange(900) % most_ms for _ in range(20)]
            )
            known.ids.extend(ids)
        elif act < 0.75:
            cancel(store, known.take(rnd))
        elif act < 0.8:
            id = known.take(rnd)
            if id is None:
                continue
            due_ms = store.core.clock.now_ms + rnd.randrange(500) % most_ms
            with contextlib.suppress(TooLateError):
                known.ids.append(store.reschedule(id, at_ms=due_ms))
        elif act < 0.95:
            store.pull("default", group=GROUP, max_count=50, timeout=0).ack()
        elif act < 0.952:
            store.close()
            return
        elif act < 0.96:
            store.flush()


def cancel(store: TimerStore, id: str | None) -> None:
    if id is not None:
        store.cancel(id)


def work(path: str, seed: str, kind: str, thread_count: int = 1) -> NoReturn:
    """Use a store for ever, with so many threads."""
    rnd, known, levels = random.Random(seed), Known(), Known()
    most_ms = 100 if kind == "reused" else 4000

    def use_until_closed(store: TimerStore, mine: random.Random) -> None:
        try:
            use(store, mine, most_ms, known, levels)
        except StoreClosedError:
            pass
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    while True:
        store = open_store(path, kind)
        generators = [random.Random(rnd.random()) for _ in range(thread_count)]
        others = [
            threading.Thread(target=use_until_closed, args=(store, each)) for each in generators[1:]
        ]
        for thread in others:
            thread.start()
        use_until_closed(store, generators[0])
        for thread in others:
            thread.join()
