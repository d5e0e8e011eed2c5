"""Puts of many threads as one question: each caller gets its own id, or its own error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.aio.held_disk import HeldDisk
from tests.interrupting import Interrupt, interrupted
from tests.rigs.together import together
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from tests.test_fork import told_by_a_child
from timerstore import (
    Client,
    InvalidArgumentError,
    StoreClosedError,
    StoreFullError,
    TimerStore,
    TimerStoreError,
)
from timerstore.share import joining
from timerstore.share.link import Answered, Link
from timerstore.share.wire import Header, LostError, Part, Wire
from timerstore.values.ids import parse_id
from timerstore.values.put_rows import Put

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
HOUR = timedelta(hours=1)
THREADS = 24


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        timerstore.serve(store)
        yield store


@pytest.fixture
def client(store: TimerStore) -> Iterator[Client]:
    with timerstore.connect(store.path, timeout=5) as client:
        yield client


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many puts each question had; all that can be joined are."""
    monkeypatch.setattr(joining, "ALONE_MAX", 0)
    counts, ask_on = list[int](), Link.ask_on

    def count(link: Link, slot: Any, name: str, said: Any, *given: Any, **named: Any) -> Answered:
        counts.extend([len(said["puts"])] if name == "put_each" else [])
        return ask_on(link, slot, name, said, *given, **named)

    monkeypatch.setattr(Link, "ask_on", count)
    return counts


def answered(put: Callable[[], str]) -> str | TimerStoreError:
    """What a put returned, or raised."""
    try:
        return put()
    except TimerStoreError as e:
        return e


def test_each_gets_the_id_of_its_own(store: TimerStore, client: Client, joined: list[int]) -> None:
    """With what describes it, in the order of its thread."""

    def work(name: int) -> list[str]:
        ids = []
        for i in range(20):
            body, more = b"%d.%d" % (name, i), {"key": f"k{name}", "properties": {"i": f"ü{i}"}}
            ids.append(client.put(body, topic=f"t{name % 3}", delay=HOUR, **more if i % 2 else {}))  # type: ignore[arg-type]
        return ids

    told = together(work, range(THREADS))
    found = {each.id: each for each in store.pending()}
    for name, ids in enumerate(told):
        timers = [found[id] for id in ids]
        assert [each.body for each in timers] == [b"%d.%d" % (name, i) for i in range(20)]
        assert {each.topic for each in timers} == {f"t{name % 3}"}
        assert [each.key for each in timers] == [None, f"k{name}"] * 10
        assert timers[3].properties["i"] == "ü3"
        offsets = [id.offset for id in map(parse_id, ids) if id]
        assert offsets == sorted(offsets)
    assert store.count() == 20 * THREADS == sum(joined) > len(joined)
    assert len(client._link._idle) == 1  # they need one connection


def test_few_go_by_themselves(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_join", None)
    together(lambda _: client.put(b"x", delay=HOUR), range(joining.ALONE_MAX))
    client.put(b"x", delay=HOUR)


def test_a_wrong_one_fails_alone(store: TimerStore, client: Client, joined: list[int]) -> None:
    """Before it is sent, or where the store is: there what comes behind it waits again."""
    putting = store.putting
    put = putting.put

    def refuse(given: Put, **named: Any) -> str:
        if given.body.startswith(b"bad"):
            raise StoreFullError(given.body.decode())
        return put(given, **named)

    def work(name: int) -> list[str | TimerStoreError]:
        bodies = [
            (b"bad%d.%d" if (name + i) % 3 == 0 else b"good%d.%d") % (name, i) for i in range(9)
        ]
        told = [answered(lambda body=body: client.put(body, delay=HOUR)) for body in bodies]  # type: ignore[misc]
        told.append(answered(lambda: client.put(b"", delay=HOUR)))
        for body, each in zip([*bodies, b"?"], told, strict=True):
            if body.startswith(b"bad"):
                assert isinstance(each, StoreFullError) and str(each) == body.decode()
            elif body == b"?":
                assert isinstance(each, InvalidArgumentError)
            else:
                timer = store.get(each) if isinstance(each, str) else None
                assert timer is not None and timer.body == body
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(putting, "put", refuse)
        patch.setattr(putting.short_way, "put", lambda *_: None)
        told = [*chain(*together(work, range(THREADS)))]
    assert store.count() == sum(isinstance(each, str) for each in told) == 6 * THREADS
    assert max(joined) > 1


def test_an_answer_that_is_lost_is_given_again(
    store: TimerStore, client: Client, joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or found in the log: half of what was kept is forgotten. Nothing is put twice."""
    rnd, send, lost = np.random.default_rng(1), Wire.send, list[int]()

    def lose(
        wire: Wire, header: Header, parts: Sequence[Part] = (), bytes_max: int | None = None
    ) -> None:
        if header.get("result") is not None and rnd.random() < 0.3:
            lost.append(len(header["result"]))
            raise LostError("on purpose")
        send(wire, header, parts, bytes_max)

    def work(name: int) -> list[str]:
        return [client.put(b"%d.%d" % (name, i), topic="t", delay=HOUR) for i in range(30)]

    monkeypatch.setattr(Wire, "send", lose)
    monkeypatch.setattr(
        "timerstore.share.session.LastAnswers.find",
        lambda answers, slot, number: None,
    )
    ids = [*chain(*together(work, range(THREADS)))]
    monkeypatch.undo()
    assert lost and max(joined) > 1
    assert sorted(each.id for each in store.pending()) == sorted(ids)
    assert len({each.body for each in store.pending()}) == len(ids) == 30 * THREADS


def test_an_owner_that_refuses_all_tells_all(
    store: TimerStore, client: Client, joined: list[int]
) -> None:
    store.pause("putting")
    told = together(lambda _: answered(lambda: client.put(b"x", delay=HOUR)), range(THREADS))
    assert {type(each) for each in told} == {timerstore.PausedError}
    assert len({id(each) for each in told}) == THREADS and store.count() == 0


def test_nobody_serves(tmp_path: Path, joined: list[int]) -> None:
    """Each waits as long as it is to; then all know."""
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        timerstore.serve(store)
        client = timerstore.connect(store.path, timeout=0.3)
        client.put(b"x", delay=HOUR)
    with client:
        told = together(lambda _: answered(lambda: client.put(b"x", delay=HOUR)), range(THREADS))
        assert {type(each) for each in told} == {StoreClosedError}
        assert "No process has served" in str(told[0])
        assert not client._link.waiting and not client._link.putting


@pytest.mark.parametrize("is_before", [False, True])
def test_a_client_that_is_closed_keeps_nobody_waiting(
    store: TimerStore, client: Client, joined: list[int], is_before: bool
) -> None:
    if is_before:
        client.close()
    stop = threading.Timer(0.1, client.close)
    stop.start()

    def work(_: int) -> str | TimerStoreError:
        while True:
            told = answered(lambda: client.put(b"x", delay=HOUR))
            if not isinstance(told, str):
                return told

    assert {type(each) for each in together(work, range(THREADS))} == {StoreClosedError}
    stop.join()


def test_who_cannot_go_on_while_it_leads_leaves_nobody_waiting(
    store: TimerStore, client: Client, joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, rnd = Link._ask, np.random.default_rng(1)

    def fail(link: Link, *given: Any) -> Answered:
        answer = ask(link, *given)
        if rnd.random() < 0.2:
            raise MemoryError
        return answer

    def work(name: int) -> list[str]:
        ids = []
        for i in range(20):
            with suppress(MemoryError, StoreClosedError):
                ids.append(client.put(b"%d.%d" % (name, i), topic="t", delay=HOUR))
        return ids

    monkeypatch.setattr(Link, "_ask", fail)
    ids = [*chain(*together(work, range(THREADS)))]
    assert 0 < len(ids) < 20 * THREADS == store.count()
    assert {*ids} < {each.id for each in store.pending()} and len({*ids}) == len(ids)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signals_exception_ends_its_own_put_alone(
    store: TimerStore, client: Client, joined: list[int]
) -> None:
    """The main thread is ended at each place of a put, while others put."""
    stop, done = threading.Event(), [0] * THREADS

    def work(name: int) -> None:
        while not stop.is_set():
            client.put(b"%d" % name, topic="t", delay=HOUR)
            done[name] += 1

    threads = [threading.Thread(target=work, args=(name,)) for name in range(THREADS)]
    for each in threads:
        each.start()
    at, raised = 0, True
    try:
        while raised:
            with suppress(Interrupt), interrupted(at) as count:
                client.put(b"x", topic="t", delay=HOUR)
            raised = count.raised
            at += 1 + at // 12
        before = [*done]
        wait_until(lambda: all(now > then for now, then in zip(done, before, strict=True)))
    finally:
        stop.set()
    for each in threads:
        each.join(30)
    assert not any(each.is_alive() for each in threads)
    assert store.count() >= sum(done)


def test_a_forked_child_waits_for_no_thread_of_its_parent(
    store: TimerStore, client: Client, joined: list[int]
) -> None:
    stop = threading.Event()

    def work(_: int) -> None:
        while not stop.is_set():
            client.put(b"x", topic="t", delay=HOUR)

    def many() -> int:
        return len({*together(lambda _: client.put(b"y", topic="u", delay=HOUR), range(THREADS))})

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for each in threads:
        each.start()
    try:
        for _ in range(3):
            assert told_by_a_child({"many": many}) == {"many": f"{THREADS}"}
    finally:
        stop.set()
    for each in threads:
        each.join()
    assert store.count("u") == 3 * THREADS


def test_they_share_a_fsync(tmp_path: Path, joined: list[int]) -> None:
    config = timerstore.Config(tuning=timerstore.Tuning(commitlog_segment_bytes=1 << 20))
    disk = HeldDisk()
    with TimerStore(tmp_path / "s", config=config, disk=disk) as store, timerstore.serve(store):
        with Client(tmp_path / "s") as client:
            client.put(b"x", delay=HOUR)
            before = store.stats().sync_count
            disk.hold_syncs()
            ids = list[str]()
            putting = [
                threading.Thread(target=lambda: ids.append(client.put(b"x", delay=HOUR)))
                for _ in range(THREADS)
            ]
            for each in putting:
                each.start()
            try:
                wait_until(lambda: len(client._link.waiting) == THREADS)
                assert not ids
            finally:
                disk.go_on()
            for each in putting:
                each.join()
        assert store.stats().sync_count - before < THREADS / 2
        assert sum(joined) == THREADS > len(joined) and {each.id for each in store.pending()} > {
            *ids
        }
