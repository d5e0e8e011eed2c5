"""Handlers that write to a database of their own: once, however often a message comes.

A message can come again after its handler has done its work: after a crash, or a time-out. So the
handler notes the message's id in the same transaction as its work, as a primary key; if it is
there already, the work was done. docs/exactly-once.md has it as an example.
"""

from __future__ import annotations

import sqlite3
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from timerstore.errors import InvalidArgumentError
from timerstore.values.check_arguments import check_text
from timerstore.values.kinds import Duration, check_duration, whole_ms

if TYPE_CHECKING:
    from timerstore.calls.consuming.delivery import Delivery

HANDLER_BYTES_MAX: Final = 127
_ID_LENGTH: Final = 128
"""Ours have 32 characters, a broker's up to 56."""


class Done:
    """The table of what one handler has done; the database is the handler's own.

    Every call takes the connection that the handler's transaction runs on: a `sqlite3.Connection`,
    or a Connection or Session of SQLAlchemy on SQLite, PostgreSQL, MySQL or MariaDB. Nothing here
    begins or ends a transaction.
    """

    def __init__(self, handler: str = "default", *, table: str = "timerstore_done") -> None:
        """Name the handler. Each group that handles the same messages needs its own name."""
        if len(check_text(handler, "handler")) > HANDLER_BYTES_MAX:
            raise InvalidArgumentError(
                f"handler has {len(handler)} characters. Use {HANDLER_BYTES_MAX} at most."
            )
        self._handler, self._table = handler, check_table(table)

    def create(self, db: Any) -> None:
        """Make the table if there is none."""
        if isinstance(db, sqlite3.Connection):
            db.execute(
                f"create table if not exists {self._table} (handler varchar({HANDLER_BYTES_MAX}) "
                f"not null, id varchar({_ID_LENGTH}) not null, done_ms bigint not null, "
                "primary key (handler, id))"
            )
        else:
            connection = db.connection() if hasattr(db, "connection") and is_session(db) else db
            self._described().create(connection, checkfirst=True)

    def first_time(self, db: Any, message: Delivery | str) -> bool:
        """Note in this transaction that a message is done; False: it was done before.

        `message`: a delivery, or its id. Call it first. If another transaction has noted the same
        message and is not finished, the database lets this one wait, or refuses it; then the
        message comes again. A rollback takes the note back. One insert.

        >>> import sqlite3
        >>> done, db = Done("mailer"), sqlite3.connect(":memory:")
        >>> done.create(db)
        >>> [done.first_time(db, "019C") for _ in range(2)]
        [True, False]
        >>> db.close()
        """
        id = message if isinstance(message, str) else getattr(message, "id", None)
        if not isinstance(id, str):
            raise InvalidArgumentError(f"message is {message!r}. Pass a delivery, or its id.")
        row = {"handler": self._handler, "id": id, "done_ms": time.time_ns() // 1_000_000}
        refuse_autocommit(driver_of(db))
        if not isinstance(db, sqlite3.Connection):
            return bool(db.execute(self._insert(db).values(**row)).rowcount == 1)
        insert = f"insert or ignore into {self._table} values (:handler, :id, :done_ms)"
        return db.execute(insert, row).rowcount == 1

    def forget(self, db: Any, older_than: Duration) -> int:
        """Delete older notes of this handler; return how many.

        A message may come again until its group has acknowledged it, and a dead letter as long as
        it stays. Keep notes for longer than that.
        """
        length = check_duration(older_than, "older_than")
        if length < timedelta(0):
            raise InvalidArgumentError(f"older_than is {older_than!r}. Pass 0 or more.")
        before_ms = time.time_ns() // 1_000_000 - whole_ms(length)
        if isinstance(db, sqlite3.Connection):
            delete = f"delete from {self._table} where handler = ? and done_ms < ?"
            return db.execute(delete, (self._handler, before_ms)).rowcount
        table = self._described()
        old = (table.c.handler == self._handler) & (table.c.done_ms < before_ms)
        return int(db.execute(table.delete().where(old)).rowcount)

    # --- SQLAlchemy

    def _described(self) -> Any:
        from sqlalchemy import BigInteger, Column, MetaData, String, Table

        return Table(
            self._table,
            MetaData(),
            Column("handler", String(HANDLER_BYTES_MAX), primary_key=True),
            Column("id", String(_ID_LENGTH), primary_key=True),
            Column("done_ms", BigInteger, nullable=False),
        )

    def _insert(self, db: Any) -> Any:
        """Return an insert that leaves an existing row as it is, without an error."""
        bind = db.get_bind() if is_session(db) else db
        name = bind.dialect.name
        if name == "sqlite":
            from sqlalchemy.dialects.sqlite import insert as insert_sqlite

            return insert_sqlite(self._described()).on_conflict_do_nothing()
        if name == "postgresql":
            from sqlalchemy.dialects.postgresql import insert as insert_postgresql

            return insert_postgresql(self._described()).on_conflict_do_nothing()
        if name in ("mysql", "mariadb"):
            return self._described().insert().prefix_with("ignore")
        raise InvalidArgumentError(
            f"The database is {name}. Use SQLite, PostgreSQL, MySQL or MariaDB."
        )


def check_table(table: Any) -> str:
    """Return the name of a table, or refuse it."""
    if not isinstance(table, str) or not table.isidentifier() or not table.isascii():
        raise InvalidArgumentError(f"table is {table!r}. Use letters, digits and _.")
    return table


def refuse_autocommit(db: Any) -> None:
    """Refuse a driver's connection that commits each statement, and is in no transaction."""
    if isinstance(db, sqlite3.Connection):
        is_idle = not db.in_transaction
        commits = db.isolation_level is None or getattr(db, "autocommit", None) is True
    else:  # of psycopg
        is_idle = getattr(getattr(db, "info", None), "transaction_status", None) == 0
        commits = getattr(db, "autocommit", None) is True
    if commits and is_idle:
        raise InvalidArgumentError(
            "This connection commits each statement by itself, so one part could be kept while "
            'the other is lost. Execute "begin" first, or switch autocommit off.'
        )


def is_session(db: Any) -> bool:
    """Tell a Session of SQLAlchemy from a Connection."""
    return hasattr(db, "get_bind")


def driver_of(db: Any) -> Any:
    """Return the connection of the database's own driver, of SQLite's or SQLAlchemy's."""
    if isinstance(db, sqlite3.Connection):
        return db
    connection = db.connection() if is_session(db) else db
    return connection.connection.driver_connection
