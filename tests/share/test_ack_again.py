"""After its owner was lost, a client acknowledges and reads at the next one what it was handed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.rigs.storm_taken import run_of
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import Client, Consumer, Delivery, StoreClosedError, TimerStore, recurring
from timerstore.share.answers import ack_known
from timerstore.share.clientrun import ClientRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
BODIES = [b"%d" % i for i in range(8)]


class Owners:
    """A folder whose owners come and go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = self._open()

    def _open(self) -> TimerStore:
        store = timerstore.open(self.path, config=SMALL)
        timerstore.serve(store)
        return store

    def change(self) -> TimerStore:
        """Have another owner; nothing that the last one remembered helps it."""
        self.store.close()
        self.store = self._open()
        return self.store


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    owners = Owners(tmp_path / "s")
    yield owners
    owners.store.close()


@pytest.fixture
def client(owners: Owners) -> Iterator[Client]:
    with timerstore.connect(owners.path, timeout=20) as client:
        yield client


def fire(client: Client, bodies: list[bytes]) -> None:
    """Put timers that are due; return once a pull gets all of them: it takes what is there."""
    client.put_many(bodies, topic="t")
    wait_until(lambda: client.count() == 0)
    client.flush()


def left(store: TimerStore) -> list[bytes]:
    """What has not been acknowledged, as a store that is opened again says."""
    return [d.body for d in store.consume("t", timeout=0.2)]


def test_what_was_pulled_before_is_acknowledged_behind(owners: Owners, client: Client) -> None:
    fire(client, BODIES)
    batch = client.pull("t", timeout=10)
    zero, one, two, *_ = batch
    store = owners.change()
    two.ack()
    two.ack()
    zero.ack()
    one.ack()
    assert store.stats().groups[0].handled_count == 3
    assert left(store) == BODIES[3:]
    store = owners.change()
    batch.ack()
    assert left(owners.change()) == []


def test_it_may_be_on_its_way_to_others_by_then(owners: Owners, client: Client) -> None:
    fire(client, BODIES)
    first = list(client.pull("t", max_count=4, timeout=10))
    store = owners.change()
    others = store.pull("t", max_count=2, timeout=10)
    with timerstore.connect(owners.path) as other:
        again = list(other.pull("t", max_count=1, timeout=10))
        for d in first:
            d.ack()
        again[0].ack()
        others.ack()
        rest = store.pull("t", max_count=100, timeout=10)
        assert rest.bodies.to_pylist() == BODIES[4:]
        rest.ack()
    (row,) = [each for each in store.stats().groups if each.topic == "t"]
    assert row.handled_count == 8 and row.lag_count == 0 and row.in_flight_count == 0


def test_what_was_sent_back_is_acknowledged_too(owners: Owners, client: Client) -> None:
    fire(client, BODIES[:3])
    for d in client.pull("t", timeout=10):
        d.nack()
    again = []
    while len(again) < 3:
        again += list(client.pull("t", timeout=10))
    assert [d.attempt for d in again] == [1, 1, 1]
    store = owners.change()
    again[2].ack()
    assert len(store.pull("t", max_count=1, timeout=10)) == 1  # its queue is routed now
    again[1].ack()
    assert left(store) == []
    assert again[0].body in left(owners.change())


def test_what_was_taken_from_a_silent_client_is_acknowledged(
    owners: Owners, client: Client
) -> None:
    fire(client, BODIES)
    batch = client.pull("t", timeout=10)
    for session in list(owners.store.core.at_close[0].__self__.sessions.values()):  # type: ignore[attr-defined]
        session.release()
    batch.ack()
    assert left(owners.store) == []


def test_a_consumer_goes_on_with_the_next_owner(owners: Owners, client: Client) -> None:
    handled: list[bytes] = []

    def handle(d: timerstore.Delivery) -> None:
        if d.body == BODIES[0] and not handled:
            owners.change()
        handled.append(d.body)

    consumer = timerstore.Consumer(client, "default", threads=1)
    consumer.subscribe("t", handle)
    fire(client, BODIES)
    with consumer:
        wait_until(lambda: len(set(handled)) == len(BODIES))
    assert handled.count(BODIES[0]) == 1 and set(handled) == set(BODIES)


def test_what_a_handler_has_begun_begins_again_beside_it(owners: Owners, client: Client) -> None:
    """The next owner knows nothing of it; both acknowledge it, and it does not come once more."""
    began, both = list[bytes](), threading.Event()

    def handle(d: timerstore.Delivery) -> None:
        began.append(d.body)
        both.wait(30)

    consumer = timerstore.Consumer(client, "default", threads=2)
    consumer.subscribe("t", handle)
    fire(client, BODIES[:1])
    with consumer:
        wait_until(lambda: began)
        store = owners.change()
        wait_until(lambda: len(began) == 2)
        both.set()
    assert began == BODIES[:1] * 2 and left(store) == []


def test_nothing_else_is_acknowledged(owners: Owners, client: Client) -> None:
    """By a place alone, of another topic, of none."""
    fire(client, BODIES)
    client.put(b"other", topic="u")
    batch = owners.store.pull("t", timeout=10)
    ids, offsets = batch.ids.to_pylist(), run_of(batch).offsets.tolist()
    others = owners.store.pull("u", timeout=10)
    end = owners.store.core.engine.commitlog.end
    store = owners.change()
    group = store.consuming.group("t", "default")
    wrong = [
        (ids[0], offsets[1]),
        (ids[0], offsets[0] + 1),
        (others.ids[0].as_py(), run_of(others).offsets[0]),
        (ids[0], -1),
        (ids[0], end),
        (ids[0], 1 << 62),
        ("", offsets[0]),
    ]
    assert ack_known(group, [id for id, _ in wrong], [int(at) for _, at in wrong]) == 0
    assert ack_known(group, ids[:1], offsets[:1]) == 1
    assert ack_known(group, ids[:1], offsets[:1]) == 0
    assert left(store) == BODIES[1:]
    for arguments in ({}, {"ids": "x", "offsets": 5}, {"ids": [5], "offsets": ["x"]}):
        with pytest.raises(timerstore.InvalidArgumentError):
            client._calls.ask("ack_known", {"topic": "t", "group": "default", **arguments})


def test_one_that_reads_later_finds_it_done(owners: Owners, client: Client) -> None:
    """The last ones of many are acknowledged first; what is before them comes."""
    fire(client, BODIES)
    batch = list(client.pull("t", timeout=10))
    owners.change()
    for d in batch[4:]:
        d.ack()
    assert left(owners.change()) == BODIES[:4]


# --- what a message says besides its body


def first(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have a client do something before it looks at what it was handed, once."""
    real, acts = ClientRun._described, [act]

    def described(run: ClientRun) -> list[dict[str, Any]]:
        if acts:
            acts.pop()()
        return real(run)

    monkeypatch.setattr(ClientRun, "_described", described)


def test_the_next_owner_says_all_of_it(owners: Owners, client: Client) -> None:
    until_ms = time.time_ns() // 1_000_000 + 3_600_000
    said: dict[str, Any] = {"key": "ann", "tag": "paid", "properties": {"tenant": "a"}}
    client.put(b"x", topic="t", expires_ms=until_ms, **said)
    (d,) = client.pull("t", timeout=10)
    d.nack()
    (d,) = client.pull("t", timeout=10)
    owners.change()
    assert (d.key, d.tag, d.properties, d.attempt, d.expires_ms) == (*said.values(), 1, until_ms)


def test_what_nobody_can_tell_is_an_error_and_comes_again(owners: Owners, client: Client) -> None:
    fire(client, BODIES[:1])
    batch: Any = client.pull("t", timeout=10)
    batch._offsets = batch._offsets + 1
    (d,) = batch
    owners.change()
    for look in (lambda: d.key, lambda: d.properties, lambda: d.attempt):
        with pytest.raises(StoreClosedError, match="come again"):
            look()
    assert left(owners.store) == BODIES[:1]


def test_a_handler_that_cannot_look_settles_nothing(
    owners: Owners, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, runs = ClientRun._described, list[ClientRun]()

    def described(run: ClientRun) -> list[dict[str, Any]]:
        runs.append(run)
        if run is runs[0]:
            raise StoreClosedError("nobody")
        return real(run)

    monkeypatch.setattr(ClientRun, "_described", described)
    began, keys = list[bytes](), list[str | None]()

    def handle(d: Delivery) -> None:
        began.append(d.body)
        keys.append(d.key)

    consumer = Consumer(client, "default", threads=1)
    consumer.subscribe("t", handle)
    client.put(b"x", topic="t", key="ann")
    with consumer:
        wait_until(lambda: keys)
    assert (began, keys) == ([b"x"] * 2, ["ann"])
    assert left(owners.store) == []


def test_what_expires_while_owners_change_is_not_handled(owners: Owners, client: Client) -> None:
    until_ms, handled = time.time_ns() // 1_000_000 + 2_000, list[bytes]()

    def handle(d: Delivery) -> None:
        if not handled:
            owners.change()
            wait_until(lambda: time.time_ns() // 1_000_000 > until_ms)
        handled.append(d.body)

    consumer = Consumer(client, "default", threads=1)
    consumer.subscribe("t", handle)
    for i, until in enumerate((None, until_ms, None)):
        client.put(b"%d" % i, topic="t", expires_ms=until)
    wait_until(lambda: client.count() == 0)
    with consumer:
        wait_until(lambda: len(handled) >= 2)
    assert handled == [b"0", b"2"]


def test_a_tag_that_is_wanted_is_handled(
    owners: Owners, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[bytes] = []
    consumer = Consumer(client, "default", threads=1)
    consumer.subscribe("t", lambda d: handled.append(d.body), tags="paid")
    first(monkeypatch, owners.change)
    client.put(b"paid", topic="t", tag="paid")
    with consumer:
        wait_until(lambda: handled)
    assert handled == [b"paid"]


def test_a_job_goes_on(owners: Owners, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = recurring.Schedules(client)
    jobs.start("r", key="k", body=b"run", schedule=recurring.every(0.2))
    first(monkeypatch, owners.change)
    wait_until(lambda: jobs.step())
    assert [job.key for _, job in jobs.list()] == ["k"]


def test_what_no_handler_began_waits_for_no_owner(owners: Owners) -> None:
    """It is the next owner's anyway."""
    began, go_on = threading.Event(), threading.Event()

    def handle(d: Delivery) -> None:
        began.set()
        go_on.wait(60)

    with timerstore.connect(owners.path, timeout=3_600) as client:
        consumer = Consumer(client, "default", threads=1)
        consumer.subscribe("t", handle)
        fire(client, BODIES)
        consumer.start()
        assert began.wait(30)
        owners.store.close()
        assert not consumer.close(timeout=0.1)
        go_on.set()
