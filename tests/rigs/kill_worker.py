"""A nursery of processes that use a store until they are killed.

It reads lines "path seed kind" from stdin. For each it forks a child, which opens the store on
the wall clock, then puts, cancels, reschedules and consumes as fast as it can. It says what it is
about to do, then what was acknowledged, a line each, on stdout. The nursery says "child PID", then
waits for its end. Forking spares each child the imports.
"""

import os
import random
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tests.models.archive import ArchivingDisk
from timerstore import Config, TimerStore, TooLateError

GROUP = "workers"
CONFIG = Config(
    durability="process",
    precision_ms=100,
    roll_window_slots=8,
    wheel_slot_count=128,
    commitlog_segment_bytes=1 << 17,
    retention_ms=3_600_000,
    consumequeue_segment_bytes=20 * 500,
    timerlog_segment_bytes=5248,
    flush_interval_ms=15,
    near_count_max=1 << 16,
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
    store.retention._wanted_ahead = lambda: 4  # type: ignore[method-assign]
    store.cleaner.leave_slots = 2
    return store


def say(*words: object) -> None:
    """One line to the one who kills; what was written before the kill is read."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def work(store: TimerStore, rnd: random.Random, kind: str) -> NoReturn:
    """Use the store for ever."""
    known: list[str] = []
    most_ms = 100 if kind == "reused" else 4000
    in_levels: list[str] = []
    while True:
        act = rnd.random()
        if act < 0.1:
            level = rnd.randrange(1, 3)
            if act < 0.08:
                ids = [store.put(b"level", delay_level=level)]
            else:
                ids = list(store.put_many([b"level"] * 20, delay_level=level))
            for id in ids:
                say("put", id)
            in_levels += ids
        elif act < 0.14 and in_levels:
            id = in_levels.pop(rnd.randrange(len(in_levels)))
            say("cancelling", id)
            say("cancelled" if store.cancel(id) else "late", id)
        elif act < 0.45:
            delay_ms = rnd.choice((0, rnd.randrange(60), rnd.randrange(400), rnd.randrange(4000)))
            delay_ms %= most_ms
            id = store.put(b"x" * rnd.randrange(1, 400), at_ms=store.clock.now_ms + delay_ms)
            say("put", id)
            known.append(id)
        elif act < 0.55:
            ids = store.put_many(
                [b"many"] * 20, delay_ms=[rnd.randrange(900) % most_ms for _ in range(20)]
            )
            known += ids
            for id in ids:
                say("put", id)
        elif act < 0.75 and known:
            id = known.pop(rnd.randrange(len(known)))
            say("cancelling", id)
            say("cancelled" if store.cancel(id) else "late", id)
        elif act < 0.8 and known:
            id = known.pop(rnd.randrange(len(known)))
            say("cancelling", id)
            try:
                new = store.reschedule(id, at_ms=store.clock.now_ms + rnd.randrange(500) % most_ms)
            except TooLateError:
                say("late", id)
            else:
                say("moved", id, new)
                known.append(new)
        elif act < 0.95:
            batch = store.pull("default", group=GROUP, max_count=50, timeout=0)
            for id in batch.ids.to_pylist():
                say("got", id)
            batch.ack()
        elif act < 0.952:
            store.close()
            store = open_store(store.path, kind)
        del known[:-200], in_levels[:-200]


def main() -> None:
    """Warm up, so that children find all kernels loaded, then fork them."""
    with tempfile.TemporaryDirectory() as folder, TimerStore(folder, config=CONFIG) as store:
        for id in store.put_many([b"warm"] * 3, delay_ms=[0, 50, 5000]):
            store.cancel(id)
        store.reschedule(store.put(b"x", at_ms=store.clock.now_ms + 9000), at_ms=10**13)
        store.cancel_many(store.put_many([b"warm"] * 2, delay_level=1)[1:])
        store.put(b"warm", delay_level=1)
        store.pull("default", timeout=0.3).ack()
        store.pull("default", timeout=3).ack()
    say("ready")
    for line in sys.stdin:
        path, seed, kind = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                store = open_store(path, kind)
                say("open")
                work(store, random.Random(int(seed)), kind)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        say("child", pid)
        _, status = os.waitpid(pid, 0)
        say("ended", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
