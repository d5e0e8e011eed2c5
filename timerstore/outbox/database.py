"""The relay's own connection to the program's database: the same few statements for both kinds.

Each statement is a transaction. What is deleted stays deleted over a power cut, whatever the
program chose for itself: a row that came back would be put again.
"""

from __future__ import annotations

import os
import re
import select
import sqlite3
import time
from functools import partial
from typing import Any, Final

from timerstore.errors import InvalidArgumentError
from timerstore.outbox.table import as_driven
from timerstore.services.world.background import Flag
from timerstore.values.kinds import check_path

_BUSY_S: Final = 1.0
"""So long SQLite waits for a lock; then the relay tries again."""
_LOOKS_APART_S: Final = 0.004
"""So often SQLite is asked whether anything was committed."""
_PATIENCE: Final = (
    "connect_timeout=10 keepalives_idle=10 keepalives_interval=5 tcp_user_timeout=30000"
)
"""So that a server which is gone without a word is noticed, unless the address says otherwise."""
_TEXT: Final = {"client_encoding": "utf8"}
"""A database in SQL_ASCII would answer bytes."""


class SqliteDatabase:
    """A file of SQLite, which must be there: a new one would be another database."""

    error: type[Exception] = sqlite3.Error

    def __init__(self, given: str | os.PathLike[str]) -> None:
        path = re.sub(r"^sqlite(\+\w+)?:///", "", given) if isinstance(given, str) else given
        if "://" in str(path) or not (file := check_path(path).absolute()).is_file():
            raise InvalidArgumentError(
                f"database is {given!r}. Pass postgresql://…, or a file of SQLite that is there."
            )
        self._file, self._uri = file, f"{file.as_uri()}?mode=rw"
        self._inode: tuple[int, int] | None = None

    def connect(self) -> None:
        """Connect anew."""
        self._seen, self._inode = -1, self._inode_now()
        self._db = sqlite3.connect(
            self._uri, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, uri=True
        )
        self._db.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        self.execute("pragma synchronous = extra")

    def is_replaced(self) -> bool:
        """Tell whether another file was moved to the place of the one that is open."""
        return self._inode_now() != self._inode

    def _inode_now(self) -> tuple[int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def execute(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Execute in a transaction of its own; return all rows."""
        return list(self._db.execute(statement, values))

    def wait(self, stop: Flag, timeout_s: float) -> None:
        """Wait until somebody else has committed since the last wait, or may have."""
        until_s = time.monotonic() + timeout_s
        while (seen := self._db.execute("pragma data_version").fetchone()[0]) == self._seen:
            if time.monotonic() >= until_s or stop.wait(_LOOKS_APART_S):
                return
        self._seen = seen

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


class PostgresDatabase:
    """A database of PostgreSQL, by psycopg; `channel`: what a put notifies."""

    def __init__(self, address: str, channel: str) -> None:
        try:
            import psycopg
        except ImportError as e:
            raise InvalidArgumentError(
                "PostgreSQL needs the extra outbox. Run: pip install 'timerstore[outbox]'"
            ) from e
        self.error, self._make, self._channel = psycopg.Error, psycopg.connect, channel
        read = psycopg.conninfo.conninfo_to_dict
        try:
            self._given: dict[str, Any] = read(_PATIENCE) | read(address) | _TEXT
        except psycopg.Error as e:
            raise InvalidArgumentError(f"database is no address of PostgreSQL: {e}") from e

    def connect(self) -> None:
        """Connect anew, and listen."""
        self._is_told = True
        self._db = self._make(**self._given, autocommit=True)
        self._db.add_notify_handler(self._note)
        self.execute("set synchronous_commit = on")
        self.execute("set lock_timeout = '5s'")
        self.execute(f'listen "{self._channel}"')

    def is_replaced(self) -> bool:
        """Tell that it is not: the address of a server stays."""
        return False

    def _note(self, _: object) -> None:
        self._is_told = True

    def execute(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Execute in a transaction of its own; return all rows."""
        cursor = self._db.execute(as_driven(statement), values)
        return cursor.fetchall() if cursor.description else []

    def wait(self, stop: Flag, timeout_s: float) -> None:
        """Wait until somebody else has committed since the last wait, or may have."""
        if not self._is_told and not stop.is_set():
            told = select.poll()  # `select` knows 1,024 descriptors
            told.register(self._db.fileno(), select.POLLIN)
            told.poll(timeout_s * 1_000)
        self._is_told = False  # the next statement hears of what comes meanwhile

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


def database_at(given: str | os.PathLike[str], channel: str) -> SqliteDatabase | PostgresDatabase:
    """Return what an address of PostgreSQL, or a file of SQLite, names; it is not connected."""
    text = re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", str(given))
    return (
        PostgresDatabase(text, channel)
        if text.startswith("postgresql://")
        else SqliteDatabase(given)
    )
