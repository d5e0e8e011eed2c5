"""The same delayed jobs through timerstore's consumer, huey, APScheduler.

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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import timerstore

THREADS = 20
MISSING = "not measured: pip install '.[bench]'"
_PATIENCE_S = 600.0


class Notes:
    """How late each job was, in ms; and their bodies, until somebody takes them."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.bodies = deque[bytes]()
        self.wanted = 0
        self.all = threading.Event()

    def expect(self, count: int) -> None:
        """Begin anew."""
        self.late_ms, self.wanted = [], count
        self.bodies.clear()
        self.all.clear()

    def take(self, due_ms: float, body: bytes) -> None:
        """Note one job."""
        self.late_ms.append(time.time() * 1_000 - due_ms)
        self.bodies.append(body)
        if len(self.late_ms) == self.wanted:
            self.all.set()


notes = Notes()


def job(due_ms: float, body: bytes) -> None:
    """Note one job; APScheduler finds this by its name."""
    notes.take(due_ms, body)


class Runner(Protocol):
    """A job queue with its workers."""

    def put(self, due_ms: int, body: bytes = b"job") -> str:
        """Have `job` called at a time; return the job's id."""

    def cancel(self, id: str) -> None:
        """Have a job that is not due not called."""

    def close(self) -> None:
        """Stop the workers."""


class Ours:
    """timerstore's consumer."""

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        config = timerstore.Config(durability="group" if synced else "process")
        self._store = timerstore.open(folder / "timers", config=config)
        self._consumer = timerstore.Consumer(self._store, "bench", threads=THREADS)
        self._consumer.subscribe("jobs", lambda d: notes.take(d.due_ms, d.body))
        self._consumer.start()

    def put(self, due_ms: int, body: bytes = b"job") -> str:
        """Put a timer."""
        return self._store.put(body, topic="jobs", at_ms=due_ms)

    def cancel(self, id: str) -> None:
        """Cancel a timer."""
        self._store.cancel(id)

    def close(self) -> None:
        """Close consumer and store."""
        self._consumer.close()
        self._store.close()


class Huey:
    """huey on SQLite, with its consumer's threads."""

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        """Start a consumer; its scheduler looks once a second, which is as often as it can."""
        import huey

        logging.getLogger("huey").setLevel(logging.ERROR)
        path = str(folder / "huey.db")
        queue = huey.SqliteHuey(filename=path, results=False, journal_mode="wal", fsync=synced)
        self._queue, self._task = queue, queue.task()(job)
        self._consumer = queue.create_consumer(
            workers=THREADS, periodic=False, initial_delay=0.01, max_delay=0.1, scheduler_interval=1
        )
        self._consumer._set_signal_handlers = lambda: None  # Ctrl-C and SIGTERM end the bench
        self._consumer.start()

    def put(self, due_ms: int, body: bytes = b"job") -> str:
        """Schedule a task."""
        id, delay_s = str(uuid.uuid4()), max(0.0, due_ms / 1_000 - time.time())
        self._task.schedule(args=(due_ms, body), delay=delay_s, id=id)
        return id

    def cancel(self, id: str) -> None:
        """Revoke a task: its worker looks that up when the task is due."""
        self._queue.revoke_by_id(id)

    def close(self) -> None:
        """Stop the consumer."""
        self._consumer.stop(graceful=True)


class ApScheduler:
    """APScheduler 3 with its SQLAlchemy job store on SQLite."""

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        """Start a scheduler that drops nothing for being late."""
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
        from apscheduler.schedulers.background import BackgroundScheduler
        from sqlalchemy import create_engine, event

        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        engine = create_engine(f"sqlite:///{folder / 'apscheduler.db'}")

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, _: Any) -> None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")

        self._scheduler = BackgroundScheduler(
            jobstores={"default": SQLAlchemyJobStore(engine=engine)},
            executors={"default": ThreadPoolExecutor(THREADS)},
            job_defaults={"misfire_grace_time": None, "coalesce": False},
            timezone=UTC,
        )
        self._scheduler.start()

    def put(self, due_ms: int, body: bytes = b"job") -> str:
        """Add a job with a date."""
        date = datetime.fromtimestamp(due_ms / 1_000, UTC)
        made = self._scheduler.add_job("jobs:job", "date", run_date=date, args=[due_ms, body])
        return str(made.id)

    def cancel(self, id: str) -> None:
        """Remove a job."""
        self._scheduler.remove_job(id)

    def close(self) -> None:
        """Shut the scheduler down."""
        self._scheduler.shutdown(wait=True)


RunnerType = type[Ours] | type[Huey] | type[ApScheduler]
RUNNERS: dict[str, RunnerType] = {"timerstore": Ours, "huey": Huey, "APScheduler": ApScheduler}


@dataclass(frozen=True)
class Played:
    """What one of them has reached."""

    per_second: float
    median_ms: float
    p99_ms: float


def play(
    runner: RunnerType,
    folder: Path,
    count: int,
    *,
    delay_ms: int,
    over_ms: int,
) -> Played:
    """Put `count` jobs one by one, and wait for the last.

    Without `over_ms` each is due `delay_ms` after its put; else all are put first, due at random
    milliseconds of a span of `over_ms` that begins `delay_ms` from now.
    """
    folder.mkdir()
    known: Runner = runner(folder)
    try:
        notes.expect(1)
        known.put(int(time.time() * 1_000))  # the first one compiles, connects, starts threads
        assert notes.all.wait(_PATIENCE_S)
        notes.expect(count)
        spread = np.random.default_rng(1).integers(0, max(1, over_ms), count).tolist()
        start_ms = int(time.time() * 1_000) + delay_ms
        start = time.perf_counter()
        for each in spread:
            known.put(start_ms + each if over_ms else int(time.time() * 1_000) + delay_ms)
        if over_ms and time.time() * 1_000 > start_ms:
            raise RuntimeError(f"{runner.__name__} was not ready when the first job was due")
        assert notes.all.wait(_PATIENCE_S)
        per_second = count / (time.perf_counter() - start)
    finally:
        known.close()
    median_ms, p99_ms = np.percentile(notes.late_ms, [50, 99])
    return Played(per_second, float(median_ms), float(p99_ms))
