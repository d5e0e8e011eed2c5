"""The tasks, for Celery's worker as for the web workers."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.schedules import crontab
from deliver import deliver, report

app = Celery("reminders", broker=os.environ.get("BROKER", "redis://localhost"))
app.conf.task_acks_late = True
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 1
app.conf.beat_schedule = {"daily": {"task": "tasks.daily", "schedule": crontab("0", "9")}}
if app.conf.broker_url.startswith("filesystem:"):
    folder = {"data_folder_in": "broker", "data_folder_out": "broker"}
    app.conf.broker_transport_options = folder | {"control_folder": "control"}


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=1, max_retries=4)
def remind(self: Any, user: str, text: str, turn: int) -> None:
    """Deliver, if it is still the user's reminder; what raises is tried again."""
    with table() as db:
        if not db.execute("SELECT 1 FROM turns WHERE user=? AND turn=?", (user, turn)).fetchone():
            return
    deliver(user, text, self.request.retries)
    with table() as db:
        db.execute("DELETE FROM turns WHERE user=? AND turn=?", (user, turn))


@app.task
def daily() -> None:
    """Report at nine."""
    report()


def plan(user: str, text: str, seconds: float) -> None:
    """Plan a reminder, in place of the one before."""
    with table() as db:
        (turn,) = db.execute("INSERT INTO last DEFAULT VALUES RETURNING turn").fetchone()
        db.execute("INSERT OR REPLACE INTO turns VALUES (?, ?)", (user, turn))
    remind.apply_async((user, text, turn), countdown=seconds)


def cancel(user: str) -> bool:
    """Cancel the reminder that is planned."""
    with table() as db:
        return db.execute("DELETE FROM turns WHERE user=?", (user,)).rowcount > 0


@contextmanager
def table() -> Iterator[sqlite3.Connection]:
    """Open the table of present reminders, for one transaction."""
    db = sqlite3.connect("turns.sqlite", timeout=30)
    try:
        with db:
            db.execute("CREATE TABLE IF NOT EXISTS turns (user TEXT PRIMARY KEY, turn INTEGER)")
            db.execute("CREATE TABLE IF NOT EXISTS last (turn INTEGER PRIMARY KEY AUTOINCREMENT)")
            yield db
    finally:
        db.close()
