"""What a handler does in its own database is done once, however often it begins."""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.together import together
from tests.small_store import SMALL
from timerstore import InvalidArgumentError, ManualClock, TimerStore
from timerstore.dedup import Done

START_MS = 1_800_000_000_000
Transaction = Callable[[], Any]


class KilledError(Exception):
    """The process ends here."""


@pytest.fixture(params=["sqlite3", "connection", "session"])
def transaction(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transaction]:
    """Begins a transaction, which commits at the end of its block, or rolls back."""
    file = tmp_path / "app.db"
    if request.param == "sqlite3":

        @contextmanager
        def plain() -> Iterator[Any]:
            db = sqlite3.connect(file, timeout=30)
            try:
                with db:
                    yield db
            finally:
                db.close()

        yield plain
        return
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(f"sqlite:///{file}", connect_args={"timeout": 30})

    @contextmanager
    def session() -> Iterator[Any]:
        with Session(engine) as session, session.begin():
            yield session

    yield engine.begin if request.param == "connection" else session
    engine.dispose()


def execute(db: Any, text: str) -> Any:
    if isinstance(db, sqlite3.Connection):
        return db.execute(text)
    import sqlalchemy

    return db.execute(sqlalchemy.text(text))


def made(transaction: Transaction, *handlers: str) -> list[Done]:
    """Tables for the work and for the notes."""
    found = [Done(handler) for handler in handlers]
    with transaction() as db:
        execute(db, "create table work (id text)")
        for each in (*found, *found):  # twice is as good as once
            each.create(db)
    return found


@pytest.mark.tier("prove", but=("sqlite3",))
def test_the_work_is_done_once(tmp_path: Path, transaction: Transaction) -> None:
    (done,) = made(transaction, "h")
    rnd, path, clock = random.Random(1), tmp_path / "s", ManualClock(START_MS)

    def handle(d: Any) -> None:
        if rnd.random() < 0.2:
            raise KilledError
        with transaction() as db:
            if done.first_time(db, d):
                if rnd.random() < 0.2:
                    raise KilledError
                execute(db, f"insert into work values ('{d.id}')")
            if rnd.random() < 0.2:
                raise KilledError
        if rnd.random() < 0.2:
            raise KilledError
        d.ack()

    with TimerStore(path, config=SMALL, clock=clock) as store:
        ids = sorted(store.put_many([b"x"] * 40, topic="t"))
    for _ in range(200):
        store = TimerStore(path, config=SMALL, clock=clock)
        try:
            left = 0
            for d in store.consume("t", timeout=0):
                left += 1
                handle(d)
        except KilledError:
            rnd.choice((store.close, store.abandon))()
        else:
            store.close()
            if not left:
                break
    with transaction() as db:
        assert sorted(row[0] for row in execute(db, "select id from work")) == ids


def test_each_handler_for_itself(transaction: Transaction) -> None:
    one, other = made(transaction, "one", "other")
    with transaction() as db:
        assert [one.first_time(db, "a"), one.first_time(db, "a")] == [True, False]
        assert other.first_time(db, "a") and one.first_time(db, "b")
    with transaction() as db:
        assert one.forget(db, timedelta(days=1)) == 0
        assert not one.first_time(db, "b")
        execute(db, "update timerstore_done set done_ms = 1 where id = 'a'")
        assert one.forget(db, timedelta(days=1)) == 1
        assert one.first_time(db, "a") and not other.first_time(db, "a")


def test_two_at_once(transaction: Transaction) -> None:
    """The second waits for the first, whose work counts if it is not rolled back."""
    (done,) = made(transaction, "h")

    def work(_: int) -> bool:
        with transaction() as db:
            first = done.first_time(db, "a")
            if first:
                execute(db, "insert into work values ('a')")
            return first

    assert sorted(together(work, range(4))) == [False, False, False, True]
    with transaction() as db:
        assert len(list(execute(db, "select id from work"))) == 1


def test_a_connection_that_commits_by_itself_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    done = Done()
    done.create(db)
    with pytest.raises(InvalidArgumentError):
        done.first_time(db, "a")
    db.execute("begin")
    assert done.first_time(db, "a")
    db.execute("rollback")
    db.execute("begin")
    assert done.first_time(db, "a")
    db.close()


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_so_is_one_of_sqlalchemy(tmp_path: Path, kind: str) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/app.db")
    done = Done()
    with engine.begin() as db:
        done.create(db)
    for commits in (True, False):
        used = engine.execution_options(isolation_level="AUTOCOMMIT") if commits else engine
        with used.connect() if kind == "connection" else Session(used) as db:
            if commits:
                with pytest.raises(InvalidArgumentError, match="commits each statement"):
                    done.first_time(db, "a")
                continue
            assert done.first_time(db, "a")
            db.rollback()
            assert done.first_time(db, "a")
    engine.dispose()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Done(""),
        lambda: Done("x" * 128),
        lambda: Done(1),  # type: ignore[arg-type]
        lambda: Done(table="a b"),
        lambda: Done(table="x; drop table y"),
        lambda: Done(table=None),  # type: ignore[arg-type]
        lambda: Done().forget(None, -timedelta(1)),
        lambda: Done().forget(None, "5"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong(make: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


def test_what_is_no_message() -> None:
    for message in (7, None, b"id"):
        with pytest.raises(InvalidArgumentError, match="Pass a delivery, or its id"):
            Done().first_time(None, message)


def test_other_databases() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.dialects import mysql, oracle, postgresql

    class Connection:
        def __init__(self, dialect: Any) -> None:
            self.dialect = dialect

    done = Done()
    for dialect, words in (
        (postgresql.dialect(), "ON CONFLICT DO NOTHING"),
        (mysql.dialect(), "INSERT ignore"),
    ):
        insert = done._insert(Connection(dialect)).values(handler="h", id="a", done_ms=1)
        assert words in str(insert.compile(dialect=dialect))
    with pytest.raises(InvalidArgumentError):
        done._insert(Connection(oracle.dialect()))
    assert sqlalchemy.__version__
