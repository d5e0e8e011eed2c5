"""A FastAPI service that schedules reminders: POST, look, move, cancel.

    uvicorn --app-dir examples reminders_fastapi:app

It keeps them in the folder that REMINDERS names. The store belongs to the process, so it is one
worker; its event loop puts, and handles what falls due, without a thread for each request.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import AwareDatetime, BaseModel

import timerstore
import timerstore.aio


class Reminder(BaseModel):
    """What a client asks for."""

    user: str
    text: str
    at: AwareDatetime


class Move(BaseModel):
    """Another time."""

    at: AwareDatetime


async def notify(user: str, text: str) -> None:
    """Tell the user; a mail server, or a push service, takes its time."""
    await asyncio.sleep(0.01)
    print("remind", user, text, flush=True)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store before the first request; at the end wait for handlers, then close it."""
    async with timerstore.aio.open(os.environ.get("REMINDERS", "reminders")) as store:
        consumer = timerstore.aio.Consumer(store, "notifier", concurrency=100)

        @consumer.on("reminders")
        async def remind(d: timerstore.aio.Delivery) -> None:
            await notify(d.key or "", d.body.decode())

        async with consumer:
            app.state.store = store
            yield


app = FastAPI(title="reminders", lifespan=lifespan)


async def the_store(request: Request) -> timerstore.aio.TimerStore:
    """Return the store, for the routes."""
    store: timerstore.aio.TimerStore = request.app.state.store
    return store


Store = Annotated[timerstore.aio.TimerStore, Depends(the_store)]


@app.post("/reminders", status_code=201)
async def put(asked: Reminder, store: Store) -> dict[str, str]:
    """Schedule one; durable by the time of the answer."""
    return {
        "id": await store.put(asked.text.encode(), topic="reminders", at=asked.at, key=asked.user)
    }


@app.get("/reminders/{id}")
async def get(id: str, store: Store) -> dict[str, Any]:
    """Look at one that is pending."""
    timer = await store.get(id)
    if timer is None:
        raise HTTPException(404)
    at = datetime.fromtimestamp(timer.due_ms / 1000).astimezone()
    return {"id": timer.id, "user": timer.key, "text": timer.body.decode(), "at": at}


@app.put("/reminders/{id}")
async def move(id: str, asked: Move, store: Store) -> dict[str, str]:
    """Move one; it has another id then."""
    return {"id": await store.reschedule(id, at=asked.at)}


@app.delete("/reminders/{id}")
async def cancel(id: str, store: Store) -> dict[str, bool]:
    """Cancel one; false: it is too late."""
    return {"cancelled": await store.cancel(id)}


@app.get("/health")
async def health(store: Store) -> dict[str, Any]:
    """Say whether reminders fire; for a load balancer, or an orchestrator."""
    found = await store.health()
    return {"ok": found.ok, "state": found.state, "pending": await store.count("reminders")}


@app.exception_handler(timerstore.TooLateError)
async def too_late(request: Request, error: Exception) -> JSONResponse:
    """Answer who moves what has fired."""
    return JSONResponse({"error": str(error)}, status_code=409)


@app.exception_handler(timerstore.UnknownTimerError)
async def unknown(request: Request, error: Exception) -> JSONResponse:
    """Answer who asks for what was never there."""
    return JSONResponse({"error": str(error)}, status_code=404)
