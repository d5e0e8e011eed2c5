"""The door: what a second process asks, though anything goes wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import timerstore
from tests.small_store import SMALL
from timerstore import (
    Config,
    InvalidArgumentError,
    ManualClock,
    PausedError,
    StoreClosedError,
    TimerStore,
    TimerStoreError,
    TooLateError,
    UnknownTimerError,
)
from timerstore.control import client, door, socketfile
from timerstore.control.client import Owner, find_owner
from timerstore.control.wire import SOCKET_NAME, from_json, to_json

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        yield store


@pytest.fixture
def owner(store: TimerStore) -> Owner:
    found = find_owner(store.path)
    assert found is not None
    return found


def test_a_timer_is_put_moved_and_cancelled(store: TimerStore, owner: Owner) -> None:
    id = owner.call("put", body=b"\xff\x00", topic="t", delay_s=60, key="k", properties={"a": "b"})
    found = owner.call("get", id=id)
    assert (found["body"], found["key"], found["topic"]) == (b"\xff\x00", "k", "t")
    moved = owner.call("reschedule", id=id, delay_s=90.5)
    assert store.get(moved).due_ms > found["due_ms"]
    due_ms = store.get(moved).due_ms
    moved = owner.call("reschedule", id=moved, body=b"\xfe", properties={"c": "d"})
    timer = store.get(moved)
    assert (timer.body, timer.properties, timer.due_ms) == (b"\xfe", {"c": "d"}, due_ms)
    assert owner.call("count", topic="t") == 1
    assert owner.call("cancel_many", ids=[moved]) == [True]
    assert owner.call("count") == 0


def test_errors_are_those_of_the_owner(store: TimerStore, owner: Owner) -> None:
    id = store.put(b"x", delay_level=2)
    store.cancel(id)
    with pytest.raises(UnknownTimerError):
        owner.call("cancel", id="0" * 32)
    with pytest.raises((TooLateError, InvalidArgumentError)):
        owner.call("reschedule", id=id, delay_s=1)
    owner.call("pause", what="putting")
    with pytest.raises(PausedError):
        owner.call("put", body=b"x")
    owner.call("resume", what="putting")
    for name, arguments, text in (
        ("close", {}, "no call 'close'"),
        ("put", {}, "missing a required argument: 'body'"),
        ("put", {"body": b"x", "dely": 3}, "dely"),
        ("put", {"body": b"x", "delay_s": "soon"}, "delay_s"),
        ("put", {"body": "text"}, "bytes"),
        ("__class__", {}, "no call"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            owner.call(name, **arguments)
    assert owner.call("count") == 0


def test_health_and_stats_are_json(store: TimerStore, owner: Owner) -> None:
    assert owner.call("health")["state"] == "running"
    assert owner.call("stats")["pending_count"] == 0
    assert owner.call("horizon", bucket_ms=60_000) is not None
    connection = client._Connection(store.path, 30)
    connection.request("GET", "/health")
    assert json.loads(connection.getresponse().read())["result"]["ok"] is True
    connection.request("GET", "/cancel")
    assert connection.getresponse().status == 405
    connection.close()


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
        store = timerstore.open(path, config=Config(control=False))
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


def raw(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as guest:
        guest.settimeout(20)
        folder = os.open(path, os.O_PATH)
        guest.connect(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        os.close(folder)
        with contextlib.suppress(BrokenPipeError):  # it has seen enough
            guest.sendall(data)
            guest.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := guest.recv(1 << 16):
                answer += piece
        return answer


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff" * 1_000,
        b"GET /health",
        b"POST /put HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n",
        b"POST /put HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /put HTTP/1.1\r\n\r\n",
        b"POST /put HTTP/1.1\r\nContent-Length: 10\r\n\r\n{}",
        b"POST /put HTTP/1.1\r\nContent-Length: 2\r\n\r\n[]",
        b"POST /put HTTP/1.1\r\nContent-Length: 4\r\n\r\n\xff\xff\xff\xff",
        b"POST /count HTTP/1.1\r\nContent-Length: 7\r\n\r\n" + b"[" * 7,
        b"POST /put HTTP/1.1\r\nContent-Length: 30\r\n\r\n" + b'{"body": {"base64": "!!!"}}   ',
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_nonsense_does_no_harm(store: TimerStore, owner: Owner, data: bytes) -> None:
    answer = raw(store.path, data)
    assert b" 200 " not in answer.split(b"\r\n")[0] and b" 500 " not in answer.split(b"\r\n")[0]
    assert owner.call("count") == 0


def test_many_ask_at_once_and_idle_ones_keep_nobody_out(store: TimerStore) -> None:
    idle = [client._Connection(store.path, 30) for _ in range(door.GUESTS_MAX - 2)]
    for each in idle:
        each.connect()
    ids: list[str] = []

    def ask() -> None:
        for _ in range(5):
            ids.append(find_owner(store.path).call("put", body=b"x", delay_s=99))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(ids)) == store.count() == 100
    for each in idle:
        each.close()


def test_many_idle_connections_keep_nobody_out(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far more than are served at once: those that ask nothing go, those that ask are answered."""
    monkeypatch.setattr(door, "IDLE_S", 60.0)  # longer than this test may take
    idle = [client._Connection(store.path, 30) for _ in range(5 * door.GUESTS_MAX)]
    connecting = threading.Thread(target=lambda: [each.connect() for each in idle])
    connecting.start()
    for _ in range(5):
        assert Owner(store.path).call("count") == 0
    connecting.join(30)
    for each in idle:
        each.close()


def test_a_socket_that_was_removed_is_made_again(
    store: TimerStore, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where something else stands there; a client that is connected notices nothing."""
    monkeypatch.setattr(socketfile, "LOOK_S", 0.02)
    with timerstore.serve(store), timerstore.connect(store.path, timeout=20) as connected:
        for name in (SOCKET_NAME, "serve.sock"):
            for stand in (lambda file: None, Path.touch, lambda file: file.symlink_to("/dev/null")):
                (store.path / name).unlink()
                stand(store.path / name)
                while not (store.path / name).is_socket():
                    time.sleep(0.01)
                assert stat.S_IMODE((store.path / name).stat().st_mode) == 0o600
        assert owner.call("count") == connected.count() == 0
        with timerstore.connect(store.path, timeout=5) as client:
            assert client.count() == 0
    assert not (store.path / "serve.sock").exists()


def test_a_folder_that_was_moved_has_its_sockets(tmp_path: Path) -> None:
    """Nothing is made, or removed, in another store that came in its place."""
    store = timerstore.open(tmp_path / "s", config=SMALL)
    (tmp_path / "s").rename(tmp_path / "moved")
    with timerstore.open(tmp_path / "s", config=SMALL) as other:
        other.put(b"x", delay_level=3)
        assert find_owner(tmp_path / "moved").call("count") == 0
        store.close()
        assert find_owner(tmp_path / "s").call("count") == 1
    assert not (tmp_path / "moved" / SOCKET_NAME).exists()


def test_closing_does_not_wait_for_those_who_only_hold_a_connection(tmp_path: Path) -> None:
    store = timerstore.open(tmp_path / "s", config=SMALL)
    owner = find_owner(store.path)
    assert owner.call("count") == 0
    held = [client._Connection(store.path, 30) for _ in range(door.GUESTS_MAX + 4)]
    for each in held:
        each.connect()
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < door.IDLE_S / 2
    with pytest.raises(StoreClosedError, match="ended before it answered"):
        owner.call("count")
    for each in held:
        each.close()


def test_a_forked_child_does_not_listen(store: TimerStore, owner: Owner) -> None:
    (listening,) = [each for each in door._doors if each._path == store.path]
    asking = client._Connection(store.path, 30)
    asking.request("POST", "/count", b"{}", {"Content-Type": "application/json"})
    assert asking.getresponse().read() == b'{"result": 0}\n'  # its handler reads on
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        guests = [each.fileno() for each in listening._guests]
        os.write(write, json.dumps([listening._listener.fileno(), *guests]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert set(json.loads(os.read(read, 100))) == {-1}
    asking.close()
    os.close(read)
    os.close(write)
    assert owner.call("count") == 0


def test_an_owner_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "abort").write_text("12345")
    listening = socketfile.Listener(tmp_path, SOCKET_NAME)
    owner = find_owner(tmp_path)
    owner.timeout_s = 0.2
    with pytest.raises(TimerStoreError, match=r"12345.*does not answer"):
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


def test_http_as_others_speak_it(store: TimerStore) -> None:
    connection = client._Connection(store.path, 30)
    for _ in range(3):  # one connection, many questions
        connection.request("POST", "/count", b"{}", {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())) == (200, {"result": 0})
    connection.close()
    assert isinstance(connection, http.client.HTTPConnection)
