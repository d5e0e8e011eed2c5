"""`timerstore serve`: a process that has a store open for others, until it is told to end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from tests.rigs.waiting import wait_until
from tests.rigs.warm import Warm
from timerstore import StoreClosedError
from timerstore.share import link
from timerstore.share.wire import LostError, Wire

RUN = "from timerstore.cli import main; main()"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(90), pytest.mark.prove]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[socket.socket]:
    """A supervisor's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(60)
        yield told


def start(path: Path, *options: str) -> subprocess.Popen[str]:
    return Warm(
        [sys.executable, "-P", "-c", RUN, "serve", path, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NOTIFY_SOCKET": str(path.parent / "notify")},
    )


@pytest.mark.parametrize("connects", [True, False], ids=["", "heart connects anew"])
def test_an_owner_that_was_stopped_is_none(
    tmp_path: Path, told: socket.socket, monkeypatch: pytest.MonkeyPatch, connects: bool
) -> None:
    """A call does not hang, but says so after a while; it is made when the owner goes on."""
    monkeypatch.setattr(link, "_ANSWER_S", 0.3)
    monkeypatch.setattr(link, "_HELLO_S", 0.5)
    connect, begins = link.Link._connect, threading.Event()

    def connect_or_not(self: link.Link, slot: str) -> Wire:
        if slot == "heart" and begins.is_set():
            raise LostError("it took too long")
        return connect(self, slot)

    monkeypatch.setattr(link.Link, "_connect", connect_or_not)
    serving = start(tmp_path / "s")
    assert told.recv(100) == b"READY=1"
    with timerstore.connect(tmp_path / "s", timeout=2) as client:
        if not connects:
            wait_until(lambda: client._link._heart is not None)
            begins.set()
            client._link._heart.end()
            time.sleep(0.3)
        client.put(b"x", delay_level=18)
        serving.send_signal(signal.SIGSTOP)
        os.waitpid(serving.pid, os.WUNTRACED)  # it has stopped
        with pytest.raises(StoreClosedError, match=rf"pid {serving.pid}\) may have it open"):
            client.put(b"y", delay_level=18)
        serving.send_signal(signal.SIGCONT)
        begins.clear()
        assert client.put(b"z", delay_level=18)
        assert [each.body for each in client.pending()][-1] == b"z"
    serving.terminate()
    serving.communicate(timeout=60)
    assert serving.returncode == 0


def test_it_serves_until_it_is_told_to_end(tmp_path: Path, told: socket.socket) -> None:
    path = tmp_path / "s"
    serving = start(path)
    assert told.recv(100) == b"READY=1"
    with timerstore.connect(path) as client:
        id = client.put(b"x", delay_level=18)
        second = start(path)
        _, refused = second.communicate(timeout=60)
        assert second.returncode == 3 and f"pid {serving.pid}" in refused
        serving.send_signal(signal.SIGTERM)
        said, errors = serving.communicate(timeout=60)
        assert serving.returncode == 0, errors
        assert "serving, pid" in said and errors == ""
        while (last := told.recv(100)).startswith(b"STATUS="):
            pass
        assert last == b"STOPPING=1"
        third = start(path)  # what a supervisor does
        assert client.get(id) is not None  # it waited for the next one
        third.kill()
        third.communicate()


def test_it_shows_metrics(tmp_path: Path, told: socket.socket) -> None:
    for wrong in ("nine", "127.0.0.1:99999"):
        other = start(tmp_path / "other", "--metrics", wrong)
        assert "Pass a port that is free" in other.communicate(timeout=60)[1]
        assert other.returncode == 2
    assert not (tmp_path / "other").exists()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serving = start(tmp_path / "s", "--metrics", f"{port}")
    assert told.recv(100) == b"READY=1"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert 'timerstore_groups_left_out{name="s"}' in answer.read().decode()
    serving.terminate()
    serving.communicate(timeout=60)
    assert serving.returncode == 0
