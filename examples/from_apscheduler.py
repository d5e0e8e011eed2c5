"""Moving from APScheduler 3: the same three jobs there, then here.

python examples/from_apscheduler.py FOLDER
"""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import timerstore

sent: list[str] = []
all_sent = threading.Event()


def send(text: str) -> None:
    """Do what shall happen later."""
    sent.append(text)
    if len(sent) == 2:
        all_sent.set()


def with_apscheduler(folder: Path) -> None:
    """Jobs are calls, pickled into a table that a thread looks through."""
    from apscheduler.executors.pool import ThreadPoolExecutor
    from apscheduler.schedulers.background import BackgroundScheduler

    scheduler = BackgroundScheduler(
        jobstores={"default": {"type": "sqlalchemy", "url": f"sqlite:///{folder / 'jobs.db'}"}},
        executors={"default": ThreadPoolExecutor(20)},
        # Else a job that is a second late is dropped.
        job_defaults={"misfire_grace_time": None},
        timezone=UTC,
    )
    scheduler.start()
    now = datetime.now(UTC)
    for text, after in (("first", 0.1), ("second", 0.2)):
        scheduler.add_job(send, "date", run_date=now + timedelta(seconds=after), args=[text])
    job = scheduler.add_job(send, "date", run_date=now + timedelta(hours=1), args=["never"])
    scheduler.reschedule_job(job.id, trigger="date", run_date=now + timedelta(hours=2))
    scheduler.remove_job(job.id)
    all_sent.wait(30)
    scheduler.shutdown()


def with_timerstore(folder: Path) -> None:
    """Timers are bytes; which function gets them is said where they are consumed."""
    with timerstore.open(folder / "timers") as store:
        consumer = timerstore.Consumer(store, "sender", threads=20)
        consumer.subscribe("texts", lambda d: send(d.body.decode()))
        with consumer:
            now = datetime.now(UTC)
            for text, after in (("first", 0.1), ("second", 0.2)):
                store.put(text.encode(), topic="texts", at=now + timedelta(seconds=after))
            id = store.put(b"never", topic="texts", at=now + timedelta(hours=1))
            id = store.reschedule(id, at=now + timedelta(hours=2))
            assert store.cancel(id)
            all_sent.wait(30)


def main() -> None:
    """Run both."""
    for way in (with_apscheduler, with_timerstore):
        sent.clear()
        all_sent.clear()
        way(Path(sys.argv[1]))
        print(way.__name__, sent)
        assert sent == ["first", "second"]


if __name__ == "__main__":
    main()
