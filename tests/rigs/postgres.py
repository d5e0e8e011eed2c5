"""A PostgreSQL server of a test's own."""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REASON = "PostgreSQL or psycopg is missing: an outbox is tried on SQLite alone"


class Postgres:
    """One server, which can be stopped, as by a power cut too, and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"postgresql:///postgres?host={folder}&user=postgres"
        self.start()

    def start(self) -> None:
        from peers.postgres import start

        self.server = start(self.folder, True)

    def crash(self) -> None:
        """End it at once: it recovers when it is started."""
        self.end(signal.SIGQUIT)

    def end(self, how: int = signal.SIGINT) -> None:
        """End it; unless told otherwise, as soon as its clients are cut off."""
        os.kill(self.server.pid, how)
        self.server.stop()

    def end_connections(self, but: Any) -> int:
        """Cut off all clients but one."""
        end = (
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        return len(but.execute(end).fetchall())


@contextmanager
def running() -> Iterator[Postgres]:
    """A server while the block runs; without one, the test is skipped."""
    from peers.timers import MissingError

    # Its user may not enter pytest's folders, and names of sockets are short.
    with tempfile.TemporaryDirectory(prefix="pg") as above:
        folder = Path(above) / "d"
        folder.mkdir()
        try:
            server = Postgres(folder)
        except MissingError:
            pytest.skip(REASON)
        try:
            yield server
        finally:
            server.end()
