"""The web service; its workers share the store, each sends what falls due."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from deliver import Reminder, deliver, report
from fastapi import FastAPI, Request

import timerstore
from timerstore import recurring

# Seconds before each retry.
BACKOFF = [1, 2, 30, 120]


def remind(d: timerstore.Delivery) -> None:
    """Deliver; what raises is tried again."""
    deliver(d.key or "", d.body.decode(), d.attempt)


def daily(d: timerstore.Delivery) -> None:
    """Report at nine; one worker does."""
    report()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Share the store with the other workers; at the end what is being sent may end."""
    with timerstore.open("timers", share=True) as store:
        consumer = timerstore.Consumer(store, "sender", threads=4, backoff=BACKOFF, max_attempts=4)
        consumer.subscribe("reminders", remind)
        consumer.subscribe("daily", daily)
        with consumer, recurring.Schedules(store) as jobs:
            nine = recurring.cron("0 9 * * *", tz="UTC")
            jobs.start("daily", key="report", body=b"all", schedule=nine)
            app.state.store = store
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/reminders")
def plan(reminder: Reminder, request: Request) -> dict[str, str]:
    """Plan a reminder, in place of the one before."""
    body, delay = reminder.text.encode(), timedelta(seconds=reminder.seconds)
    options = {"topic": "reminders", "key": reminder.user, "replace": True}
    request.app.state.store.put(body, delay=delay, **options)
    return {"user": reminder.user}


@app.delete("/reminders/{user}")
def cancel(user: str, request: Request) -> dict[str, bool]:
    """Cancel it."""
    return {"cancelled": request.app.state.store.cancel_key("reminders", user) > 0}
