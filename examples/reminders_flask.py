"""A Flask service that schedules reminders: POST, look, move, cancel.

    flask --app examples/reminders_flask.py run

It keeps them in the folder that REMINDERS names. A store belongs to one process: run the service
with threads, or with one worker process.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from datetime import datetime
from typing import Any

from flask import Flask, abort, jsonify, request

import timerstore

Notify = Callable[[str, str], None]


def add_routes(app: Flask, store: timerstore.TimerStore) -> None:
    """Let clients put, see, move, cancel reminders."""

    @app.post("/reminders")
    def put() -> Any:
        asked = request.get_json()
        try:
            at = datetime.fromisoformat(asked["at"])
            id = store.put(asked["text"].encode(), topic="reminders", at=at, key=asked["user"])
        except (KeyError, ValueError, timerstore.InvalidArgumentError) as e:
            abort(400, str(e))
        return jsonify(id=id), 201  # durable by now

    @app.get("/reminders/<id>")
    def get(id: str) -> Any:
        timer = store.get(id)
        if timer is None:
            abort(404)
        return jsonify(id=timer.id, user=timer.key, text=timer.body.decode(), due_ms=timer.due_ms)

    @app.put("/reminders/<id>")
    def move(id: str) -> Any:
        at = datetime.fromisoformat(request.get_json()["at"])
        return jsonify(id=store.reschedule(id, at=at))

    @app.delete("/reminders/<id>")
    def cancel(id: str) -> Any:
        return jsonify(cancelled=store.cancel(id))

    @app.errorhandler(timerstore.TooLateError)
    def too_late(error: timerstore.TooLateError) -> Any:
        return jsonify(error=str(error)), 409

    @app.errorhandler(timerstore.UnknownTimerError)
    def unknown(error: timerstore.UnknownTimerError) -> Any:
        return jsonify(error=str(error)), 404


def create_service(
    store: timerstore.TimerStore, notify: Notify
) -> tuple[Flask, timerstore.Consumer]:
    """Return the app, with the consumer that calls `notify(user, text)`; start it."""
    app = Flask("reminders")
    add_routes(app, store)
    consumer = timerstore.Consumer(store, "notifier")

    @consumer.on("reminders")
    def remind(d: timerstore.Delivery) -> None:
        notify(d.key or "", d.body.decode())

    return app, consumer


def create_app() -> Flask:
    """Make the app for `flask run`."""
    store = timerstore.open(os.environ.get("REMINDERS", "reminders"))
    app, consumer = create_service(store, lambda user, text: print("remind", user, text))
    consumer.start()
    atexit.register(store.close)
    atexit.register(consumer.close)  # first: the last one registered is called first
    return app
