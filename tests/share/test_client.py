"""A client's calls: those of a store, with the same results, the same errors."""

from __future__ import annotations

import errno
import inspect
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.rigs.together import together
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from tests.test_fork import told_by_a_child
from timerstore import (
    Client,
    InvalidArgumentError,
    StoreClosedError,
    TimerStore,
)
from timerstore.share import answers as answers_module
from timerstore.share import client as asked_module
from timerstore.share import clientrun, framecolumns
from timerstore.share import link as link_module
from timerstore.share import server as door_module
from timerstore.share import wire as wire_module
from timerstore.share.shared import SharedStore
from timerstore.share.wire import Header, LostError, Part, Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
HOUR = timedelta(hours=1)
AT = datetime(2099, 1, 1, tzinfo=UTC)
NOT_A_CLIENTS = {"handover", "abandon", "backup", "follow"}
"""What concerns the owner's files, or its end."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        timerstore.serve(store)
        yield store


@pytest.fixture
def client(store: TimerStore) -> Iterator[Client]:
    with timerstore.connect(store.path, timeout=5) as client:
        yield client


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}


def test_a_client_has_the_calls_of_a_store() -> None:
    assert public(Client) == public(TimerStore) - NOT_A_CLIENTS
    for name in public(Client):
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Client, TimerStore))
        assert ours.parameters == theirs.parameters, name
        assert ours.return_annotation == theirs.return_annotation, name
    assert public(SharedStore) == public(Client)


def test_a_long_listing_comes_in_pieces(store: TimerStore, client: Client) -> None:
    ids = store.put_many([b"x"] * 1_203, delay_ms=3_600_000 + np.arange(1_203))
    assert [each.id for each in client.pending()] == list(ids)
    begun = [client.pending() for _ in range(20)]
    assert all(next(each).id == ids[0] for each in begun)
    with pytest.raises(InvalidArgumentError, match="This listing has ended"):
        list(begun[0])


def test_a_listing_ends_with_the_owner_that_began_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with timerstore.open(path, config=SMALL, share=True) as store:
        store.put_many([b"x"] * 1_203, delay_ms=3_600_000)
        client = timerstore.connect(path)
        listing = client.pending()
        next(listing)
    with timerstore.open(path, config=SMALL, share=True), client:
        with pytest.raises(StoreClosedError, match="Begin a new one"):
            list(listing)
        assert client.count() == 1_203


def test_answers_and_questions_may_be_long(
    store: TimerStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a frame that the owner takes; nothing is asked again and again."""
    for module in (wire_module, link_module, door_module):
        monkeypatch.setattr(module, "FRAME_BYTES_MAX", 20_000)
    monkeypatch.setattr(answers_module, "_LISTED_BYTES", 5_000)
    ids = store.put_many([b"x" * 3_000] * 20, delay_ms=3_600_000)
    assert [each.id for each in client.pending()] == list(ids)
    assert client.pending_columns().num_rows == 20
    monkeypatch.setattr(asked_module, "IDS_AT_ONCE", 100)
    assert client.cancel_many(list(ids) * 100).tolist() == [True] * 2_000
    with pytest.raises(InvalidArgumentError, match="Make several calls"):
        client.put_many([b"x"], tag="t" * 30_000)
    with pytest.raises(InvalidArgumentError, match="cancel_many"):
        client.cancel_many([object()])  # type: ignore[list-item]
    for _ in range(20):
        store.put(b"x" * 3_000, topic="t", properties={"p": "y" * 3_000})
    monkeypatch.setattr(clientrun, "_DESCRIBED_AT_ONCE", 3)
    got = 0
    while got < 20:
        batch = client.pull("t", max_count=20, timeout=10)
        for d in batch:
            assert d.properties == {"p": "y" * 3_000}
            d.nack(timedelta(0))
        got += len(batch)
    failing = timerstore.Consumer(client, "default")
    failing.subscribe("t", lambda d: timerstore.Retry(delay_level=-1))
    with failing:
        wait_until(lambda: len(client.dead_letters("default")) == 20)
    assert {each.body for each in client.dead_letters("default")} == {b"x" * 3_000}


def test_pieces_of_much_are_put_in_order(
    store: TimerStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one piece fails, the error names those before it."""
    monkeypatch.setattr(framecolumns, "COLUMN_BYTES", 1_000)
    bodies = [b"%d" % i * 100 for i in range(100)]
    ids = client.put_many(bodies, topic="t", delay_ms=3_600_000)
    assert [store.get(id).body for id in ids] == bodies  # type: ignore[union-attr]
    with pytest.raises(InvalidArgumentError) as raised:
        client.put_many([*bodies, b""], topic="t", delay_ms=3_600_000)
    assert 0 < len(raised.value.ids) < 100
    assert [store.get(id).body for id in raised.value.ids] == bodies[: len(raised.value.ids)]  # type: ignore[union-attr]


def test_what_a_client_held_comes_again_at_once_when_it_has_gone(store: TimerStore) -> None:
    store.put_many([b"%d" % i for i in range(10)], topic="t")
    with timerstore.connect(store.path) as client:
        batch = client.pull("t", max_count=6, timeout=10)
        first, *_ = batch
        first.ack()
        assert len(store.pull("t", timeout=0)) == 4
    assert store.pull("t", timeout=10).bodies.to_pylist() == [b"%d" % i for i in range(1, 6)]
    with pytest.raises(StoreClosedError, match="was closed"):
        client.put(b"x")
    client.close()


def test_a_silent_client_holds_nothing(store: TimerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped, say: its connections are there, but its heart does not beat."""
    store.put(b"x", topic="t")
    with timerstore.connect(store.path) as client:
        monkeypatch.setattr(Wire, "has_more", lambda self, s: bool(client._link.closed.wait(60)))
        batch = client.pull("t", timeout=10)
        monkeypatch.setattr(door_module, "SILENCE_S", 0.5)
        assert store.pull("t", timeout=10).bodies.to_pylist() == [b"x"]
        monkeypatch.setattr(door_module, "SILENCE_S", 30)
        batch.ack()  # it is another's now
        assert client.count() == 0


def test_an_answer_that_is_lost_is_given_again(
    store: TimerStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two in five are: nothing is put twice, every call says what it would have said."""
    rnd, send = np.random.default_rng(1), Wire.send
    lost = 0

    def lose(
        wire: Wire, header: Header, parts: Sequence[Part] = (), bytes_max: int | None = None
    ) -> None:
        nonlocal lost
        if "result" in header and header["result"] is not None and rnd.random() < 0.4:
            lost += 1
            raise LostError("on purpose")
        send(wire, header, parts, bytes_max)

    monkeypatch.setattr(Wire, "send", lose)
    ids = []
    for i in range(20):
        ids.append(client.put(b"%d" % i, topic="t", delay=HOUR))
        ids += client.put_many([b"%d.%d" % (i, j) for j in range(3)], topic="t", delay_ms=3_600_000)
        ids.append(client.put(b"%d level" % i, topic="t", delay_level=18))
        moved = client.reschedule(ids[-5], delay=2 * HOUR)
        moved = client.reschedule(moved, body=b"%d moved" % i)
        assert client.cancel(ids[-2])
        ids[-5:] = [moved, *ids[-4:-2], ids[-1]]
        first = client.put(b"%d first" % i, key=f"k{i}", topic="t", delay=HOUR, if_absent=True)
        assert first == client.put(b"x", key=f"k{i}", topic="t", delay=HOUR, if_absent=True)
        ids.append(client.put(b"%d last" % i, key=f"k{i}", topic="t", delay=HOUR, replace=True))
    client.put_many([b"now"] * 50, topic="n")
    got = 0
    while got < 50:
        batch = client.pull("n", max_count=7, timeout=10)
        got += len(batch)
        batch.ack()
    assert got == 50 and len(store.pull("n", timeout=0)) == 0
    monkeypatch.undo()
    assert lost > 5
    assert sorted(each.id for each in store.pending()) == sorted(ids)
    assert len({each.body for each in store.pending()}) == len(ids)


def test_a_forked_child_is_a_client_of_its_own(store: TimerStore, client: Client) -> None:
    store.put_many([b"a", b"b"], topic="t")
    mine = client.pull("t", max_count=1, timeout=10)
    idle = client.pull("t", max_count=1, timeout=10)
    with client._link._lock.guard():
        told = told_by_a_child(
            {
                "put": lambda: client.put(b"from the child", delay=HOUR),
                "count": client.count,
                "ack": mine.ack,
                "pull": lambda: client.pull("t", timeout=0),
                "leave": client.close,
            }
        )
    assert told["count"] == "1" and told["ack"] == "ForkedProcessError" and told["leave"] == "None"
    assert [each.body for each in client.pending()] == [b"from the child"]
    mine.ack()
    idle.ack()
    assert len(store.pull("t", timeout=0)) == 0


def test_threads_share_a_client(store: TimerStore, client: Client) -> None:
    def work(name: int) -> None:
        for i in range(50):
            ids.append(client.put(b"%d.%d" % (name, i), topic="t", delay=HOUR))

    ids: list[str] = []
    together(work, range(8))
    assert len(set(ids)) == 400 == store.count("t")
    assert len(client._link._idle) <= 8


def test_slots_are_used_again_whose_calls_were_answered(store: TimerStore, client: Client) -> None:
    """A client has as many as it had calls under way at once; what may have been made keeps its."""
    link = client._link
    for _ in range(5):
        taken = [link._take() for _ in range(20)]
        for each in taken:
            link._put_away(each)
    assert next(link._numbers) == 21
    slot = link._take()
    link._put_away(slot)
    slot.drop()
    link.patience_s = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "_connect", nobody)
        with pytest.raises(StoreClosedError):
            client.put(b"x", delay=HOUR)
    assert link._take() is not slot
    client.put(b"x", delay=HOUR)


def test_an_owner_that_lets_nobody_in_is_none(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was stopped: so many wait to be let in that the kernel takes no more."""

    def full(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(link_module, "connect", full)
    with pytest.raises(StoreClosedError, match="No process has served"):
        timerstore.connect(store.path, timeout=0.1)


def nobody(slot: str) -> Wire:
    raise LostError("on purpose")


def test_a_client_without_descriptors_goes_on_later(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with timerstore.connect(store.path, timeout=5) as client:
        link, tried = client._link, set()

        def no_more(sock: socket.socket, file: str) -> None:
            tried.add(threading.current_thread().name)
            raise OSError(errno.EMFILE, "Too many open files")

        client.count()
        wait_until(lambda: link._heart is not None)
        monkeypatch.setattr(wire_module, "_connect", no_more)
        before = link._heart
        before.end()
        link._idle.pop().drop()
        with pytest.raises(timerstore.StoreAccessError, match="Open fewer files"):
            client.count()
        wait_until(lambda: "timerstore-heart" in tried)
        monkeypatch.undo()
        assert client.count() == 0
        wait_until(lambda: link._heart is not before)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(
        StoreClosedError, match=r"No process has served .* Start `timerstore serve`"
    ):
        timerstore.connect(tmp_path / "s", timeout=0.1)
    with (
        timerstore.open(tmp_path / "s", config=SMALL),
        pytest.raises(StoreClosedError, match=rf"pid {os.getpid()}.*timerstore.serve\(store\)"),
    ):
        timerstore.connect(tmp_path / "s", timeout=0.1)
    with pytest.raises(InvalidArgumentError, match="timeout is"):
        timerstore.connect(tmp_path / "s", timeout=-1)
