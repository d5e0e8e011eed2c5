"""How the page ends; who is in its way; what it costs who does not ask for it."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import timerstore
from tests.cli.shell import SMALL
from tests.page.browsing import Browser
from tests.page.conftest import Shown
from tests.rigs.program import ended, python
from tests.rigs.waiting import wait_until
from tests.rigs.warm import Warm
from timerstore import InvalidArgumentError, TimerStore
from timerstore.page import PageServer, history, server, views

pytestmark = pytest.mark.timeout(120)

HOUR = timedelta(hours=1)


# --- how it ends; who is in the way


def test_it_ends_with_its_store(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s") as store:
        page = PageServer(store, "127.0.0.1:0")
        where = page.url.split("/")[2]
        taken = pytest.raises(InvalidArgumentError, match="a port that is free")
        with taken:
            PageServer(store, where)
        with PageServer(store, "127.0.0.1:0") as second:
            assert Browser(second.url).get("/").status == 200
        with pytest.raises(ConnectionError):
            Browser(second.url).get("/")
        second.close()
        assert Browser(page.url).get("/").status == 200
    with pytest.raises(ConnectionError):
        Browser(page.url).get("/")
    page.close()
    page.check()
    with timerstore.open(tmp_path / "s") as store, PageServer(store, where) as page:
        assert Browser(page.url).get("/").status == 200
    with pytest.raises(timerstore.StoreClosedError):
        PageServer(store, "127.0.0.1:0")
    assert not [each for each in threading.enumerate() if each.name == "timerstore-page"]


def test_a_page_of_a_client_waits_for_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "EVERY_S", 0.01)
    monkeypatch.setattr(history, "EVERY_S", 0.01)
    path = tmp_path / "s"
    with timerstore.open(path, config=SMALL) as store, timerstore.serve(store):
        client = timerstore.connect(path, timeout=0.1)
        page = PageServer(client, "127.0.0.1:0")
        client.put(b"x", topic="t", delay=HOUR)
        browser = Browser(page.url)
        assert "topic=t" in browser.get("/").text
        assert "pending" in browser.get("/pending?topic=t").text
    wait_until(lambda: "cannot look at it" in caplog.text)
    assert browser.get("/").status == 409
    with timerstore.open(path, config=SMALL) as store, timerstore.serve(store):
        assert "topic=t" in browser.get("/").text
        page.close()
        client.close()
    page.check()
    assert caplog.text.count("cannot look at it") < 5


def test_who_says_nothing_holds_nothing(
    store: TimerStore,
    show: Shown,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Connections that never ask are counted, end in time, and keep no store from being closed."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 8)
    browser = show()
    place = urlsplit(browser.url)
    address = place.hostname, place.port
    before = len(os.listdir("/proc/self/fd"))
    silent = [socket.create_connection(address, timeout=30) for _ in range(40)]
    silent[0].sendall(b"POST /pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nc")
    ended = [each for each in silent[8:] if not _reads(each)]
    assert len(ended) == 32
    assert len(os.listdir("/proc/self/fd")) <= before + 40 + 12
    store.put(b"x", delay=HOUR)
    assert store.health().ok
    monkeypatch.setattr(server, "ASK_S", 0.1)
    for each in silent:
        each.close()
    wait_until(lambda: _asked(browser) == 200)
    with socket.create_connection(address, timeout=30) as odd:
        odd.sendall(b"\0 is no HTTP\r\n\r\n")
        assert b"400" in odd.recv(100)
    late = socket.create_connection(address, timeout=30)
    assert not _reads(late)
    late.close()
    monkeypatch.setattr(server, "LIFE_S", 0.2)
    with socket.create_connection(address, timeout=30) as slow:
        form = "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n"
        slow.sendall(f"{form}Content-Length: 99\r\n\r\nc".encode())
        assert not _reads(slow)
    last = socket.create_connection(address, timeout=30)
    last.sendall(b"GET / HTTP/1.1\r\n")
    store.close()
    last.close()
    assert caplog.text == ""


def _reads(wire: socket.socket) -> bytes:
    try:
        return wire.recv(1)
    except ConnectionError:
        return b""


def _asked(browser: Browser) -> int:
    try:
        return browser.get("/style.css").status
    except (ConnectionError, ValueError):
        return 0


def test_a_request_that_fails_harms_nobody(
    store: TimerStore,
    show: Shown,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*given: object) -> None:
        raise ZeroDivisionError("a secret of the house")

    browser = show()
    monkeypatch.setattr(views.Views, "pending", fail)
    answer = browser.get("/pending")
    assert answer.status == 500 and "is a fault of timerstore" in answer.text
    assert "secret" not in answer.text and "a secret of the house" in caplog.text
    assert browser.get("/").status == 200 and store.health().ok


def test_the_end_of_its_thread_is_told(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*given: object, **more: object) -> None:
        raise SystemExit(3)

    monkeypatch.setattr("uvicorn.Server.run", fail)
    page = PageServer(store, "127.0.0.1:0")
    wait_until(lambda: "is not served any more" in caplog.text)
    with pytest.raises(SystemExit):
        page.check()
    store.put(b"x")
    assert store.health().ok
    page.close()


def test_a_store_that_has_stopped_is_shown(store: TimerStore, show: Shown) -> None:
    browser = show()
    store.core.engine.failure.keep(timerstore.FlushFailedError("the disk is gone"))
    assert browser.get("/").status == 200 and "flush failed" in browser.get("/").text
    answer = browser.get("/pending")
    assert answer.status == 409 and "the disk is gone" in answer.text
    store.core.engine.failure.error = None


def test_who_has_gone_is_not_worked_for(
    store: TimerStore, show: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty searches that nobody waits for would keep all others waiting."""
    begun, go_on, asked = threading.Event(), threading.Event(), list[str]()

    def look(self: object, fields: Any) -> dict[str, Any]:
        asked.append(fields["id"][0])
        begun.set()
        assert go_on.wait(60)
        raise timerstore.UnknownTimerError("none")

    browser = show()
    monkeypatch.setattr(views.Views, "timer", look)
    place = urlsplit(browser.url)
    for id in ("first", *["gone"] * 20):
        with socket.create_connection((place.hostname, place.port), timeout=30) as wire:
            wire.sendall(f"GET /timer?id={id} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert begun.wait(60)
    assert browser.get("/style.css").status == 200  # so the loop has seen them go
    go_on.set()
    assert browser.get("/timer?id=last").status == 404 and asked == ["first", "last"]


# --- the shell


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "shared").write_text("0123456789abcdef\n")
    (tmp_path / "shared").chmod(0o640)
    run = "from timerstore.cli import main; main()"
    command = [sys.executable, "-P", "-c", run, "serve", str(tmp_path / "s")]
    how = [
        "--page",
        "0",
        "--write",
        "--token-file",
        str(tmp_path / "token"),
        "--page-host",
        "a.example",
    ]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Warm([*command, *how], **pipes) as serving:
        assert serving.stdout is not None and serving.stderr is not None
        told = serving.stdout.readline()
        assert "serving, pid" in told
        browser = Browser(told.split()[-1])
        assert browser.get("/", Host="a.example").status == 403
        assert browser.send("/login", {"token": "0123456789abcdef"}).status == 303
        assert "Pause" in browser.get("/").text
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0, serving.stderr.read()
    command[-1] = str(tmp_path / "none")
    for wrong, told in (
        (["--write"], "Pass --page"),
        (["--page", "nine"], "no port 'nine'"),
        (["--page", "0", "--token-file", "nowhere"], "No such file"),
        (["--page", "0", "--token-file", str(tmp_path / "shared")], "chmod 600"),
        (["--page", "0", "--page-host", "a.example"], "--token-file"),
    ):
        done = ended(*command[2:], *wrong, timeout_s=60, popen=Warm)
        assert done.returncode == 2 and told in " ".join(done.stderr.split()), done.stderr
    assert not (tmp_path / "none").exists()


def test_who_does_not_ask_for_it_does_not_load_it() -> None:
    program = (
        "import sys, timerstore, timerstore.cli.commands, timerstore.store.store\n"
        "assert not {'starlette', 'uvicorn', 'jinja2', 'anyio'} & {*sys.modules}"
    )
    python("-c", program, timeout_s=100)
    without = "import sys; sys.modules['starlette'] = None; import timerstore.page"
    assert "pip install 'timerstore[page]'" in ended("-c", without, timeout_s=100).stderr
    broken = "import sys; sys.modules['starlette.routing'] = 1; import timerstore.page"
    assert "pip install" not in ended("-c", broken, timeout_s=100).stderr


def test_without_what_draws_curves(
    store: TimerStore, show: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "EVERY_S", 0.01)
    monkeypatch.setattr(server, "EVERY_S", 0.01)
    browser = show()
    wait_until(lambda: "a second" in browser.get("/curves").text)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    wait_until(lambda: browser.get("/curves").status == 400)
    assert "timerstore[page]" in browser.get("/curves").text
    assert browser.get("/").status == 200


@pytest.mark.parametrize("where", ["[::1]:0", "localhost:0", "0", ":0"])
def test_a_loopback_address_of_any_kind(store: TimerStore, where: str) -> None:
    try:
        page = PageServer(store, where)
    except InvalidArgumentError as e:
        if "::1" in where and "assign" in str(e):
            return  # this machine has no IPv6
        raise
    assert Browser(page.url).get("/").status == 200
    page.close()


def test_a_forked_child_does_not_keep_the_port(tmp_path: Path) -> None:
    program = (
        "import os, sys, time, timerstore\n"
        "from timerstore.page import PageServer\n"
        "store = timerstore.open(sys.argv[1])\n"
        "page = PageServer(store, '127.0.0.1:0')\n"
        "where = page.url.split('/')[2]\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    time.sleep(60)\n"
        "    os._exit(0)\n"
        "page.close()\n"
        "PageServer(store, where).close()\n"
        "os.kill(child, 9)\n"
        "os.waitpid(child, 0)\n"
        "store.close()\n"
    )
    python("-W", "ignore", "-c", program, tmp_path / "s", timeout_s=100)


def test_a_closed_store_is_let_go(tmp_path: Path) -> None:
    store = timerstore.open(tmp_path / "s")
    page = PageServer(store, "127.0.0.1:0")
    assert Browser(page.url).get("/").status == 200
    known = weakref.ref(store.core)
    store.close()
    del store, page
    gc.collect()
    assert known() is None
