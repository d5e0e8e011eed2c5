"""PostgreSQL: a table with an index, rows taken by DELETE … SKIP LOCKED."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.embedded import now_ms
from peers.server import Server, program, run
from peers.timers import ROWS, MissingError, is_root

_TAKE = f"""
DELETE FROM timers WHERE id IN (
  SELECT id FROM timers WHERE due_ms <= %s ORDER BY due_ms LIMIT {ROWS} FOR UPDATE SKIP LOCKED)
RETURNING body
"""


class PostgresClient:
    """One table of a server."""

    def __init__(self, where: str, pid: int) -> None:
        """Connect; `pid`: the server."""
        psycopg: Any = importlib.import_module("psycopg")
        self._where, self._pid = where, pid
        self._db = psycopg.connect(where, autocommit=True)
        self._cursor = self._db.cursor()

    def another(self) -> PostgresClient:
        """Connect once more."""
        return PostgresClient(self._where, self._pid)

    def servers(self) -> Sequence[int]:
        """Return the server."""
        return (self._pid,)

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Insert a row."""
        self._cursor.execute("INSERT INTO timers (due_ms, body) VALUES (%s, %s)", (due_ms, body))

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Copy rows in, ROWS to a transaction."""
        for at in range(0, len(bodies), ROWS):
            rows = zip(due_ms[at : at + ROWS], bodies[at : at + ROWS], strict=True)
            copying = "COPY timers (due_ms, body) FROM STDIN (FORMAT BINARY)"
            with self._cursor.copy(copying) as copy:
                copy.set_types(["int8", "bytea"])
                for row in rows:
                    copy.write_row(row)

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[int]:
        """Copy rows in; their ids follow each other because nobody else does."""
        self.put_many(due_ms, bodies)
        last = self._cursor.execute("SELECT last_value FROM timers_id_seq").fetchone()[0]
        return list(range(last + 1 - len(bodies), last + 1))

    def cancel_many(self, known: Sequence[int]) -> None:
        """Delete rows by their ids, ROWS to a transaction."""
        for at in range(0, len(known), ROWS):
            part = known[at : at + ROWS]
            self._cursor.execute("DELETE FROM timers WHERE id = ANY(%s)", (part,))
            assert self._cursor.rowcount == len(part)

    def take_due(self) -> list[bytes]:
        """Delete rows that are due and that nobody else has."""
        return [bytes(row[0]) for row in self._cursor.execute(_TAKE, (now_ms(),), prepare=True)]

    def close(self) -> None:
        """Let go of the connection."""
        self._db.close()


class Postgres(PostgresClient):
    """A server of one's own; it refuses root, so root runs it as the user `postgres`."""

    def __init__(self, folder: Path, synced: bool) -> None:
        """Make a cluster, start it, make the table."""
        try:
            psycopg: Any = importlib.import_module("psycopg")
        except ModuleNotFoundError as e:
            raise MissingError("psycopg is missing: pip install 'psycopg[binary]'") from e
        homes = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"))[::-1]]
        initdb, server = (program(name, "postgresql", *homes) for name in ("initdb", "postgres"))
        user = "postgres" if is_root() else None
        if user is not None:
            folder.parent.chmod(0o711)  # the scratch folder; nobody but its owner may list it
            for path in folder.parent.parents:
                if not path.stat().st_mode & 0o001:
                    raise MissingError(f"the user {user} may not enter {path}: use --folder")
            shutil.chown(folder, user)
        data = folder / "data"
        if not data.exists():
            run([initdb, "-D", str(data), "-A", "trust", "-U", "postgres", "-N"], user=user)
        commit = "on" if synced else "off"
        command = [server, "-D", str(data), "-k", str(folder), "-h", ""]
        command += ["-c", f"synchronous_commit={commit}", "-c", "shared_buffers=512MB"]
        command += ["-c", "max_wal_size=4GB", "-c", "wal_writer_delay=200ms"]
        where = f"host={folder} user=postgres dbname=postgres"

        def is_ready() -> bool:
            """Tell whether it takes clients: it listens before that."""
            try:
                psycopg.connect(where).close()
            except psycopg.OperationalError:
                return False
            return True

        self._server = Server(command, is_ready, user=user)
        super().__init__(where, self._server.pid)
        self._cursor.execute(
            "CREATE TABLE IF NOT EXISTS timers "
            "(id bigserial PRIMARY KEY, due_ms bigint, body bytea)"
        )
        self._cursor.execute("CREATE INDEX IF NOT EXISTS by_due ON timers (due_ms)")

    def close(self) -> None:
        """Stop the server."""
        super().close()
        self._server.stop()
