"""PostgreSQL: a table with an index, rows taken by DELETE … SKIP LOCKED."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

from peers.server import Server, program
from peers.timers import MissingError, Timers, load, now_ms

_TABLE = "CREATE TABLE IF NOT EXISTS timers (id bigserial PRIMARY KEY, due_ms bigint, body bytea)"
_TAKE = f"""
DELETE FROM timers WHERE id IN (
  SELECT id FROM timers WHERE due_ms <= %s ORDER BY due_ms LIMIT {Timers.rows}
  FOR UPDATE SKIP LOCKED)
RETURNING body
"""


class Postgres(Timers):
    """One table of a server."""

    def __init__(self, folder: Path, synced: bool) -> None:
        self._server = start(folder, synced)
        self.pids = [self._server.pid]
        self._connect(folder)
        self._cursor.execute(_TABLE)
        self._cursor.execute("CREATE INDEX IF NOT EXISTS by_due ON timers (due_ms)")

    def _connect(self, folder: Path) -> None:
        self._folder, psycopg = folder, load("psycopg", "'psycopg[binary]'")
        self._db = psycopg.connect(_address(folder), autocommit=True)
        self._cursor = self._db.cursor()

    def another(self) -> AbstractContextManager[Timers]:
        made = Postgres.__new__(Postgres)
        made._connect(self._folder)
        return closing(made)

    def put_one(self, due_ms: int, body: bytes) -> None:
        self._cursor.execute("INSERT INTO timers (due_ms, body) VALUES (%s, %s)", (due_ms, body))

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        with self._cursor.copy("COPY timers (due_ms, body) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "bytea"])
            for row in zip(due_ms, bodies, strict=True):
                copy.write_row(row)

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[int]:
        """Copy rows in; their ids follow each other because nobody else does."""
        self.put_many(due_ms, bodies)
        last = self._cursor.execute("SELECT last_value FROM timers_id_seq").fetchone()[0]
        return list(range(last + 1 - len(bodies), last + 1))

    def cancel_rows(self, known: Sequence[int]) -> None:
        self._cursor.execute("DELETE FROM timers WHERE id = ANY(%s)", (known,))
        assert self._cursor.rowcount == len(known)

    def take_due(self) -> list[bytes]:
        """Delete rows that are due and that nobody else has."""
        return [bytes(row[0]) for row in self._cursor.execute(_TAKE, (now_ms(),), prepare=True)]

    def close(self) -> None:
        self._db.close()
        if self.pids:
            self._server.stop()


def _address(folder: Path) -> str:
    return f"host={folder} user=postgres dbname=postgres"


def start(folder: Path, synced: bool) -> Server:
    """Make a cluster, and start it; it refuses root, so root runs it as the user `postgres`."""
    psycopg = load("psycopg", "'psycopg[binary]'")
    homes = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"))[::-1]]
    initdb, server = (program(name, "postgresql", *homes) for name in ("initdb", "postgres"))
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None:
        folder.parent.chmod(0o711)  # the scratch folder; nobody but its owner may list it
        for path in folder.parent.parents:
            if not path.stat().st_mode & 0o001:
                raise MissingError(f"the user {user} may not enter {path}: use --folder")
        shutil.chown(folder, user)
    data = str(folder / "data")
    if not Path(data).exists():
        command = [initdb, "-D", data, "-A", "trust", "-U", "postgres", "-N"]
        subprocess.run(command, stdout=subprocess.DEVNULL, user=user, check=True)
    command = [server, "-D", data, "-k", str(folder), "-h", ""]
    command += ["-c", f"synchronous_commit={'on' if synced else 'off'}"]
    command += ["-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB"]
    command += ["-c", "wal_writer_delay=200ms"]

    def is_ready() -> bool:
        """Tell whether it takes clients: it listens before that."""
        try:
            psycopg.connect(_address(folder)).close()
        except psycopg.OperationalError:
            return False
        return True

    return Server(command, is_ready, user=user)
