"""The peer: a SQLite table of timers, used as a careful program would."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

ROWS_PER_TRANSACTION = 1_000

_TABLE = """
CREATE TABLE IF NOT EXISTS timers (
  id INTEGER PRIMARY KEY, topic TEXT NOT NULL, due_ms INTEGER NOT NULL, body BLOB NOT NULL)
"""
_PUT = "INSERT INTO timers (topic, due_ms, body) VALUES ('default', ?, ?)"
_TAKE = f"""
DELETE FROM timers WHERE id IN (
  SELECT id FROM timers WHERE due_ms <= ? ORDER BY due_ms LIMIT {ROWS_PER_TRANSACTION})
RETURNING id, due_ms, body
"""


class SqliteTimers:
    """Timers in SQLite: write-ahead log, an index on the due time, many rows to a transaction."""

    def __init__(self, path: Path, *, synchronous: str) -> None:
        """Make the table; `synchronous`: NORMAL or FULL."""
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {synchronous}")
        self._db.execute(_TABLE)
        self._db.execute("CREATE INDEX IF NOT EXISTS by_due ON timers (due_ms)")
        self._path, self._synchronous = path, synchronous

    def fill(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Insert rows that stay, without waiting for the disk."""
        self._db.execute("PRAGMA synchronous = OFF")
        self.put_many(due_ms, bodies)
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._db.execute(f"PRAGMA synchronous = {self._synchronous}")

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Insert one row in a transaction of its own."""
        self._db.execute(_PUT, (due_ms, body))

    def get_one(self, row: int) -> tuple[int, bytes] | None:
        """Return a row by its key."""
        found: tuple[int, bytes] | None
        found = self._db.execute("SELECT due_ms, body FROM timers WHERE id = ?", (row,)).fetchone()
        return found

    def all_rows(self) -> list[tuple[int, int, bytes]]:
        """Return all rows, in the order in which they were inserted."""
        return self._db.execute("SELECT id, due_ms, body FROM timers").fetchall()

    def delete_one(self, row: int) -> None:
        """Delete a row by its key, in a transaction of its own."""
        self._db.execute("DELETE FROM timers WHERE id = ?", (row,))

    def update_one(self, row: int, due_ms: int) -> None:
        """Change when a row is due, in a transaction of its own."""
        self._db.execute("UPDATE timers SET due_ms = ? WHERE id = ?", (due_ms, row))

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Insert rows, ROWS_PER_TRANSACTION to a transaction."""
        for at in range(0, len(bodies), ROWS_PER_TRANSACTION):
            part = slice(at, at + ROWS_PER_TRANSACTION)
            self._db.execute("BEGIN")
            self._db.executemany(_PUT, zip(due_ms[part], bodies[part], strict=True))
            self._db.execute("COMMIT")

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[int]:
        """Insert rows; return their keys, which follow each other because nobody else inserts."""
        self.put_many(due_ms, bodies)
        last: int = self._db.execute("SELECT max(id) FROM timers").fetchone()[0]
        return list(range(last + 1 - len(bodies), last + 1))

    def delete_many(self, rows: Sequence[int]) -> None:
        """Delete rows by their keys, ROWS_PER_TRANSACTION to a transaction."""
        for at in range(0, len(rows), ROWS_PER_TRANSACTION):
            self._db.execute("BEGIN")
            part = [(row,) for row in rows[at : at + ROWS_PER_TRANSACTION]]
            self._db.executemany("DELETE FROM timers WHERE id = ?", part)
            self._db.execute("COMMIT")

    def another(self) -> SqliteTimers:
        """Return the same timers by a connection of the calling thread."""
        return SqliteTimers(self._path, synchronous=self._synchronous)

    def take_due(self, now_ms: int) -> list[tuple[int, int, bytes]]:
        """Remove and return up to ROWS_PER_TRANSACTION due rows, in one transaction."""
        return self._db.execute(_TAKE, (now_ms,)).fetchall()

    def close(self) -> None:
        """Close the file."""
        self._db.close()
