"""The web service; each worker calls the scheduler's process."""

from __future__ import annotations

from multiprocessing.managers import BaseManager
from typing import Any

from deliver import Reminder
from fastapi import FastAPI
from scheduler import ADDRESS, SECRET

BaseManager.register("planner")
app = FastAPI()


def planner() -> Any:
    """Call the scheduler."""
    manager = BaseManager(ADDRESS, SECRET)
    manager.connect()
    return manager.planner()  # type: ignore[attr-defined]


@app.post("/reminders")
def plan(reminder: Reminder) -> dict[str, str]:
    """Plan a reminder, in place of the one before."""
    planner().plan(reminder.user, reminder.text, reminder.seconds)
    return {"user": reminder.user}


@app.delete("/reminders/{user}")
def cancel(user: str) -> dict[str, bool]:
    """Cancel it."""
    return {"cancelled": planner().cancel(user)}
