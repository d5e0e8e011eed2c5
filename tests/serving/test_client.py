"""A client's calls: those of a store, with the same results, the same errors."""

from __future__ import annotations

import errno
import inspect
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
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
    TimerStoreError,
    TooLateError,
)
from timerstore.control import socketfile
from timerstore.control import wire as wire_module
from timerstore.control.wire import Header, LostError, Part, Wire
from timerstore.serving import answers as answers_module
from timerstore.serving import askedcalls as asked_module
from timerstore.serving import clientrun
from timerstore.serving import door as door_module
from timerstore.serving import link as link_module
from timerstore.serving.shared import SharedStore

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


def test_what_is_put_is_what_the_store_says(store: TimerStore, client: Client) -> None:
    described = {"key": "k", "tag": "a", "properties": {"p": "ü", "q": "2"}}
    ids = [
        client.put(b"x", topic="t", delay=HOUR, **described),  # type: ignore[arg-type]
        client.put(b"y" * 1_000, topic="t", at=datetime(2099, 1, 1, tzinfo=UTC)),
        client.put(b"z", topic="u", at_ms=4_000_000_000_000),
        client.put(b"w", topic="u", delay_level=18),
    ]
    many = client.put_many([b"1", b"22"], topic="t", delay_ms=3_600_000, keys=["a", "b"], tag="g")
    ids += [*many, *client.put_many(np.full((2, 3), 7, np.uint8), topic="t", delay_level=17)]
    arrow = pa.chunked_array([pa.array([b"one", b"two"])])
    ids += client.put_many(arrow, topic="v", at_ms=np.array([4 * 10**12, 5 * 10**12]))
    assert len(client.put_many([], topic="t")) == 0
    timers = {id: store.get(id) for id in ids}
    assert {id: client.get(id) for id in ids} == timers and None not in timers.values()
    first = timers[ids[0]]
    assert first is not None
    assert (first.key, first.tag, first.properties) == ("k", "a", {"p": "ü", "q": "2"})
    assert [timers[id].key for id in many] == ["a", "b"]  # type: ignore[union-attr]
    assert list(client.pending()) == list(store.pending())
    assert list(client.pending(topic="u", limit=1)) == list(store.pending(topic="u", limit=1))
    assert client.pending_columns(columns=["id"]).equals(store.pending_columns(columns=["id"]))
    assert client.count() == store.count() == 10 and client.count("u") == 2
    assert client.horizon(1_000).start_ms.tolist() == store.horizon(1_000).start_ms.tolist()
    assert client.upcoming() == store.upcoming()
    assert client.stats().topics == store.stats().topics
    assert client.health().state == "running" and client.flush() is None
    assert client.cancel(ids[0]) and client.get(ids[0]) is None
    assert client.find(ids[0]) == store.find(ids[0]) and client.find(ids[0]).state == "cancelled"
    assert client.cancel_many(ids[:2]).tolist() == [True, True]
    moved = client.reschedule(ids[2], delay=HOUR, body=b"zz", properties={"a": "b"})
    assert store.get(ids[2]) is None and store.get(moved).body == b"zz"  # type: ignore[union-attr]
    assert client.put(b"?", topic="t", delay=HOUR, key="a", if_absent=True) == many[0]
    other = client.put(b"!", topic="t", delay=HOUR, key="a", replace=True, properties={"n": "1"})
    assert client.get_key("t", "a") == store.get(other) and store.get(many[0]) is None
    assert client.get_key("t", "nobody") is None
    assert [each.id for each in client.pending(topic="t", key="a")] == [other]
    assert client.cancel_key("t", "a") == 1
    fired = client.put(b"now", topic="w")
    client.pull("w", group="g", timeout=30).ack()
    found = client.find(fired)
    assert found == store.find(fired) and found.groups[0].state == "done"


@pytest.mark.parametrize("properties", [{}, {"a": "b"}])
def test_properties_are_any_mapping(client: Client, properties: dict[str, str]) -> None:
    given = MappingProxyType(properties)
    for named in ({}, {"key": "k"}, {"key": "k", "replace": True}, {"tag": "t"}):
        id = client.put(b"x", delay=HOUR, properties=given, **named)  # type: ignore[arg-type]
        assert client.get(id).properties == properties  # type: ignore[union-attr]
    client.put(b"now", topic="t")
    for d in client.consume("t", timeout=0.2):
        id = d.ack_and_put(b"next", delay=HOUR, properties=given)
        assert client.get(id).properties == properties  # type: ignore[union-attr]


def test_properties_are_text_whatever_their_names(store: TimerStore, client: Client) -> None:
    for properties in ({"base64": "aGVsbG8="}, {"base64": "hello!"}, {"object": "x"}):
        id = client.put(b"x", delay=HOUR, key="k", replace=True, properties=properties)
        for each in (store.get(id), client.get(id), client.get_key("default", "k")):
            assert each is not None and each.properties == properties
        assert [each.properties for each in client.pending()] == [properties]
        id = client.reschedule(id, properties={"base64": "aGVsbG8="})
        assert store.get(id).properties == {"base64": "aGVsbG8="}  # type: ignore[union-attr]
        client.put(b"now", topic="t", properties=properties)
        for d in client.consume("t", timeout=5):
            assert d.properties == properties
            client.cancel(d.ack_and_put(b"next", delay=HOUR, properties=properties))
            break


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


WRONG: list[Callable[[Any], object]] = [
    lambda s: s.put("x"),
    lambda s: s.put(b""),
    lambda s: s.put(b"x", topic="no topic"),
    lambda s: s.put(b"x", topic=3),
    lambda s: s.put(b"x" * (5 << 20)),
    lambda s: s.put(b"x", delay="5"),
    lambda s: s.put(b"x", delay=HOUR, at_ms=4 * 10**12),
    lambda s: s.put(b"x", delay=HOUR, delay_level=1),
    lambda s: s.put(b"x", delay_level="1"),
    lambda s: s.put(b"x", properties={"TAGS": "x"}),
    lambda s: s.put(b"x", properties={1: "x"}),
    lambda s: s.put(b"x", key=""),
    lambda s: s.put(b"x", if_absent=True),
    lambda s: s.put(b"x", key="k", replace="yes"),
    lambda s: s.get_key("t", ""),
    lambda s: s.put_many(b"x"),
    lambda s: s.put_many([b"x", 3]),
    lambda s: s.put_many([b"x", b""]),
    lambda s: s.put_many([b"x"], keys=["a", "b"]),
    lambda s: s.put_many([b"x"], keys=[""]),
    lambda s: s.put_many([b"x"], delay_ms=[1.5]),
    lambda s: s.put_many([b"x"], topic="no topic"),
    lambda s: s.cancel("00"),
    lambda s: s.cancel(b"x"),
    lambda s: s.cancel_many("00"),
    lambda s: s.get(7),
    lambda s: s.reschedule("00", at_ms=5),
    lambda s: s.reschedule("00", delay=HOUR),
    lambda s: s.horizon(0),
    lambda s: s.count(7),
    lambda s: s.pull("t", max_count=0),
    lambda s: s.pull("t", timeout="x"),
    lambda s: s.pull("t", group="a b", timeout=0),
    lambda s: next(s.consume("no/topic", timeout=0)),
    lambda s: next(s.pending(limit="x")),
    lambda s: s.dead_letters("a b"),
    lambda s: s.retry_dead_letters("g", ids="x"),
    lambda s: s.pause("sleeping"),
    lambda s: s.pause("firing", duration="5"),
    lambda s: s.pending_columns(columns=["what"]),
]


def test_errors_are_the_same(store: TimerStore, client: Client) -> None:
    for i, wrong in enumerate(WRONG):
        told = []
        for each in (store, client):
            with pytest.raises(TimerStoreError) as raised:
                wrong(each)
            told.append((type(raised.value), str(raised.value)))
        (kind, text), (kind_there, text_there) = told
        assert kind is kind_there, i
        assert text == text_there or "Pass" in text_there, i


def test_errors_of_a_state(store: TimerStore, client: Client) -> None:
    id = client.put(b"x", delay=HOUR)
    assert store.cancel(id)
    with pytest.raises(TooLateError, match="fired or cancelled"):
        client.reschedule(id, delay=HOUR)
    client.pause("putting", duration=HOUR)
    with pytest.raises(timerstore.PausedError, match="Putting is paused"):
        client.put_many([b"x"])
    client.resume("putting")
    client.put(b"x")


def test_pieces_of_much_are_put_in_order(
    store: TimerStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one piece fails, the error names those before it."""
    monkeypatch.setattr(asked_module, "COLUMN_BYTES", 1_000)
    bodies = [b"%d" % i * 100 for i in range(100)]
    ids = client.put_many(bodies, topic="t", delay_ms=3_600_000)
    assert [store.get(id).body for id in ids] == bodies  # type: ignore[union-attr]
    with pytest.raises(InvalidArgumentError) as raised:
        client.put_many([*bodies, b""], topic="t", delay_ms=3_600_000)
    assert 0 < len(raised.value.ids) < 100
    assert [store.get(id).body for id in raised.value.ids] == bodies[: len(raised.value.ids)]  # type: ignore[union-attr]


def test_messages_are_handed_out_and_settled(store: TimerStore, client: Client) -> None:
    ids = client.put_many(
        [b"%d" % i for i in range(6)], topic="t", keys=[f"k{i}" for i in range(6)]
    )
    batch = client.pull("t", max_count=3, timeout=10)
    assert isinstance(batch, timerstore.Batch) and len(batch) == 3
    assert batch.ids.to_pylist() == list(ids[:3]) and batch.to_arrow().num_rows == 3
    zero, one, two = batch
    assert (zero.body, zero.key, zero.tag, zero.properties, zero.attempt) == (
        b"0",
        "k0",
        None,
        {},
        0,
    )
    assert zero.topic == "t" and zero.lateness_ms >= 0 and zero.id == ids[0]
    zero.ack()
    zero.ack()  # twice does nothing
    one.nack()
    two.nack(timedelta(hours=1))
    other = store.pull("t", timeout=10)
    assert other.ids.to_pylist() == list(ids[3:])
    other.ack()
    again = client.pull("t", timeout=10)
    assert again.ids.to_pylist() == [ids[1]] and next(iter(again)).attempt == 1
    again.ack()
    assert len(client.pull("t", timeout=0)) == 0
    assert [each.body for each in client.pending()] == [b"2"]
    assert store.stats().groups and client.dead_letters("default") == []
    assert client.retry_dead_letters("default") == 0


def test_a_message_is_acknowledged_with_what_comes_in_its_place(
    store: TimerStore, client: Client
) -> None:
    client.put_many([b"a", b"b"], topic="t")
    first, second = client.pull("t", timeout=10)
    next_id = first.ack_and_put(b"later", delay=HOUR, key="k")
    ids = second.ack_and_put_many([{"body": b"1", "delay_level": 18}, {"body": b"2", "at": AT}])
    assert [store.get(id).body for id in (next_id, *ids)] == [b"later", b"1", b"2"]  # type: ignore[union-attr]
    with pytest.raises(TooLateError, match="Nothing was put"):
        second.ack_and_put(b"x")
    with pytest.raises(InvalidArgumentError):
        second.ack_and_put_many([{"topic": "t"}])
    with pytest.raises(InvalidArgumentError):
        second.ack_and_put(b"x", delay=HOUR, delay_level=1)
    assert store.count() == 3 and len(store.pull("t", timeout=0)) == 0


def test_an_iterator_gives_back_what_it_did_not_yield(store: TimerStore, client: Client) -> None:
    client.put_many([b"%d" % i for i in range(10)], topic="t")
    for d in client.consume("t", timeout=10):
        d.ack()
        break
    assert sorted(d.body for d in store.consume("t", timeout=0.5)) == [
        b"%d" % i for i in range(1, 10)
    ]


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
        monkeypatch.setattr(socketfile, "_connect", no_more)
        wait_until(lambda: link._heart is not None)
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
