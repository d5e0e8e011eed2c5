"""A timer is put if, and only if, the transaction that put it commits; and once."""

import fcntl
import itertools
import json
import os
import random
import resource
import socket
import sqlite3
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import timerstore
from tests.cli.shell import finish, process
from tests.outbox.apps import MOMENT_MS, App, ended, moved, taken, transactions
from tests.rigs.together import together
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL, small
from tests.tiers import SEED, how_many
from timerstore import InvalidArgumentError, TimerStore
from timerstore.outbox import Outbox, Relay
from timerstore.outbox import relay as relay_module
from timerstore.outbox.table import CONTENT_BYTES_MAX, database_at
from timerstore.services.world.background import Flag


class KilledError(Exception):
    """The process ends here."""


# --- putting


@pytest.mark.parametrize("how", ["driver", "connection", "session"])
def test_it_is_put_if_the_transaction_commits(app: App, tmp_path: Path, how: str) -> None:
    if how != "driver":
        pytest.importorskip("sqlalchemy")
    at = datetime(2090, 1, 2, tzinfo=UTC)
    with transactions(app, how) as transaction:
        with transaction() as db:
            given = {"topic": "t", "key": "k", "tag": "g", "properties": {"a": "ä", "b": "2"}}
            app.outbox.put(db, b"\0one", at=at, **given)
            app.outbox.put(db, b"two", topic="t", delay=0)
        with suppress(KilledError), transaction() as db:
            app.outbox.put(db, b"rolled back", topic="t")
            raise KilledError
    assert app.count == 2
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        assert moved(app, store) == 2
        (timer,) = store.pending(topic="t", start=datetime.now(UTC))
        assert (timer.body, timer.due_ms) == (b"\0one", int(at.timestamp() * 1000))
        assert (timer.key, timer.tag) == ("k", "g")
        assert timer.properties == {"a": "ä", "b": "2"}
        assert [d.body for d in taken(store)] == [b"two"]
    assert app.count == 0


def test_a_delay_counts_from_the_put(app: App, tmp_path: Path) -> None:
    before = datetime.now(UTC)
    app.put([b"x"], delay=timedelta(hours=1))
    app.put([b"y"], delay_ms=3_600_000)
    ((first,), (second,)) = app.rows("due_ms")
    assert 0 <= first - 3_600_000 - int(before.timestamp() * 1000) < 600_000
    assert first <= second


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"body": "text"}, "body"),
        ({"body": b""}, "empty"),
        ({"body": bytes(CONTENT_BYTES_MAX + 1)}, "Pass .* at most"),
        ({"topic": "no spaces"}, "topic"),
        ({"topic": None}, "topic"),
        ({"key": ""}, "key"),
        ({"tag": 7}, "tag"),
        ({"properties": {"DELAY": "1"}}, "belongs to the system"),
        ({"properties": {"a": 1}}, "Pass a str"),
        ({"delay": 1, "at_ms": 1}, "exclude"),
        ({"at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"at_ms": 1 << 60}, "9999"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_put(given: Any, text: str) -> None:
    db = sqlite3.connect(":memory:")
    outbox = Outbox()
    outbox.create(db)
    with pytest.raises(InvalidArgumentError, match=text):
        outbox.put(db, **{"body": b"x", **given})
    assert not db.execute("select * from timerstore_outbox").fetchall()
    db.close()


@pytest.mark.parametrize("table", ["a b", "x; drop table y", "", None, "ä", "x" * 51])
def test_what_is_no_table(table: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Outbox(table=table)


def test_a_connection_that_commits_by_itself_is_refused(app: App) -> None:
    with app.db() as db:
        if app.server is None:
            db.isolation_level = None
        else:
            db.autocommit = True
        with pytest.raises(InvalidArgumentError, match="commits each statement"):
            app.outbox.put(db, b"x")
        db.execute("begin")
        app.outbox.put(db, b"x")
        db.execute("commit")
    assert app.count == 1


def test_what_is_no_connection() -> None:
    class Awaited:
        async def execute(self) -> None: ...

    for db, text in ((None, "Pass a connection"), (Awaited(), "run_sync"), (7, "Pass a conn")):
        with pytest.raises(InvalidArgumentError, match=text):
            Outbox().put(db, b"x")


def test_other_databases_are_refused() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.dialects import mysql

    class Connection:
        dialect = mysql.dialect()

    for db in (Connection(), sqlalchemy.create_engine("sqlite://")):
        with pytest.raises(InvalidArgumentError, match="on SQLite or PostgreSQL"):
            Outbox().put(db, b"x")


def test_connections_that_a_program_derives(postgres: Any, tmp_path: Path) -> None:
    import psycopg

    class Connection(psycopg.Connection[Any]):
        pass

    app = App(tmp_path, postgres)
    with Connection.connect(app.url, cursor_factory=psycopg.RawCursor) as db:
        app.outbox.put(db, b"a", key="k")
    assert app.rows("body, key") == [(b"a", "k")]


def test_a_nul_that_postgresql_does_not_keep(postgres: Any, tmp_path: Path) -> None:
    app = App(tmp_path, postgres)
    with app.db() as db:
        given: Any
        for given in ({"key": "a\0b"}, {"tag": "\0"}):
            with pytest.raises(InvalidArgumentError, match="NUL"):
                app.outbox.put(db, b"x", **given)
        app.outbox.put(db, b"x", topic="t", properties={"a": "\0"})
        db.commit()
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        assert moved(app, store) == 1
        assert [d.properties for d in taken(store)] == [{"a": "\0"}]


def test_many_that_make_the_tables_at_once(postgres: Any, tmp_path: Path) -> None:
    app = App(tmp_path, postgres)
    for _ in range(5):
        app.execute("drop table timerstore_outbox, timerstore_outbox_relay")
        dbs = [app.connect() for _ in range(4)]

        def make(i: int, dbs: Any = dbs) -> None:
            app.outbox.create(dbs[i])
            dbs[i].commit()

        together(make, range(4))
        for db in dbs:
            db.close()
        assert app.count == 0


# --- each row once


@pytest.mark.slow
@pytest.mark.promise
def test_each_row_is_put_once_over_ends_at_any_place(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay ends before or after each of its calls; what was put is consumed meanwhile."""
    rnd, path, seen = random.Random(SEED), tmp_path / "s", Counter[bytes]()
    count, lives = 0, how_many("OUTBOX_LIVES", 40, 400)
    rate = 0.0

    def fragile(call: Any) -> Any:
        def made(*given: Any, **more: Any) -> Any:
            if rnd.random() < rate:
                raise KilledError
            result = call(*given, **more)
            if rnd.random() < rate:
                raise KilledError
            return result

        return made

    for name in ("_hand_on", "_finish", "_execute", "_begin"):
        monkeypatch.setattr(Relay, name, fragile(getattr(Relay, name)))
    monkeypatch.setattr(
        timerstore.Delivery, "ack_and_put_many", fragile(timerstore.Delivery.ack_and_put_many)
    )
    monkeypatch.setattr(relay_module, "LOOK_S", 0.05)
    for life in range(lives):
        store, rate = TimerStore(path, config=SMALL), 0.0 if life == lives - 1 else 0.1
        relay = Relay(store, app.url)
        try:
            for _ in range(3):
                new = rnd.randrange(4)
                app.put([b"%d" % (count + i) for i in range(new)])
                count += new
                relay.step()
            while not rate and app.count:
                relay.step()
        except KilledError:
            pass
        rate = 0.0
        for d in store.consume("t", timeout=0.02):
            seen[d.body] += 1
            d.ack()
        if rnd.random() < 0.5:
            relay.close()
            store.close()
        else:
            store.flush()  # the judge's acknowledgements, which a kill would forget
            store.abandon()
            relay._turn = None
            relay.close()
    with TimerStore(path, config=SMALL) as store:
        seen.update(d.body for d in taken(store))
    assert app.count == 0
    assert seen == Counter(b"%d" % i for i in range(count))


def test_a_row_that_commits_late_is_not_missed(postgres: Any, tmp_path: Path) -> None:
    """A long transaction has a smaller number than those that committed before it."""
    app = App(tmp_path, postgres)
    with TimerStore(tmp_path / "s", config=SMALL) as store, app.db() as slow:
        app.outbox.put(slow, b"slow", topic="t")
        app.put([b"quick"])
        assert moved(app, store) == 1
        slow.commit()
        assert moved(app, store) == 1
        assert [d.body for d in taken(store)] == [b"quick", b"slow"]


def test_rows_of_a_key_keep_their_order(app: App, tmp_path: Path) -> None:
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        for start in range(0, 60, 20):
            for i in range(start, start + 20):
                app.put([b"%d" % i], at_ms=MOMENT_MS, key=f"k{i % 3}")
            moved(app, store)
        found = [(d.key, int(d.body)) for d in taken(store)]
    for key in ("k0", "k1", "k2"):
        mine = [number for each, number in found if each == key]
        assert mine == sorted(mine) and len(mine) == 20


def test_numbers_that_come_again_are_other_rows(app: App, tmp_path: Path) -> None:
    """The table was emptied while the turn named rows: those with their numbers are new."""
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        app.put([b"a", b"b"])
        moved(app, store)
        number = 1
        app.insert(id=number, body=b"new")
        assert moved(app, store) == 1
        assert Counter(d.body for d in taken(store)) == Counter([b"a", b"b", b"new"])


def test_rows_of_many_bytes_go_in_parts(app: App, tmp_path: Path) -> None:
    largest = bytes(CONTENT_BYTES_MAX)
    app.put([b"first", largest, b"x" * 1_000_000, b"y" * 2_000_000, largest, b"last"])
    with TimerStore(tmp_path / "s", config=small(log_bytes=1 << 23)) as store:
        assert moved(app, store) == 6
        sizes = [len(d.body) for d in taken(store)]
    assert sizes == [5, len(largest), 1_000_000, 2_000_000, len(largest), 4]


@pytest.mark.parametrize(
    "bodies",
    [
        [b"%d" % i for i in range(40)],
        [bytes(1_600_000), b"x" * 3_000_000, b"last"],
    ],
    ids=["refused", "large"],
)
def test_rows_that_another_relay_puts_between_two_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bodies: list[bytes]
) -> None:
    app = App(tmp_path, None)
    app.put(bodies[:-1], at_ms=MOMENT_MS)
    if len(bodies) > 3:
        app.insert(topic="no spaces")
    app.put(bodies[-1:], at_ms=MOMENT_MS)
    with TimerStore(tmp_path / "s", config=small(log_bytes=1 << 23)) as store:
        relay, other = Relay(store, app.url), Relay(store, app.url)
        hand_on = relay._hand_on

        def cut_in(*given: Any) -> bool:
            is_ours = hand_on(*given)
            other.step()
            other.close()
            return is_ours

        monkeypatch.setattr(relay, "_hand_on", cut_in)
        while app.rows("count(*)", "error is null") != [(0,)]:
            relay.step()
        relay.close()
        assert [d.body for d in taken(store)] == bodies


# --- many relays, other stores


def test_many_relays_put_each_row_once(app: App, tmp_path: Path) -> None:
    path, count = tmp_path / "s", 300
    with timerstore.open(path, config=SMALL, share=True) as store:
        stores = [timerstore.open(path, config=SMALL, share=True) for _ in range(2)]
        relays = [Relay(each, app.url) for each in (store, store, *stores)]
        together(lambda i: relays[i].__enter__(), range(len(relays)))

        def fill(which: int) -> None:
            for i in range(which, count, 3):
                app.put([b"%d" % i])

        together(fill, range(3))
        for each in relays[:-1]:  # the last one goes on, whoever has the turn
            each.close()
        app.put([b"last"])
        wait_until(lambda: app.count == 0)
        relays[-1].close()
        found = Counter(d.body for d in taken(store))
        for each in stores:
            each.close()
    assert found == Counter([b"last", *(b"%d" % i for i in range(count))])
    assert sum(each.put_count for each in relays) == count + 1


def test_two_first_turns(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two relays that find none at the same time put one each; one of these is dropped."""
    monkeypatch.setattr(relay_module, "LOOK_S", 0.05)
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        relays = [Relay(store, app.url) for _ in range(2)]
        monkeypatch.setattr(Relay, "_is_begun", lambda self: False)
        for each in relays:
            each._connect()
        for each in relays:
            each._begin()
            time.sleep(0.05)  # it fires
        monkeypatch.undo()
        app.put([b"%d" % i for i in range(10)])

        def left() -> int:
            for each in relays:
                each.step()
            groups = [g for g in store.stats().groups if g.topic.startswith("timerstore-outbox-")]
            return app.count + sum(each.lag_count for each in groups)

        wait_until(lambda: left() <= 1)  # the turn that a relay has
        for each in relays:
            each.close()
        assert len(taken(store)) == 10


def test_a_table_of_another_store(app: App, tmp_path: Path) -> None:
    with TimerStore(tmp_path / "one", config=SMALL) as store:
        app.put([b"a"])
        moved(app, store)
    app.put([b"b"])
    with TimerStore(tmp_path / "two", config=SMALL) as store:
        with pytest.raises(InvalidArgumentError, match="into another store") as told:
            moved(app, store)
        assert app.count == 1 and store.count() == 0
        with Relay(store, app.url) as relay:
            wait_until(lambda: ended(relay) == InvalidArgumentError)
            assert "into another store" in str(relay.problem)
        app.execute(str(told.value).rpartition("execute: ")[2])
        assert moved(app, store) == 1


def test_two_databases_of_one_store(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    apps = [App(tmp_path / name, None) for name in ("a", "b")]
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        for i, app in itertools.product(range(3), apps):
            app.put([b"%d" % i])
            moved(app, store)
        assert Counter(d.body for d in taken(store)) == Counter([b"0", b"1", b"2"] * 2)


def test_an_idle_turn_keeps_no_log(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(retention_ms=0)
    with TimerStore(tmp_path / "s", config=config) as store:
        relay = Relay(store, app.url)
        while not relay._turn:
            relay.step()
        monkeypatch.setattr(relay_module, "TURN_S", 0.0)
        began = store.stats().commitlog_start
        for _ in range(20):
            store.put_many([bytes(1_000)] * 20, topic="t")
            taken(store, timeout=0.05)
            relay.step()
            store.flush()
        wait_until(lambda: store.stats().commitlog_start > began)
        relay.close()


def test_messages_that_are_no_turn_are_passed_by(
    app: App, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        app.put([b"a"])
        moved(app, store)
        (topic,) = [each.topic for each in store.stats().topics if "-outbox-" in each.topic]
        for body in (
            b"x",
            b"7",
            b"{}",
            json.dumps({"store": "s", "rows": [1]}).encode(),
            json.dumps({"store": "another", "rows": [[1, 2]]}).encode(),
            b"\xff",
        ):
            store.put(body, topic=topic)
        app.put([b"b"])
        moved(app, store)
        assert [d.body for d in taken(store)] == [b"a", b"b"]
    assert caplog.text.count("is no turn") >= 1


# --- addresses


def test_what_is_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        for wrong in ("mysql://x", tmp_path / "none.db", tmp_path, 7, "", None):
            with pytest.raises(InvalidArgumentError):
                Relay(store, wrong)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(InvalidArgumentError, match=r"timerstore\[outbox\]"):
            Relay(store, "postgres://x")


def test_addresses_of_sqlalchemy(app: App, tmp_path: Path) -> None:
    app.put([b"x"])
    url = app.url.replace("postgresql:", "postgresql+psycopg:")
    app.url = url if app.server else f"sqlite:///{app.url}"
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        relay = Relay(store, app.url)
        while not relay.step():
            pass
        relay.close()


def test_a_database_of_no_encoding(postgres: Any, tmp_path: Path) -> None:
    with App(tmp_path, postgres).db() as db:
        db.autocommit = True
        db.execute("create database plain encoding 'SQL_ASCII' locale 'C' template template0")
    url = postgres.url.replace("/postgres?", "/plain?")
    app = App(tmp_path, SimpleNamespace(url=url))  # type: ignore[arg-type]
    app.put([b"\xff"], key="k", properties={"a": "ä"})
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        assert moved(app, store) == 1
        assert [(d.body, d.key, d.properties) for d in taken(store)] == [(b"\xff", "k", {"a": "ä"})]


def test_a_process_of_many_descriptors() -> None:
    pytest.importorskip("psycopg")
    database = database_at("postgresql:///none", "channel")
    number_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if number_max < 1_100:
        pytest.skip("the system allows few descriptors")
    ours, theirs = socket.socketpair()
    high = fcntl.fcntl(ours, fcntl.F_DUPFD, 1_050)
    vars(database).update(_db=SimpleNamespace(fileno=lambda: high), _is_told=False)
    theirs.send(b"told")
    database.wait(Flag(), 60)
    os.close(high)
    ours.close()
    theirs.close()


def test_a_commit_is_noticed_without_waiting(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        relay = Relay(store, app.url)
        app.put([b"first"])
        assert relay.step() == 1
        monkeypatch.setattr(relay_module, "LOOK_S", 100.0)  # nobody looks so often
        thread = threading.Thread(target=relay._run)
        thread.start()
        for i in range(3):
            app.put([b"%d" % i])
            wait_until(lambda: app.count == 0)
        relay._stop.set()
        app.put([b"to end a wait"])
        thread.join(60)
        assert not thread.is_alive()
        relay.close()


# --- at the shell


def test_the_command(app: App, tmp_path: Path) -> None:
    path = tmp_path / "s"
    timerstore.open(path, config=SMALL).close()
    with process("relay", path, app.url, "--json") as relay:
        try:
            app.put([b"a"])
            app.insert(topic="no spaces")
            wait_until(lambda: app.rows("count(*)", "error is null") == [(0,)])
            with timerstore.open(path, share=True) as store:  # beside it
                assert [d.body for d in taken(store)] == [b"a"]
            relay.terminate()
            told = json.loads(finish(relay)[1])
        finally:
            relay.kill()
    assert told == {"path": str(path), "put": 1, "refused": 1}


def test_the_command_refuses(tmp_path: Path) -> None:
    assert finish(process("relay", tmp_path / "none", "shop.db"))[0] == 3
    timerstore.open(tmp_path / "s", config=SMALL).close()
    status, _, error = finish(process("relay", tmp_path / "s", tmp_path / "none.db"))
    assert status == 2 and "file of SQLite that is there" in error
