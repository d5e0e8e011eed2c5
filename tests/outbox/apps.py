"""The databases of programs that put into an outbox."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timerstore
from tests.rigs.postgres import Postgres
from timerstore.outbox import Outbox, Relay

MOMENT_MS = 1_700_000_000_000


class App:
    """One program's database, with its outbox made."""

    def __init__(self, folder: Path, server: Postgres | None) -> None:
        self.server, self.outbox = server, Outbox()
        self.url = str(folder / "app.db") if server is None else server.url
        self.kind = "sqlite" if server is None else "postgres"
        db = self.connect()
        if server is None:
            db.execute("pragma journal_mode = wal")
        else:
            db.execute("drop table if exists timerstore_outbox, timerstore_outbox_relay, work")
        self.outbox.create(db)
        self.outbox.create(db)  # twice is as good as once
        db.execute("create table work (id text)")
        db.commit()
        db.close()

    def connect(self) -> Any:
        """A connection of the database's driver."""
        if self.server is None:
            return sqlite3.connect(self.url, timeout=30, check_same_thread=False)
        import psycopg

        return psycopg.connect(self.url)

    @contextmanager
    def db(self) -> Iterator[Any]:
        """The same for a block."""
        db = self.connect()
        try:
            yield db
        finally:
            db.close()

    def put(self, bodies: Any, **given: Any) -> None:
        """Put timers in one transaction."""
        with self.db() as db:
            for body in bodies:
                self.outbox.put(db, body, **{"topic": "t", **given})
            db.commit()

    def insert(self, **columns: Any) -> None:
        """Write a row without `put`, which would refuse it."""
        row = {"topic": "t", "due_ms": 1_700_000_000_000, "body": b"x"} | columns
        mark = "?" if self.server is None else "%s"
        names, marks = ", ".join(row), ", ".join([mark] * len(row))
        with self.db() as db:
            statement = f"insert into timerstore_outbox ({names}) values ({marks})"
            db.execute(statement, list(row.values()))
            db.commit()

    def rows(self, columns: str = "count(*)", where: str = "true") -> list[tuple[Any, ...]]:
        """What stands in the outbox."""
        with self.db() as db:
            select = f"select {columns} from timerstore_outbox where {where} order by 1"
            return [tuple(each) for each in db.execute(select).fetchall()]

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self.rows()[0][0])

    def execute(self, statement: str) -> None:
        """Execute a statement, and commit."""
        with self.db() as db:
            db.execute(statement)
            db.commit()


def taken(store: Any, topic: str = "t", timeout: float = 0.5) -> list[Any]:
    """All that comes of a topic."""
    found = []
    for d in store.consume(topic, timeout=timeout):
        found.append(d)
        d.ack()
    return found


def moved(app: App, store: Any) -> int:
    """Put what is committed, by a relay that ends then."""
    with_all = 0
    relay = Relay(store, app.url)
    try:
        while app.rows("count(*)", "error is null") != [(0,)]:
            with_all += relay.step()
    finally:
        relay.close()
    return with_all


def ended(relay: Relay) -> type[Exception] | None:
    """What ended a relay's thread."""
    try:
        relay.check()
    except timerstore.TimerStoreError as e:
        return type(e)
    return None


Transaction = Callable[[], Any]


@contextmanager
def transactions(app: App, how: str) -> Iterator[Transaction]:
    """What begins a transaction, which commits at the end of its block, or rolls back."""
    if how == "driver":

        @contextmanager
        def plain() -> Iterator[Any]:
            with app.db() as db, db:
                yield db

        yield plain
        return
    import sqlalchemy
    from sqlalchemy.orm import Session

    url = f"sqlite:///{app.url}"
    if app.server is not None:
        url = f"postgresql+psycopg://postgres@/postgres?host={app.server.folder}"
    engine = sqlalchemy.create_engine(url)

    @contextmanager
    def session() -> Iterator[Any]:
        with Session(engine) as session, session.begin():
            yield session

    try:
        yield engine.begin if how == "connection" else session
    finally:
        engine.dispose()
