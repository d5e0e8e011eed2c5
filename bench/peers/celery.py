"""Celery on Redis: tasks with an ETA, whose workers send what comes to this process."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a worker
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import redis
from peers.server import Server
from peers.timers import Timers, load

_TASK = "bench.came"
_DATAGRAM_BYTES = 16_384
_YEAR_S = 365 * 86_400
_PROCESSES = 2


def application(folder: Path) -> Any:
    """Return the application, whose broker is below a folder.

    A task that waits for longer than the visibility timeout would be handed out again.
    """
    celery, _ = load("celery", "'celery[redis]'"), load("redis", "'celery[redis]'")
    app = celery.Celery("bench", broker=f"redis+socket://{folder / 'redis.sock'}")
    app.conf.update(
        broker_transport_options={"visibility_timeout": _YEAR_S},
        task_ignore_result=True,
        worker_prefetch_multiplier=100,
        worker_hijack_root_logger=False,
        enable_utc=True,
    )
    return app


class Celery(Timers):
    """Redis, a worker with two processes, the application; tasks are sent one by one."""

    def __init__(self, folder: Path, synced: bool) -> None:
        """Start all; wait for the worker."""
        self._app = app = application(folder)
        broker = redis.start(folder, synced)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = folder / "came.sock"
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        command = [sys.executable, "-P", __file__, str(folder)]
        worker = Server(command, lambda: bool(app.control.ping(timeout=0.2)))
        self._servers = worker, broker
        self.pids = [each.pid for each in self._servers]

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[str]:
        ids = list[str]()
        with self._app.producer_pool.acquire(block=True) as producer:
            for due, body in zip(due_ms, bodies, strict=True):
                eta, words = datetime.fromtimestamp(due / 1_000, UTC), body.decode()
                sent = self._app.send_task(_TASK, (words,), eta=eta, producer=producer)
                ids.append(str(sent.id))
        return ids

    def cancel_many(self, known: Sequence[str]) -> None:
        """Tell the worker, in one message, and wait for its answer."""
        assert self._app.control.revoke(list(known), reply=True, timeout=60, limit=1)

    def take_due(self) -> list[bytes]:
        """Return what the worker's processes have sent."""
        bodies = list[bytes]()
        try:
            while True:
                bodies.append(self._socket.recv(_DATAGRAM_BYTES))
        except BlockingIOError:
            return bodies

    def close(self) -> None:
        self._app.close()
        for each in self._servers:
            each.stop()
        self._socket.close()


def work(folder: Path) -> None:
    """Be the worker."""
    app, came = application(folder), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def note(body: str) -> None:
        came.sendto(body.encode(), str(folder / "came.sock"))

    app.task(name=_TASK)(note)
    os.chdir(folder)
    words = ["worker", "--pool=prefork", f"--concurrency={_PROCESSES}", "--loglevel=ERROR"]
    app.worker_main([*words, "--without-gossip", "--without-mingle", "--without-heartbeat"])


if __name__ == "__main__":
    work(Path(sys.argv[1]))
