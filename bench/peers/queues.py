"""timerstore's consumer, huey, APScheduler: job queues in this process, whose jobs are what comes.

Each is set up as a careful program would: 20 threads, and SQLite with a write-ahead log, in which
what is written is safe from a crash of the process, as with `durability="process"`; `synced`: each
put is on the disk on return. A job does nothing but note how late it is.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import timerstore
from peers.embedded import BENCH
from peers.timers import Timers, load, now_ms

OURS, THREADS = "timerstore", 20
_PATIENCE_S = 600.0


class Notes:
    """How late each job was, in ms; and their bodies, until somebody takes them."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.bodies = deque[bytes]()
        self.wanted = 0
        self.all = threading.Event()

    def expect(self, count: int) -> None:
        self.late_ms, self.wanted = [], count
        self.bodies.clear()
        self.all.clear()

    def take(self, due_ms: float, body: bytes) -> None:
        self.late_ms.append(time.time() * 1_000 - due_ms)
        self.bodies.append(body)
        if len(self.late_ms) == self.wanted:
            self.all.set()


notes = Notes()


def job(due_ms: float, body: bytes) -> None:
    """Note one job; APScheduler finds this by its name."""
    notes.take(due_ms, body)


class Queue(Timers):
    """A job queue with its workers, which are given jobs one by one: there is no other way."""

    def __init__(self) -> None:
        notes.expect(0)

    def cancel(self, id: str) -> None:
        """Have a job that is not due not called."""
        raise NotImplementedError

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[str]:
        return [self.put_one(due, body) for due, body in zip(due_ms, bodies, strict=True)]

    def cancel_rows(self, known: Sequence[str]) -> None:
        for id in known:
            self.cancel(id)

    def take_due(self) -> list[bytes]:
        """Return the bodies of the jobs that were called."""
        return [notes.bodies.popleft() for _ in range(len(notes.bodies))]


class OurConsumer(Queue):
    """timerstore's consumer."""

    def __init__(self, folder: Path, synced: bool) -> None:
        super().__init__()
        config = timerstore.Config(durability="group" if synced else "process")
        self._store = timerstore.open(folder / "timers", config=config)
        self._consumer = timerstore.Consumer(self._store, "bench", threads=THREADS)
        self._consumer.subscribe("jobs", lambda d: notes.take(d.due_ms, d.body))
        self._consumer.start()

    def put_one(self, due_ms: int, body: bytes) -> str:
        return self._store.put(body, topic="jobs", at_ms=due_ms)

    def cancel(self, id: str) -> None:
        self._store.cancel(id)

    def close(self) -> None:
        self._consumer.close()
        self._store.close()


class Huey(Queue):
    """huey on SQLite; its scheduler looks once a second, which is as often as it can."""

    def __init__(self, folder: Path, synced: bool) -> None:
        huey = load("huey", BENCH)
        super().__init__()
        logging.getLogger("huey").setLevel(logging.ERROR)
        path = str(folder / "huey.db")
        queue = huey.SqliteHuey(filename=path, results=False, journal_mode="wal", fsync=synced)
        self._queue, self._task = queue, queue.task()(job)
        self._consumer = queue.create_consumer(
            workers=THREADS, periodic=False, initial_delay=0.01, max_delay=0.1, scheduler_interval=1
        )
        self._consumer._set_signal_handlers = lambda: None  # Ctrl-C and SIGTERM end the bench
        self._consumer.start()

    def put_one(self, due_ms: int, body: bytes) -> str:
        id, delay_s = str(uuid.uuid4()), max(0.0, due_ms / 1_000 - time.time())
        self._task.schedule(args=(due_ms, body), delay=delay_s, id=id)
        return id

    def cancel(self, id: str) -> None:
        """Revoke a task: its worker looks that up when the task is due."""
        self._queue.revoke_by_id(id)

    def close(self) -> None:
        self._consumer.stop(graceful=True)


class ApScheduler(Queue):
    """APScheduler 3 with its SQLAlchemy job store on SQLite, which drops nothing for being late."""

    def __init__(self, folder: Path, synced: bool) -> None:
        pools = load("apscheduler.executors.pool", BENCH)
        stores = load("apscheduler.jobstores.sqlalchemy", BENCH)
        schedulers = load("apscheduler.schedulers.background", BENCH)
        alchemy = load("sqlalchemy", BENCH)
        super().__init__()
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        engine = alchemy.create_engine(f"sqlite:///{folder / 'apscheduler.db'}")

        @alchemy.event.listens_for(engine, "connect")  # type: ignore[untyped-decorator]
        def set_up(connection: Any, _: Any) -> None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")

        self._scheduler = schedulers.BackgroundScheduler(
            jobstores={"default": stores.SQLAlchemyJobStore(engine=engine)},
            executors={"default": pools.ThreadPoolExecutor(THREADS)},
            job_defaults={"misfire_grace_time": None, "coalesce": False},
            timezone=UTC,
        )
        self._scheduler.start()

    def put_one(self, due_ms: int, body: bytes) -> str:
        date, name = datetime.fromtimestamp(due_ms / 1_000, UTC), f"{__name__}:job"
        return str(self._scheduler.add_job(name, "date", run_date=date, args=[due_ms, body]).id)

    def cancel(self, id: str) -> None:
        self._scheduler.remove_job(id)

    def close(self) -> None:
        self._scheduler.shutdown(wait=True)


QUEUES: dict[str, type[OurConsumer | Huey | ApScheduler]] = {
    OURS: OurConsumer,
    "huey": Huey,
    "APScheduler": ApScheduler,
}


def play(name: str, folder: Path, count: int, *, delay_ms: int, over_ms: int) -> list[float]:
    """Put `count` jobs one by one, and wait for the last; return how late they were, in ms.

    All are put before the first is due; they are due at random milliseconds of a span of `over_ms`
    that begins `delay_ms` from now.
    """
    queue = QUEUES[name](folder, False)
    try:
        notes.expect(1)
        queue.put_one(now_ms(), b"job")  # the first one compiles, connects, starts threads
        assert notes.all.wait(_PATIENCE_S)
        notes.expect(count)
        start_ms = now_ms() + delay_ms
        for after_ms in np.random.default_rng(1).integers(0, over_ms, count).tolist():
            queue.put_one(start_ms + after_ms, b"job")
        if now_ms() > start_ms:
            raise RuntimeError(f"{name} was not ready when the first job was due")
        assert notes.all.wait(_PATIENCE_S)
    finally:
        queue.close()
    return notes.late_ms
