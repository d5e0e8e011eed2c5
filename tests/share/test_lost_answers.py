"""Answers that are lost, while the log goes on: nothing is put twice, nothing is guessed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.rigs.waiting import wait_until
from tests.small_store import small
from timerstore import Client, StoreClosedError, TimerStore, TimerStoreError
from timerstore.share import session as session_module
from timerstore.share.server import Server
from timerstore.share.session import LastAnswers
from timerstore.share.wire import Header, LostError, Part, Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
HOUR = timedelta(hours=1)
TINY = small(
    16 << 10,
    20 * 32,
    52 * 64,
    precision_ms=100,
    roll_window_slots=60,
    cleaning_factor=1,
    cleaning_slack_bytes=0,
    near_count_max=4_096,
    flush_interval_ms=20,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", config=TINY) as store:
        yield store


@pytest.fixture
def server(store: TimerStore) -> Server:
    return timerstore.serve(store)


@pytest.fixture
def client(store: TimerStore, server: Server) -> Iterator[Client]:
    with timerstore.connect(store.path, timeout=5) as client:
        client.count()
        yield client


Calls = dict[str, Callable[[], Any]]


def lose(monkeypatch: pytest.MonkeyPatch, calls: Calls, meanwhile: Callable[[], object]) -> Any:
    """Make calls whose first answers are lost; something happens before any is asked again.

    Return what each returned, or raised.
    """
    real, lost, go_on = Wire.receive, threading.Semaphore(0), threading.Event()
    losing, told = dict[int, bool](), dict[str, Any]()

    def receive(wire: Wire, bytes_max: int | None = None) -> tuple[Header, list[Part]]:
        answer = real(wire, bytes_max)
        is_answer = "result" in answer[0] or "error" in answer[0]
        if is_answer and losing.pop(threading.get_ident(), False):
            wire.close()
            lost.release()
            assert go_on.wait(50)
            raise LostError("on purpose")
        return answer

    def make(name: str) -> None:
        losing[threading.get_ident()] = True
        try:
            told[name] = calls[name]()
        except TimerStoreError as e:
            told[name] = e

    monkeypatch.setattr(Wire, "receive", receive)
    threads = [threading.Thread(target=make, args=(name,)) for name in calls]
    for each in threads:
        each.start()
    for _ in threads:
        assert lost.acquire(timeout=50)
    meanwhile()
    go_on.set()
    for each in threads:
        each.join()
    monkeypatch.setattr(Wire, "receive", real)
    return told


def remove_what_was_put(store: TimerStore) -> list[str]:
    """Have the segment go in which the log ended, by consuming, by cleaning; return what came."""
    until, got = store.core.engine.commitlog.end, list[str]()
    while store.core.engine.commitlog.start < until:
        store.put_many([b"." * 1_000] * 20, topic="other")
        store.pull("other", timeout=5).ack()
        batch = store.pull("t", timeout=0)
        got += batch.ids.to_pylist()
        batch.ack()
        store.clean()
    return got


def calls_of(client: Client, store: TimerStore) -> Calls:
    """Calls that put; what is put has a body of its own."""
    first, later = (store.put(b"first", topic="t", delay=HOUR) for _ in range(2))
    return {
        "due": lambda: client.put(b"due", topic="t"),
        "later": lambda: client.put(b"later", topic="t", delay=HOUR),
        "many": lambda: list(
            client.put_many([b"many", b"waits"], topic="t", delay_ms=[0, 3_600_000])
        ),
        "keyed": lambda: client.put(b"keyed", topic="t", delay=HOUR, key="k", replace=True),
        "moved": lambda: client.reschedule(first, delay=timedelta(0), body=b"moved"),
        "moved on": lambda: client.reschedule(later, delay=2 * HOUR, body=b"moved on"),
    }


def test_a_lost_answer_is_given_again_though_the_message_has_gone(
    store: TimerStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, got = calls_of(client, store), list[str]()
    id = store.put(b"first", topic="t", delay=HOUR)
    calls["cancelled"] = lambda: client.cancel(id)
    told = lose(monkeypatch, calls, lambda: got.extend(remove_what_was_put(store)))
    assert told.pop("cancelled") is True
    many = told.pop("many")
    waiting = {each.id: each.body for each in store.pending()}
    assert sorted([*got, *waiting]) == sorted([*told.values(), *many])
    assert set(waiting.values()) == {b"later", b"waits", b"keyed", b"moved on"}
    assert set(got) == {told["due"], told["moved"], many[0]}
    assert len(store.pull("t", timeout=0.3)) == 0


def test_another_owner_finds_copies_and_does_not_guess(
    store: TimerStore, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleaning has removed what was put; the id of its copy says where that was. What has fired,
    was consumed and removed nobody knows any more.
    """

    def meanwhile() -> None:
        assert len(remove_what_was_put(store)) == 3
        for each in [*server._door.sessions.values()]:  # as one that has answered nothing yet
            each.answers = LastAnswers()
        server._door._left.clear()

    told = lose(monkeypatch, calls_of(client, store), meanwhile)
    waiting = {each.body.decode(): each.id for each in store.pending()}
    assert waiting.keys() == {"later", "waits", "keyed", "moved on"}
    for name in ("due", "many", "moved"):
        error = told.pop(name)
        assert isinstance(error, StoreClosedError), name
        assert "It may have made the call" in str(error)
    assert told == {name: id for name, id in waiting.items() if name != "waits"}
    assert len(store.pull("t", timeout=0.3)) == 0
    assert client.put(b"more", topic="t", delay=HOUR)


def test_an_error_is_told_again(
    store: TimerStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was, though it would be another one by now."""
    store.pause("putting")
    calls: Calls = {"put": lambda: client.put(b"x", delay=HOUR)}
    told = lose(monkeypatch, calls, lambda: store.resume("putting"))
    assert isinstance(told["put"], timerstore.PausedError) and store.count() == 0


def test_answers_are_kept_for_who_may_ask_again(
    store: TimerStore, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the next question, or a good-bye; not for ever, nor whatever their length."""
    with timerstore.connect(store.path) as client:
        client.put(b"x", delay=HOUR)
        (session,) = server._door.sessions.values()
        assert len(session.answers) == 1
        client.count()
        (kept,) = session.answers._last.values()
        assert kept[0] == 2  # what was asked last on the slot that `put` had
        monkeypatch.setattr(session_module, "ANSWER_BYTES_MAX", 100)
        client.put_many([b"x"] * 100, delay_ms=3_600_000)
        assert len(session.answers) == 0
        client.put(b"x", delay=HOUR)
    wait_until(lambda: not server._door.sessions)
    assert not server._door._left
    with timerstore.connect(store.path) as client:
        client.put(b"x", delay=HOUR)
        for wire in list(server._door._wires):
            wire.end()
        wait_until(lambda: bool(server._door._left) or bool(server._door.sessions))
        client.count()
    wait_until(lambda: not server._door.sessions and not server._door._left)
