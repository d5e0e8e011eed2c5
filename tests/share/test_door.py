"""The door: what the shell asks of a store's owner, though anything goes wrong."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import timerstore
from tests.rigs.together import together
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import (
    Config,
    InvalidArgumentError,
    ManualClock,
    PausedError,
    StoreAccessError,
    StoreClosedError,
    TimerStore,
    TimerStoreError,
    TooLateError,
    Tuning,
    UnknownTimerError,
)
from timerstore.share import server as server_module
from timerstore.share import wire
from timerstore.share.server import find_door
from timerstore.share.wire import SOCKET_NAME, Owner, connect, find_owner, from_json, to_json
from timerstore.timelog.files.folders import HeldFolder

pytestmark = pytest.mark.timeout(120)
FAR_MS = 4_070_908_800_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        yield store


@pytest.fixture
def owner(store: TimerStore) -> Owner:
    found = find_owner(store.path)
    assert found is not None
    return found


def raw(path: Path, data: bytes) -> bytes:
    """Say something, and return all that is answered."""
    with connect(path, SOCKET_NAME, 20) as guest:
        with contextlib.suppress(BrokenPipeError):  # it has seen enough
            guest.sendall(data)
            guest.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := guest.recv(1 << 16):
                answer += piece
        return answer


def get(path: Path, url: str) -> tuple[int, Any]:
    """Ask as curl does; return the status, with what JSON says."""
    request = f"GET {url} HTTP/1.1\r\nHost: timerstore\r\nAccept: */*\r\n\r\n"
    head, _, content = raw(path, request.encode()).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(content)}".encode() in head
    return int(head.split()[1]), json.loads(content)


def test_a_timer_is_put_moved_and_cancelled(store: TimerStore, owner: Owner) -> None:
    options = {"topic": "t", "key": "k", "properties": {"a": "b"}}
    id = owner.call("put", body=b"\xff\x00", at_ms=FAR_MS, **options)
    found = owner.call("get", id=id)
    assert (found["body"], found["key"], found["topic"]) == (b"\xff\x00", "k", "t")
    moved = owner.call("reschedule", id=id, at_ms=FAR_MS + 5)
    moved = owner.call("reschedule", id=moved, body=b"\xfe", properties={"c": "d"})
    timer = store.get(moved)
    assert (timer.body, timer.properties, timer.due_ms) == (b"\xfe", {"c": "d"}, FAR_MS + 5)
    many = owner.call("put_many", bodies=[b"x", b"y"], at_ms=[FAR_MS] * 2, keys=["k", "l"])
    assert owner.call("count", topic="t") == 1
    assert owner.call("cancel_many", ids=[moved, *many]) == [True] * 3
    assert owner.call("count") == 0


def test_errors_are_those_of_the_owner(store: TimerStore, owner: Owner) -> None:
    id = store.put(b"x", delay_level=2)
    store.cancel(id)
    with pytest.raises(UnknownTimerError):
        owner.call("cancel", id="0" * 32)
    with pytest.raises((TooLateError, InvalidArgumentError)):
        owner.call("reschedule", id=id, at_ms=FAR_MS)
    owner.call("pause", what="putting", duration_s=99)
    with pytest.raises(PausedError):
        owner.call("put", body=b"x")
    owner.call("resume", what="putting")
    for name, arguments, text in (
        ("close", {}, "no call 'close'"),
        ("put", {}, "missing.*argument: 'body'"),
        ("put", {"body": b"x", "dely": 3}, "dely"),
        ("pause", {"what": "firing", "duration_s": "soon"}, "duration_s"),
        ("count", {"tpoic": 3}, "tpoic"),
        ("put", {"body": "text"}, "bytes"),
        ("__class__", {}, "no call"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            owner.call(name, **arguments)
    with pytest.raises(InvalidArgumentError, match="Make several calls"):
        owner.call("put", body=bytes(64 << 20))
    assert owner.call("count") == 0


def test_health_and_numbers_are_read_as_curl_does(store: TimerStore, owner: Owner) -> None:
    assert owner.call("health")["state"] == "running"
    status, answer = get(store.path, "/health")
    assert (status, answer["result"]["ok"]) == (200, True)
    assert get(store.path, "/count") == (200, {"result": 0})
    assert get(store.path, "/stats")[1]["result"].keys() == owner.call("stats").keys()
    for url in ("/cancel", "/", "/health/x", "/put?body=x"):
        status, answer = get(store.path, url)
        assert status == 404 and "GET one of health, stats, count" in answer["message"]
    answer = raw(store.path, b"POST /put HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
    assert answer.split()[1] == b"501"


def test_the_socket_is_its_owners_alone_and_goes_with_the_store(tmp_path: Path) -> None:
    store = timerstore.open(tmp_path / "s", config=SMALL)
    file = tmp_path / "s" / SOCKET_NAME
    mode = file.stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) & 0o077 == 0
    store.close()
    store.close()
    assert not file.exists() and find_owner(tmp_path / "s") is None
    assert [
        each.name for each in threading.enumerate() if each.name.startswith("timerstore-door")
    ] == []


@pytest.mark.parametrize("kind", ["manual", "off", "read-only", "plain", "direct"])
def test_where_nobody_listens_nobody_is_found(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    timerstore.open(path, config=SMALL).close()
    if kind == "manual":
        store = timerstore.open(path, clock=ManualClock(time.time_ns() // 1_000_000))
    elif kind == "off":
        store = timerstore.open(path, config=Config(tuning=Tuning(control=False)))
    elif kind == "read-only":
        store = timerstore.open(path, read_only=True)
    elif kind == "plain":
        (path / SOCKET_NAME).write_bytes(b"no socket")
        assert find_owner(path) is None
        store = timerstore.open(path)
        assert find_owner(path).call("count") == 0  # it was in the way
        store.close()
        return
    else:
        store = TimerStore(path)
    assert find_owner(path) is None and find_owner(tmp_path / "nothing") is None
    store.close()


def test_a_store_that_is_not_served_is_asked_all_the_same(store: TimerStore, owner: Owner) -> None:
    """Its clients are let in once it is served, at once, until it is not."""
    found: list[int] = []

    def come() -> None:
        with timerstore.connect(store.path, timeout=60) as client:
            found.append(client.count())

    coming = threading.Thread(target=come)
    coming.start()
    assert owner.call("count") == 0 and not found
    with timerstore.serve(store) as server:
        coming.join(60)
        wait_until(lambda: server.client_count == 0)  # it sees that the client has gone
        with timerstore.connect(store.path) as client:
            assert (client.count(), server.client_count, *found) == (0, 1, 0)
            server.close()
            assert owner.call("count") == 0
            with timerstore.serve(store) as again:
                server.close()
                assert client.count() == 0 and again.client_count == 1


def test_a_listing_goes_on_over_its_connection_and_ends_with_it(
    store: TimerStore, owner: Owner
) -> None:
    store.put_many([b"%d" % i for i in range(1_100)], delay_ms=3_600_000)
    told = [each["body"] for each in owner.pending(limit=1_050)]
    assert told == [timer.body for timer in store.pending(limit=1_050)]
    held, listing = store.core.engine.holds._alive, owner.pending()
    next(listing)
    assert len(held) == 1
    listing.close()
    wait_until(lambda: gc.collect() >= 0 and not len(held))
    listing = owner.pending()
    next(listing)
    store.close()
    with pytest.raises(StoreClosedError, match="ended before it answered"):
        assert not [*listing]


def test_the_shell_may_be_shut_out_of_what_clients_use(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=Config(tuning=Tuning(control=False))) as store:
        with timerstore.serve(store), timerstore.connect(store.path) as client:
            assert client.put(b"x", delay_level=3)
            with pytest.raises(StoreAccessError, match=r"Config\.control is False"):
                find_owner(store.path).call("count")
            assert get(store.path, "/count")[0] == 409
        assert not (store.path / SOCKET_NAME).exists()
        with timerstore.serve(store), timerstore.connect(store.path) as client:
            assert client.count() == 1


@pytest.mark.linux
def test_long_paths_and_odd_names_work(tmp_path: Path) -> None:
    path = tmp_path / ("long " + "x" * 100) / "ünïcode"
    path.parent.mkdir()
    with timerstore.open(path, config=SMALL):
        assert find_owner(path).call("count") == 0


def test_a_socket_of_a_killed_owner_is_nobody(tmp_path: Path) -> None:
    path = tmp_path / "s"
    code = (
        "import os, sys, timerstore\n"
        "s = timerstore.open(sys.argv[1]); s.put(b'x', at_ms=10**13)\n"
        "print('open', flush=True); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, path], timeout=100, check=False)
    assert (path / SOCKET_NAME).exists() and find_owner(path) is None
    with timerstore.open(path, config=SMALL) as store:
        assert find_owner(path).call("count") == store.count() == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff" * 1_000,
        b"GET /health",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"PUT /put HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 1_000 + b"\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_nonsense_does_no_harm(store: TimerStore, owner: Owner, data: bytes) -> None:
    answer = raw(store.path, data)
    assert b" 200 " not in answer.split(b"\r\n")[0] and b" 500 " not in answer.split(b"\r\n")[0]
    assert owner.call("count") == 0


def test_nobody_keeps_anybody_out(store: TimerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients, many who ask at once, many more who say nothing, or half a question."""
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 24)
    monkeypatch.setattr(server_module, "_HELLO_S", 60.0)  # longer than this test may take
    ids: list[str] = []

    def ask(_: int) -> None:
        for _ in range(5):
            ids.append(find_owner(store.path).call("put", body=b"x", at_ms=FAR_MS))

    with timerstore.serve(store), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(timerstore.connect(store.path)) for _ in range(12)]
        # The second connection of each.
        wait_until(lambda: all(client._link._heart for client in clients))
        with pytest.raises(StoreAccessError, match="24 connections already"):
            timerstore.connect(store.path)
        for i in range(60):
            idle = stack.enter_context(connect(store.path, SOCKET_NAME, 30))
            with contextlib.suppress(BrokenPipeError):
                idle.sendall((b"", b"GET /health", b"\0\0")[i % 3])
        together(ask, range(20))
        assert len(set(ids)) == store.count() == clients[0].count() == 100
        assert get(store.path, "/count") == (200, {"result": 100})


def test_a_socket_that_was_removed_is_made_again(
    store: TimerStore, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where something else stands there; a client that is connected notices nothing."""
    monkeypatch.setattr(wire, "LOOK_S", 0.02)
    file = store.path / SOCKET_NAME
    with timerstore.serve(store), timerstore.connect(store.path, timeout=20) as connected:
        for stand in (lambda file: None, Path.touch, lambda file: file.symlink_to("/dev/null")):
            file.unlink()
            stand(file)
            while not file.is_socket():
                pass
            connect(store.path, SOCKET_NAME, 5).close()  # what is found listens
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert not (store.path / f"{SOCKET_NAME}.new").exists()
        assert owner.call("count") == connected.count() == 0
        with timerstore.connect(store.path, timeout=5) as client:
            assert client.count() == 0


def test_a_folder_that_was_moved_takes_its_socket_along(tmp_path: Path) -> None:
    """Nothing is made, or removed, in another store that came in its place."""
    store = timerstore.open(tmp_path / "s", config=SMALL)
    (tmp_path / "s").rename(tmp_path / "moved")
    with timerstore.open(tmp_path / "s", config=SMALL) as other:
        other.put(b"x", delay_level=3)
        with contextlib.suppress(StoreAccessError):  # it has seen by now that it was moved
            store.close()
        assert find_owner(tmp_path / "s").call("count") == 1
    assert not (tmp_path / "moved" / SOCKET_NAME).exists()


def test_closing_does_not_wait_for_those_who_only_hold_a_connection(tmp_path: Path) -> None:
    store = timerstore.open(tmp_path / "s", config=SMALL)
    owner = find_owner(store.path)
    assert owner.call("count") == 0
    held = [connect(store.path, SOCKET_NAME, 30) for _ in range(server_module.CONNECTIONS_MAX + 4)]
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < server_module._HELLO_S / 2
    with pytest.raises(StoreClosedError, match="ended before it answered"):
        owner.call("count")
    for each in held:
        each.close()


def test_a_closed_store_that_was_asked_goes_with_its_last_reference(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        store = timerstore.open(tmp_path / "s", config=SMALL)
        assert find_owner(store.path).call("count") == 0
        store.close()
        core = weakref.ref(store.core)
        del store
        wait_until(lambda: core() is None)  # a thread may be about to end
    finally:
        gc.enable()


def test_a_forked_child_does_not_listen(store: TimerStore, owner: Owner) -> None:
    listening = find_door(store)
    with timerstore.serve(store), timerstore.connect(store.path) as client:
        assert client.count() == 0 and listening is not None and listening.client_wires
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            wires = [each.socket.fileno() for each in listening._wires]
            os.write(write, json.dumps([listening._listener.fileno(), *wires]).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert set(json.loads(os.read(read, 1_000))) == {-1}
        os.close(read)
        os.close(write)
        assert owner.call("count") == client.count() == 0


def test_an_owner_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "abort").write_text("12345")
    listening = wire.Listener(HeldFolder(tmp_path), SOCKET_NAME)
    owner = find_owner(tmp_path)
    owner.timeout_s = 0.2
    with pytest.raises(TimerStoreError, match=r"12345.*did not answer"):
        owner.call("count")
    listening.close()


NAMES = st.sampled_from(["base64", "object", "a"])
VALUES = st.recursive(
    st.none() | st.integers() | st.booleans() | st.text() | st.binary() | st.just("aGVsbG8="),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
)


@given(VALUES)
@example({"base64": "aGVsbG8="})
@example({"object": {"base64": {"object": {}}}})
def test_values_come_back_as_they_were(value: object) -> None:
    """Whatever a user's dict has for keys: properties named base64 are no bytes."""
    assert from_json(json.loads(json.dumps(to_json(value)))) == value


@pytest.mark.parametrize("text", ["hello!", "é", "aGVsbG8", "\ud800", "aGVs bG8="])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(timerstore.InvalidArgumentError, match="no base64"):
        from_json([{"body": {"base64": text}}])
