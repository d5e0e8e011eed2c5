"""A PostgreSQL server for all tests of a run, and a database for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.outbox.apps import App
from tests.rigs.postgres import Postgres, running
from tests.rigs.waiting import wait_until


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    return App(tmp_path, server)


@pytest.fixture(autouse=True)
def nobody_stays_connected(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "postgres" in request.fixturenames:
        import psycopg

        select = (
            "select query from pg_stat_activity "
            "where backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        url = request.getfixturevalue("postgres").url
        with psycopg.connect(url, autocommit=True) as db:  # a transaction sees one state of them
            wait_until(lambda: not db.execute(select).fetchall())
