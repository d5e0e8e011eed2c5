"""The web service; each worker sends to the broker."""

from __future__ import annotations

import tasks
from deliver import Reminder
from fastapi import FastAPI

app = FastAPI()


@app.post("/reminders")
def plan(reminder: Reminder) -> dict[str, str]:
    """Plan a reminder, in place of the one before."""
    tasks.plan(reminder.user, reminder.text, reminder.seconds)
    return {"user": reminder.user}


@app.delete("/reminders/{user}")
def cancel(user: str) -> dict[str, bool]:
    """Cancel it."""
    return {"cancelled": tasks.cancel(user)}
