"""What is refused, full, locked or gone ends no relay for good, and blocks no other rows."""

import random
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.outbox.apps import App, ended, moved, taken
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL, small
from timerstore import CongestedError, InvalidArgumentError, StoreClosedError, TimerStore
from timerstore.outbox import Outbox, Relay


def test_a_row_that_is_refused_is_told_and_blocks_nothing(
    app: App, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app.put([b"first"])
    app.insert(topic="no spaces")
    app.insert(properties="no json")
    app.insert(properties="[1]")
    app.insert(body=bytes(200_000))  # more than this store's segments
    app.insert(due_ms=1 << 60)
    app.insert(tag="")
    app.put([b"last"])
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        relay = Relay(store, app.url)
        while relay.step():
            pass
        relay.close()
        assert (relay.put_count, relay.refused_count) == (2, 6)
        assert [d.body for d in taken(store)] == [b"first", b"last"]
        refused = dict(app.rows("id, error"))
        assert all(refused.values()) and len(refused) == 6
        assert caplog.text.count("was refused") == 6
        app.execute("update timerstore_outbox set error = null, topic = 't' where id = 2")
        assert moved(app, store) == 1
    assert app.count == 5


def test_values_that_only_sqlite_takes(tmp_path: Path) -> None:
    app = App(tmp_path, None)
    app.insert(error="waits until somebody corrects it")
    app.insert(nonce="0) or (1=1")
    app.insert(nonce=1.5)
    app.insert(properties="[" * 100_000)
    app.insert(body="text")
    for column in ("topic", "key", "tag", "properties"):
        app.insert()
        newest = "id = (select max(id) from timerstore_outbox)"
        app.execute(f"update timerstore_outbox set {column} = cast(x'ff' as text) where {newest}")
    app.put([b"last"])
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        assert moved(app, store) == 1
        assert [d.body for d in taken(store)] == [b"last"]
    assert len(app.rows("id", "error is not null")) == app.count == 9


@pytest.mark.parametrize("room", [0, 1])
def test_rows_wait_while_the_turn_is_congested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """With room for the turn alone, each row's own slot is full."""
    app = App(tmp_path, None)
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        relay = Relay(store, app.url)
        put_many = timerstore.Delivery.ack_and_put_many

        def congested(delivery: Any, puts: Any) -> None:
            if len(puts) > room:
                raise CongestedError("full")
            put_many(delivery, puts)

        monkeypatch.setattr(timerstore.Delivery, "ack_and_put_many", congested)
        app.put([b"a", b"b", b"c"])
        with suppress(CongestedError):
            while relay.refused_count < 3:
                relay.step()
        monkeypatch.undo()
        assert relay.refused_count == len(app.rows("*", "error is not null")) == 3 * room
        while app.rows("count(*)", "error is null") != [(0,)]:
            relay.step()
        relay.close()
        assert len(taken(store)) == 3 * (1 - room)


def test_a_slot_that_refuses_by_chance_is_not_said_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, rnd = App(tmp_path, None), random.Random(7)
    put_many = timerstore.Delivery.ack_and_put_many

    def congested(delivery: Any, puts: Any) -> None:
        if rnd.random() < 0.5:
            raise CongestedError("nearly full")
        put_many(delivery, puts)

    monkeypatch.setattr(timerstore.Delivery, "ack_and_put_many", congested)
    app.put([b"%d" % i for i in range(8)])
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        relay = Relay(store, app.url)
        while app.rows("count(*)", "error is null") != [(0,)]:
            with suppress(CongestedError):
                relay.step()
        relay.close()
        assert relay.refused_count == 0
        assert len(taken(store)) == 8


def test_a_turn_that_is_refused_is_not_said_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(tmp_path, None)
    app.put([b"a"])
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        relay = Relay(store, app.url)

        def refused() -> bool:
            raise InvalidArgumentError("of the turn")

        rows = app.rows("id, nonce, topic, due_ms, body, key, tag, properties")
        monkeypatch.setattr(relay, "_take_turn", refused)
        with pytest.raises(InvalidArgumentError, match="of the turn"):
            relay._put_rows(rows)
        assert app.rows("error") == [(None,)]
        relay.close()


def test_a_store_that_is_full_takes_the_rows_later(app: App, tmp_path: Path) -> None:
    config = small(log_bytes=1 << 16, max_bytes=1 << 21, retention_ms=0)
    with TimerStore(tmp_path / "s", config=config) as store:
        app.put([bytes(20_000)] * 150)
        with Relay(store, app.url) as relay:
            wait_until(lambda: relay.problem is not None)
            assert 0 < app.count < 150
            count = 0
            while count < 150:
                count += len(taken(store, timeout=0.2))
        assert (count, app.count, relay.put_count) == (150, 0, 150)


def test_a_store_that_is_paused_takes_the_rows_later(app: App, tmp_path: Path) -> None:
    with TimerStore(tmp_path / "s", config=SMALL) as store, Relay(store, app.url) as relay:
        app.put([b"a"])
        wait_until(lambda: app.count == 0)
        store.pause("putting")
        app.put([b"b"])
        wait_until(lambda: relay.problem is not None)
        store.resume("putting")
        wait_until(lambda: app.count == 0)
        assert [d.body for d in taken(store)] == [b"a", b"b"]


def test_a_store_that_is_closed_ends_the_relay(app: App, tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = TimerStore(path, config=SMALL)
    with Relay(store, app.url) as relay:
        app.put([b"a"])
        wait_until(lambda: app.count == 0)
        store.close()
        app.put([b"b"])
        wait_until(lambda: ended(relay) == StoreClosedError)
    with TimerStore(path, config=SMALL) as store:
        assert moved(app, store) == 1
        assert [d.body for d in taken(store)] == [b"a", b"b"]


def test_a_relay_waits_for_the_next_owner(tmp_path: Path) -> None:
    """Also longer than a call does."""
    app, path = App(tmp_path, None), tmp_path / "s"
    with TimerStore(path, config=SMALL) as store:
        timerstore.serve(store)
        client = timerstore.connect(path, timeout=0.1)
    with client, Relay(client, app.url) as relay:
        app.put([b"a"])
        wait_until(lambda: "No process has served" in str(relay.problem))
        with TimerStore(path, config=SMALL) as store, timerstore.serve(store):
            wait_until(lambda: app.count == 0)
            assert [d.body for d in taken(store)] == [b"a"]
        client.close()
        app.put([b"b"])
        wait_until(lambda: ended(relay) == StoreClosedError)


def test_a_server_that_goes_away_and_comes_back(postgres: Any, tmp_path: Path) -> None:
    app = App(tmp_path, postgres)
    with TimerStore(tmp_path / "s", config=SMALL) as store, Relay(store, app.url) as relay:
        for i in range(3):
            app.put([b"%d" % (2 * i)])
            wait_until(lambda: app.count == 0)
            if i == 0:
                postgres.crash()
                wait_until(lambda: relay.problem is not None)
                postgres.start()
            else:
                with app.db() as db:
                    assert postgres.end_connections(db)
            app.put([b"%d" % (2 * i + 1)])
            wait_until(lambda: app.count == 0)
        found = [d.body for d in taken(store)]
    assert found == [b"%d" % i for i in range(6)]


def test_a_relay_that_never_finds_an_empty_table_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(tmp_path, None)
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        relay = Relay(store, app.url)
        hand_on = relay._hand_on

        def with_more(*given: Any) -> bool:
            app.put([b"x"])
            return hand_on(*given)

        monkeypatch.setattr(relay, "_hand_on", with_more)
        app.put([b"x"])
        with relay:
            wait_until(lambda: relay.put_count > 2)
            relay.problem = "what was wrong before"
            wait_until(lambda: relay.problem is None)
        assert app.count == 1


def test_a_file_that_is_locked_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timerstore.outbox.table._BUSY_S", 0.05)
    app = App(tmp_path, None)
    with TimerStore(tmp_path / "s", config=SMALL) as store, Relay(store, app.url) as relay:
        app.put([b"a"])
        wait_until(lambda: app.count == 0)
        with app.db() as db:
            db.execute("begin immediate")
            app.outbox.put(db, b"b", topic="t")
            db.commit()
            db.execute("begin immediate")
            wait_until(lambda: relay.problem is not None)  # it may not delete the row
            db.rollback()
        wait_until(lambda: app.count == 0)
        assert [d.body for d in taken(store)] == [b"a", b"b"]


def test_a_row_that_is_locked_waits(postgres: Any, tmp_path: Path) -> None:
    app = App(tmp_path, postgres)
    app.put([b"a", b"b"])
    with TimerStore(tmp_path / "s", config=SMALL) as store, app.db() as db:
        db.execute("select 1 from timerstore_outbox for update")
        with Relay(store, app.url) as relay:
            wait_until(lambda: relay.problem is not None)
            db.rollback()
            wait_until(lambda: app.count == 0)
        assert [d.body for d in taken(store)] == [b"a", b"b"]


def test_a_file_that_is_replaced(tmp_path: Path) -> None:
    app = App(tmp_path, None)
    file = Path(app.url)
    with TimerStore(tmp_path / "s", config=SMALL) as store, Relay(store, file) as relay:
        app.put([b"a"])
        wait_until(lambda: app.count == 0)
        app.execute(f"vacuum into '{file}.new'")
        file.with_name("app.db.new").rename(file)
        for left in ("app.db-wal", "app.db-shm"):
            file.with_name(left).unlink(missing_ok=True)
        app.put([b"b"])
        wait_until(lambda: relay.put_count == 2)
        assert [d.body for d in taken(store)] == [b"a", b"b"]


def test_tables_that_are_half_made(app: App, tmp_path: Path) -> None:
    app.execute("delete from timerstore_outbox_relay")
    app.put([b"a"])
    with TimerStore(tmp_path / "s", config=SMALL) as store, Relay(store, app.url) as relay:
        wait_until(lambda: relay.problem is not None)
        with app.db() as db:
            app.outbox.create(db)
            db.commit()
        wait_until(lambda: app.count == 0)
        assert [d.body for d in taken(store)] == [b"a"]


def test_a_table_that_is_not_there_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "new.db"
    with sqlite3.connect(file) as db:
        db.execute("create table other (id int)")
    with TimerStore(tmp_path / "s", config=SMALL) as store, Relay(store, file) as relay:
        wait_until(lambda: relay.problem is not None)
        assert "no such table" in str(relay.problem)
        with db:
            Outbox().create(db)
            Outbox().put(db, b"x", topic="t")
        wait_until(lambda: relay.put_count == 1)
    db.close()
    assert caplog.text.count("tried again") == 1


def test_what_is_deleted_outlives_a_power_cut(tmp_path: Path) -> None:
    """Without WAL too: SQLite commits by an unlink, whose folder it syncs with `extra` alone."""
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        relay = Relay(store, App(tmp_path, None).url)
        relay._connect()
        assert relay._execute("pragma synchronous") == [(3,)]
        relay.close()
