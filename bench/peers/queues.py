"""huey, APScheduler: job queues in this process, whose jobs are what comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import jobs
from jobs import Runner

from peers.embedded import InProcess
from peers.timers import MissingError


class Queue(InProcess):
    """A job queue with its workers."""

    def __init__(self, start: Callable[[], Runner]) -> None:
        try:
            self._jobs = start()
        except ModuleNotFoundError as e:
            raise MissingError(f"{e.name} is missing: pip install '.[bench]'") from e
        jobs.notes.expect(0)

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Put a job."""
        self._jobs.put(due_ms, body)

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Put jobs one by one: there is no other way."""
        self.put_known(due_ms, bodies)

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[str]:
        """Put jobs; return their ids."""
        return [self._jobs.put(due, body) for due, body in zip(due_ms, bodies, strict=True)]

    def cancel_many(self, known: Sequence[str]) -> None:
        """Cancel jobs one by one."""
        for id in known:
            self._jobs.cancel(id)

    def take_due(self) -> list[bytes]:
        """Return the bodies of the jobs that were called."""
        bodies, came = list[bytes](), jobs.notes.bodies
        while came:
            bodies.append(came.popleft())
        return bodies

    def close(self) -> None:
        """Stop the workers."""
        self._jobs.close()


def huey(folder: Path, synced: bool) -> Queue:
    """Start huey on SQLite."""
    return Queue(lambda: jobs.Huey(folder, synced=synced))


def apscheduler(folder: Path, synced: bool) -> Queue:
    """Start APScheduler on SQLite."""
    return Queue(lambda: jobs.ApScheduler(folder, synced=synced))
