"""Moving from Celery's `countdown`: the same task with a retry there, then here.

    python examples/from_celery.py FOLDER

Celery runs with its broker in memory, its worker in a thread, as its own tests do; with a real
broker a worker holds each task with a countdown in its memory until it is due.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import timedelta
from pathlib import Path

import timerstore

charges: list[tuple[str, int]] = []
charged = threading.Event()


def charge(user: str, attempt: int) -> None:
    """Do what shall happen later; the bank is away at first."""
    charges.append((user, attempt))
    if attempt == 0:
        raise ConnectionError("the bank is away")
    charged.set()


def with_celery(_: Path) -> None:
    """Ask for each retry with a new countdown."""
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    app = Celery("shop", broker="memory://", backend="cache+memory://")

    @app.task(bind=True, max_retries=16)
    def charge_later(self: object, user: str) -> None:
        try:
            charge(user, self.request.retries)  # type: ignore[attr-defined]
        except ConnectionError as e:
            raise self.retry(countdown=1, exc=e) from e  # type: ignore[attr-defined]

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        charge_later.apply_async(("ann",), countdown=0.2)
        charged.wait(30)


def with_timerstore(folder: Path) -> None:
    """Return a `Retry`, or raise; without a delay the waits grow by themselves."""
    config = timerstore.Config(delay_levels="1s 5s 30s 2m 10m 1h")
    with timerstore.open(folder / "timers", config=config) as store:
        consumer = timerstore.Consumer(store, "shop", max_attempts=16)

        @consumer.on("charges")
        def charge_later(d: timerstore.Delivery) -> timerstore.Retry | None:
            try:
                charge(json.loads(d.body)["user"], d.attempt)
            except ConnectionError:
                return timerstore.Retry(delay=timedelta(seconds=1))
            return None

        with consumer:
            body = json.dumps({"user": "ann"}).encode()
            store.put(body, topic="charges", delay=timedelta(seconds=0.2))
            charged.wait(30)


def main() -> None:
    """Run both."""
    for way in (with_celery, with_timerstore):
        charges.clear()
        charged.clear()
        way(Path(sys.argv[1]))
        print(way.__name__, charges)
        assert charges == [("ann", 0), ("ann", 1)]


if __name__ == "__main__":
    main()
