"""The owner's end of serving: who is let in, what nonsense it bears, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import timerstore
from tests.aio.held_disk import HeldDisk
from tests.rigs.together import together
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from tests.test_fork import told_by_a_child
from timerstore import (
    Client,
    InvalidArgumentError,
    ManualClock,
    NotAStoreError,
    StoreAccessError,
    StoreClosedError,
    TimerStore,
)
from timerstore.share import link as link_module
from timerstore.share.framecolumns import read_table, write_table
from timerstore.share.server import Server
from timerstore.share.wire import PROTOCOL, SOCKET_NAME, LostError, Wire, connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        yield store


@pytest.fixture
def server(store: TimerStore) -> Server:
    return timerstore.serve(store)


def hello(store: TimerStore, slot: str = "1") -> Wire:
    wire = Wire(connect(store.path, SOCKET_NAME, 10))
    wire.send({"protocol": PROTOCOL, "session": "0123456789ab", "slot": slot})
    assert "life" in wire.receive()[0]
    return wire


def test_the_socket_is_the_users_alone(store: TimerStore, server: Server) -> None:
    file = store.path / SOCKET_NAME
    assert stat.S_ISSOCK(file.stat().st_mode) and stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(StoreAccessError, match="served already"):
        timerstore.serve(store)
    server.close()
    with pytest.raises(StoreClosedError, match="No process has served"):
        timerstore.connect(store.path, timeout=0.1)
    with timerstore.serve(store), timerstore.connect(store.path) as client:
        assert client.count() == 0
    with pytest.raises(InvalidArgumentError, match="store is"):
        timerstore.serve("timers")  # type: ignore[arg-type]


def test_what_cannot_be_served(tmp_path: Path) -> None:
    with (
        timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock()) as store,
        pytest.raises(InvalidArgumentError, match="manual clock"),
    ):
        timerstore.serve(store)
    with pytest.raises(StoreClosedError):
        timerstore.serve(store)


NONSENSE = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00" * 100,
    struct.pack("!i", -1),
    struct.pack("!i", -1) + struct.pack("!Q", 1 << 60),
    struct.pack("!i", 1 << 30) + b"x",
    struct.pack("!i", 4) + b"{]]}",
    struct.pack("!i", 2) + b"[]",
    struct.pack("!i", 2) + b"{}",
    struct.pack("!i", 5) + b"\xff\xfe\x00\x01\x02",
    struct.pack("!i", 60_000) + b"[" * 60_000,
]


def test_nonsense_ends_a_connection_and_nothing_else(store: TimerStore, server: Server) -> None:
    said = json.dumps({"protocol": PROTOCOL, "session": "0123456789ab", "slot": "1"}).encode()
    with timerstore.connect(store.path) as client:
        for before in (b"", struct.pack("!i", len(said)) + said):
            for nonsense in NONSENSE:
                guest = connect(store.path, SOCKET_NAME, 10)
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    guest.sendall(before + nonsense)
                    guest.shutdown(socket.SHUT_WR)
                    while guest.recv(1 << 16):
                        pass
                guest.close()
        assert client.put(b"x", delay_level=3) and client.count() == 1
        wait_until(lambda: server.client_count == 1)  # it sees that the guests have gone


QUESTIONS: list[dict[str, object]] = [
    {},
    {"call": None},
    {"call": ["put"]},
    {"call": "close"},
    {"call": "__init__", "with": {}},
    {"call": "put", "with": [1]},
    {"call": "put", "with": {}},
    {"call": "put", "with": {"body": {"base64": "?"}, "self": 1}},
    {"call": "put", "with": {"body": {"base64": "eA=="}, "properties": 7}},
    {"call": "put_many", "with": {"topic": "t"}},
    {"call": "pull", "with": {"topic": "t"}},
    {"call": "pull", "with": {"topic": "t", "group": [], "max_count": {}, "timeout": "x"}},
    {"call": "ack", "with": {"batch": [], "places": 3}},
    {"call": "ack", "with": {"batch": "x", "places": [{}]}},
    {"call": "nack", "with": {"batch": {}, "place": "x", "delay_s": "y"}},
    {"call": "describe", "with": {"batch": 1, "count": -1}},
    {"call": "give_back", "with": {}},
    {"call": "pending", "with": {"listing": {}}},
    {"call": "beat", "with": {"x": 1}},
]


def test_a_question_without_sense_is_answered(store: TimerStore, server: Server) -> None:
    wire = hello(store)
    for question in QUESTIONS:
        wire.send(question)
        header, _ = wire.receive()
        assert "message" in header or header["result"] in (None, False), question
    wire.send({"call": "count", "with": {}})
    assert wire.receive()[0]["result"] == 0
    wire.close()


def put_frame(**more: object) -> bytes:
    """A client's put of one byte, as it is sent."""
    at_ms, taken = 4 * 10**12, bytearray()
    given = {"topic": "t", "at_ms": at_ms} | more
    here, there = socket.socketpair()
    with here, there:
        Wire(here).send({"call": "put", "with": given, "number": 1, "since": 0}, [b"x"])
        here.shutdown(socket.SHUT_WR)
        while come := there.recv(1 << 12):
            taken += come
    return bytes(taken)


@pytest.mark.parametrize("more", [{}, {"key": "k", "properties": {"a": "b"}}])
def test_a_put_frame_that_is_wrong(
    store: TimerStore, server: Server, more: dict[str, object]
) -> None:
    """It is put, refused, or ends its connection; the owner answers the next one."""
    good, count = put_frame(**more), 0
    head = struct.calcsize("!i")
    flips = [good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :] for at in range(head, len(good))]
    cuts = [struct.pack("!i", at - head) + good[head:at] for at in range(head, len(good))]
    for i, wrong in enumerate([good, *flips, *cuts]):
        wire = hello(store, slot=str(i))
        wire.socket.sendall(wrong)
        try:
            header, _ = wire.receive()
        except LostError:
            continue
        finally:
            wire.close()
        count += "result" in header
        assert "result" in header or "message" in header, wrong
    assert 0 < count == store.count() and all(each.id for each in store.pending())
    with timerstore.connect(store.path) as client:
        assert client.put(b"y", delay_level=3)


def columns(rows: pa.RecordBatch) -> bytes:
    (part,) = write_table(pa.table(rows))
    return bytes(part)


GOOD = columns(pa.record_batch({"body": [b"a", b"bb"], "at_ms": [4 * 10**12] * 2}))


BAD = [
    b"",
    b"ARROW1",
    GOOD[:-100],
    columns(pa.record_batch({"at_ms": [1]})),
    columns(pa.record_batch({"body": ["text"], "at_ms": ["x"]})),
    columns(pa.record_batch({"body": [None, b"a"]})),
    columns(pa.record_batch({"body": [1, 2]})),
    columns(pa.record_batch({"body": [b"a"], "at_ms": pa.array([None], pa.int64())})),
    columns(pa.record_batch({"body": [b"a"], "key": [b""]})),
    columns(pa.record_batch({"body": [b"a"], "secret": [1]})),
]


def test_columns_that_are_none_are_refused(store: TimerStore, server: Server) -> None:
    wire = hello(store)
    for part in BAD:
        wire.send({"call": "put_many", "with": {"topic": "t", "tag": None}}, [part])
        assert wire.receive()[0]["error"] == "InvalidArgumentError"
    wire.close()
    assert store.count() == 0


def test_no_flipped_bit_of_columns_does_harm(store: TimerStore, server: Server) -> None:
    """They are put, or refused; offsets never lead elsewhere."""
    wire = hello(store)
    for at in range(0, len(GOOD), 3):
        flipped = bytearray(GOOD)
        flipped[at] ^= 0x55
        try:
            read_table([bytes(flipped)])
        except InvalidArgumentError:
            continue
        wire.send({"call": "put_many", "with": {"topic": "t", "tag": None}}, [bytes(flipped)])
        header, _ = wire.receive()
        assert header.get("error", "InvalidArgumentError") == "InvalidArgumentError"
    wire.close()
    assert all(len(each.body) <= 3 for each in store.pending())


def test_another_version_is_refused_clearly(
    store: TimerStore, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PROTOCOL", 999)
    with pytest.raises(
        NotAStoreError, match=r"speaks protocol 1, and this client speaks protocol 999"
    ):
        timerstore.connect(store.path)


def test_the_owner_closes_while_clients_wait(store: TimerStore, server: Server) -> None:
    """A pull that waits ends, and finds the next owner; a put that was made is answered."""
    with timerstore.connect(store.path, timeout=30) as client:
        found: list[object] = []
        waiting = threading.Thread(
            target=lambda: found.append(client.pull("t", timeout=30).bodies.to_pylist())
        )
        waiting.start()
        client.put(b"x", delay_level=1)
        store.close()
        with timerstore.open(store.path, config=SMALL) as store:
            timerstore.serve(store)
            client.put(b"y", topic="t")
            waiting.join(30)
            assert found == [[b"y"]]


def test_a_call_that_cannot_be_made_twice_says_so(store: TimerStore, server: Server) -> None:
    with timerstore.connect(store.path, timeout=0.2) as client:
        client.count()
        store.close()
        with pytest.raises(StoreClosedError, match=r"ended before it answered|No process has"):
            client.retry_dead_letters("g")
        with pytest.raises(StoreClosedError, match="No process has served"):
            client.put(b"x")


def test_a_forked_child_serves_nobody(store: TimerStore, server: Server) -> None:
    with timerstore.connect(store.path) as client:
        told = told_by_a_child({"store": lambda: store.put(b"x"), "server": server.close})
        assert told == {"store": "ForkedProcessError", "server": "None"}
        assert client.put(b"x", delay_level=3)
        assert (store.path / SOCKET_NAME).exists()


def test_puts_of_many_clients_share_a_fsync(tmp_path: Path) -> None:
    config = timerstore.Config(tuning=timerstore.Tuning(commitlog_segment_bytes=1 << 20))
    disk = HeldDisk()

    def work(_: int) -> None:
        with Client(tmp_path / "s") as client:
            client.put(b"x", delay_level=18)

    with TimerStore(tmp_path / "s", config=config, disk=disk) as store, timerstore.serve(store):
        before = store.stats().sync_count
        disk.hold_syncs()
        putting = threading.Thread(target=together, args=(work, range(8)))
        putting.start()
        try:
            wait_until(lambda: store.count() == 8)
        finally:
            disk.go_on()
            putting.join()
        assert store.stats().sync_count - before < 8
    assert os.listdir(tmp_path) == ["s"]
