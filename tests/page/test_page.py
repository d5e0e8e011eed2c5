"""The page shows what a store has, changes it if it may, escapes all; and who is refused."""

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.cli.shell import SMALL
from tests.page.browsing import Browser
from tests.page.conftest import Shown
from tests.rigs.program import ended, python
from tests.rigs.waiting import wait_until
from timerstore import InvalidArgumentError, TimerStore
from timerstore.page import PageServer, guard, history, listing, server, views

pytestmark = pytest.mark.timeout(120)

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ csrf }}"
HOUR = timedelta(hours=1)


def kill_some(store: TimerStore, count: int, topic: str = "orders") -> None:
    """Make dead letters of the group `billing`."""
    for i in range(count):
        store.put(EVIL.encode(), topic=topic, key=f"o{i}", properties={"a": EVIL})

    def fail(delivery: timerstore.Delivery) -> None:
        raise ValueError(EVIL)

    consumer = timerstore.Consumer(store, "billing", max_attempts=0)
    consumer.subscribe(topic, fail)
    with consumer:
        wait_until(lambda: len(store.dead_letters("billing", None)) >= count)


# --- what is shown


def test_each_address_shows_what_strangers_wrote_and_runs_nothing(
    store: TimerStore, show: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "EVERY_S", 0.01)
    kill_some(store, 2)
    id = store.put(
        EVIL.encode() + b"\xff\0", delay=HOUR, key=EVIL, tag=EVIL, properties={"<b": EVIL}
    )
    browser = show(write=True)
    wait_until(lambda: "a second" in browser.get("/curves").text)
    addresses = {
        "/": "running",
        "/pending": id,
        f"/timer?id={id}": "property",
        "/dead?group=billing": "ValueError",
        "/curves": "data:image/svg+xml;base64,",
    }
    for address, has in addresses.items():
        for asked in (
            address,
            address + ("&" if "?" in address else "?") + f"text={EVIL.replace(' ', '+')}",
        ):
            answer = browser.get(asked)
            assert answer.status == 200 and has in unescape(answer.text), (asked, answer.text)
            assert not re.findall(r"<script|<img src=x|<b\b|on\w+=[^;]*>alert|style=", answer.text)
            assert "text/html" in answer.headers["content-type"]
    assert EVIL in unescape(browser.get("/dead?group=billing").text)
    assert "&lt;script&gt;" in browser.get(f"/timer?id={id}").text
    head = browser.get("/nowhere").headers
    assert "default-src 'none'" in head["content-security-policy"]
    assert "script" not in head["content-security-policy"]
    assert head["cache-control"] == "no-store" and head["x-content-type-options"] == "nosniff"
    assert browser.get("/style.css").headers["content-type"].startswith("text/css")


def test_a_bodys_beginning_is_shown(store: TimerStore, show: Shown) -> None:
    browser = show()
    id = store.put(b"x" * 300_000, delay=HOUR)
    assert len(browser.get("/pending").text) < 10_000
    shown = browser.get(f"/timer?id={id}").text
    assert len(shown) < 10_000 and "300,000" in shown


def test_what_became_of_a_timer(store: TimerStore, show: Shown) -> None:
    browser = show()
    id = store.put(b"x", delay=HOUR, key="k")
    assert "pending" in browser.get(f"/timer?id={id}").text
    moved = store.reschedule(id, delay=2 * HOUR)
    assert f"/timer?id={moved}" in browser.get(f"/timer?id={id}").links("/timer")
    store.cancel(moved)
    assert "cancelled" in browser.get(f"/timer?id={moved}").text
    assert browser.get("/timer?id=0" + moved[1:]).status in (200, 404)


@pytest.mark.parametrize(
    "address",
    [
        *("/pending?start=yesterdey", "/pending?skip=-1", "/pending?skip=" + "9" * 5_000),
        *("/dead", "/dead?group=a/b", "/dead?group=g&at=x", "/?at=1e9"),
        "/pending?skip=%D9%A3",
    ],
)
def test_wrong_fields_are_told(store: TimerStore, show: Shown, address: str) -> None:
    assert show().get(address).status in (400, 404)


def test_bytes_that_are_no_text_are_no_fault(store: TimerStore, show: Shown) -> None:
    browser = show()
    for address in ("/pending?text=%ff%00", "/pending?key=%ff", "/timer?id=%ff", "/dead?group=%ff"):
        answer = browser.get(address)
        assert answer.status in (200, 400, 404) and "is a fault" not in answer.text
    assert browser.get("/pending?" + "a=1&" * 2_000).status == 403


def walked(browser: Browser, address: str) -> list[str]:
    ids, onward = list[str](), [address]
    while onward:
        answer = browser.get(onward[0])
        assert answer.status == 200
        ids += [each.partition("=")[2] for each in answer.links("/timer")]
        onward = re.findall(r'<a href="([^"]*)" rel="next"', answer.text)
        onward = [unescape(each) for each in onward]
    return ids


def test_pages_of_what_is_pending(
    store: TimerStore, show: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "ROWS", 7)
    browser, now_ms = show(), store.health().now_ms
    for i in range(60):
        at_ms = now_ms + 3_600_000 + 1_000 * (i // 20)
        store.put(b"body %d" % i, topic=f"t{i % 2}", at_ms=at_ms, key=f"k{i % 3}")
    every = list(store.pending())
    assert walked(browser, "/pending") == [each.id for each in every]
    topic, key, part = (
        [each.id for each in every if holds(each)]
        for holds in (
            lambda each: each.topic == "t1" and each.key == "k2",
            lambda each: each.key == "k1",
            lambda each: b"y 1" in each.body,
        )
    )
    assert walked(browser, "/pending?topic=t1&key=k2") == topic
    assert walked(browser, "/pending?key=k1") == key
    assert walked(browser, "/pending?text=DY+1") == part == [*map(str, part)] and len(part) == 11
    middle_ms = now_ms + 3_601_000
    after = [each.id for each in every if each.due_ms == middle_ms]
    between = f"/pending?start={middle_ms}&end={middle_ms + 1}"
    assert walked(browser, between) == after and len(after) == 20


class FakeStore:
    """What is pending, as pairs of a due time and a body."""

    def __init__(self, timers: list[Any]) -> None:
        self.timers, self.read = timers, 0

    def pending(self, *, start_ms: int | None, **bounds: Any) -> Iterator[Any]:
        for each in self.timers:
            if start_ms is None or each.due_ms >= start_ms:
                self.read += 1
                yield each


@given(
    dues=st.lists(st.integers(1, 4), max_size=40),
    rows=st.integers(1, 5),
    read_max=st.integers(1, 6),
    data=st.data(),
)
def test_turning_pages_shows_each_once(
    dues: list[int], rows: int, read_max: int, data: st.DataObject
) -> None:
    """The twin: all of them in order, if nothing fires meanwhile."""
    bodies = [data.draw(st.sampled_from([b"one", b"other"])) for _ in dues]
    timers = [
        timerstore.Timer(str(i), "t", body, None, None, {}, due, 0, 0)
        for i, (due, body) in enumerate(zip(sorted(dues), bodies, strict=True))
    ]
    text = data.draw(st.sampled_from(["", "OTHER"]))
    shown, start_ms, skip = [], None, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "ROWS", rows)
        patch.setattr(listing, "READ_MAX", read_max)
        for _ in range(len(timers) + 1):
            fake: Any = FakeStore(timers)
            some, onward = listing.list_some(
                fake, text=text, key=None, skip=skip, topic=None, start_ms=start_ms, end_ms=None
            )
            assert len(some) <= rows and fake.read <= skip + read_max + 1
            shown += some
            if onward is None:
                break
            start_ms, skip = onward
    assert shown == [each for each in timers if text.lower() in each.body.decode()]


def test_pages_of_tables(store: TimerStore, show: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "ROWS", 3)
    browser = show()
    for i in range(8):
        store.put(b"x", topic=f"topic-{i}", delay=HOUR)
    seen, at = set[str](), 0
    while more := browser.get(f"/?at={at}").links("/pending?topic="):
        seen, at = seen | set(more), at + 3
    assert seen == {f"/pending?topic=topic-{i}" for i in range(8)}


# --- what is changed


def test_dead_letters_are_put_back_and_dropped(
    store: TimerStore, show: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "ROWS", 3)
    kill_some(store, 8)
    browser = show(write=True)
    ids = [each.id for each in store.dead_letters("billing")]
    assert walked(browser, "/dead?group=billing") == ids
    csrf = browser.get("/dead?group=billing").csrf
    form = {"csrf": csrf, "group": "billing"}
    assert browser.send("/drop", form).status == 400  # nothing was chosen
    assert browser.send("/drop", form | {"id": ids[0], "all": "1"}).status == 400
    assert len(store.dead_letters("billing")) == 8
    answer = browser.send("/drop", form | {"id": ids[1:3]})
    assert answer.status == 303 and answer.headers["location"] == "/dead?group=billing"
    assert browser.send("/retry", form | {"id": [ids[0], ids[1]]}).status == 303
    assert [each.id for each in store.dead_letters("billing")] == ids[3:]
    assert browser.send("/retry", form | {"all": "1"}).status == 303
    assert store.dead_letters("billing") == []
    back = [next(store.consume("orders", group="billing", timeout=9)).id for _ in range(6)]
    assert sorted(back) == sorted([ids[0], *ids[3:]])
    assert browser.send("/retry", form | {"group": "stranger", "all": "1"}).status == 303
    assert "stranger" not in {each.group for each in store.stats().groups}


def test_pause_and_resume(store: TimerStore, show: Shown) -> None:
    browser = show(write=True)
    form = {"csrf": browser.get("/").csrf, "what": "firing"}
    assert browser.send("/pause", form | {"for": "1h30m", "group": ""}).status == 303
    assert store.health().state == "paused" and "paused" in browser.get("/").text
    assert browser.send("/resume", form).status == 303
    assert store.health().state == "running"
    for wrong in ({"what": "time"}, {"for": "soon"}, {"group": "nobody"}):
        assert browser.send("/pause", form | wrong).status == 400


# --- who is refused


def changes(store: TimerStore) -> tuple[Any, ...]:
    return store.health().state, [each.id for each in store.dead_letters("billing")]


def test_forms_of_others_change_nothing(store: TimerStore, show: Shown) -> None:
    kill_some(store, 2)
    browser = show(write=True)
    csrf, before = browser.get("/").csrf, changes(store)
    origin = browser.url.rstrip("/")
    for address, form in {
        "/pause": {"what": "firing"},
        "/retry": {"group": "billing", "all": "1"},
        "/drop": {"group": "billing", "all": "1"},
    }.items():
        good = {"csrf": csrf, **form}
        for fields in (
            form,
            {"csrf": "", **form},
            {"csrf": csrf[:-1], **form},
            {"csrf": "é", **form},
        ):
            assert browser.send(address, fields).status == 403
        for other in (None, "null", "", "http://evil.example", origin + ".evil.example", "http://"):
            assert browser.send(address, good, Origin=other).status == 403
        assert browser.get(address).status == 405
        long = good | {"group": "x" * guard.FORM_BYTES_MAX}
        assert browser.send(address, long).status == 403
        assert (
            browser.send(address, good, Host="evil.example", Origin="http://evil.example").status
            == 400
        )
    assert changes(store) == before
    assert (
        browser.send("/pause", {"csrf": csrf, "what": "firing"}).status == 303
    )  # else it was all wrong


def test_a_page_that_only_shows_changes_nothing(store: TimerStore, show: Shown) -> None:
    kill_some(store, 1)
    browser, before = show(), changes(store)
    assert "<button" not in browser.get("/").text
    page = browser.get("/dead?group=billing")
    assert "<button" not in page.text
    form = {"csrf": page.csrf, "group": "billing", "all": "1", "what": "firing"}
    for address in ("/drop", "/retry", "/pause", "/resume"):
        assert browser.send(address, form).status == 403
    assert changes(store) == before


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", None, "[::2]", "a b"]
)
def test_other_names_are_refused(show: Shown, host: str | None) -> None:
    """By a name that leads here, the page of its owner would be of the same origin."""
    browser = show(hosts=["timers.example.org"])
    assert browser.get("/", Host=host).status == 400
    for good in ("localhost", "localhost:8080", "127.0.0.1:1", "Timers.Example.org", "[::1]:80"):
        assert browser.get("/", Host=good).status == 200


def test_a_token_is_asked_for_once(
    store: TimerStore, show: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_WRONG_S", 0.0)
    store.put(b"a secret", topic="secrets", delay=HOUR)
    browser = show(token="0123456789abcdef", write=True)
    for address in ("/", "/pending", "/curves", "/dead?group=g", "/timer?id=x"):
        answer = browser.get(address)
        assert answer.status == 403 and "password" in answer.text and "secrets" not in answer.text
        assert "csrf" not in answer.text
    assert browser.send("/pause", {"what": "firing"}).status == 403
    for wrong in ("", "0123456789abcdeF", "é" * 16, "0123456789abcdef\0"):
        answer = browser.send("/login", {"token": wrong})
        assert answer.status == 403 and "set-cookie" not in answer.headers
    right = {"token": "0123456789abcdef"}
    assert browser.send("/login", right, Origin="http://evil.example").status == 403
    answer = browser.send("/login", right)
    cookie = answer.headers["set-cookie"]
    assert answer.status == 303 and "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert "0123456789abcdef" not in cookie
    assert "a secret" in browser.get("/pending").text
    assert (
        browser.get("/pending", Cookie=cookie.partition("=")[0] + "=0123456789abcdef").status == 403
    )
    assert browser.send("/pause", {"csrf": browser.get("/").csrf, "what": "putting"}).status == 303
    other = PageServer(store, "127.0.0.1:0", token="0123456789abcdef")
    stranger = Browser(other.url, dict(browser.headers))
    assert stranger.get("/").status == 403


@pytest.mark.parametrize(
    ("where", "how", "told"),
    [
        ("0.0.0.0:0", {}, "Pass a token"),
        ("0.0.0.0:0", {"token": "x" * 16}, "Pass the names"),
        ("[::]:0", {}, "Pass a token"),
        ("127.0.0.1:0", {"token": "short"}, "16 or more"),
        ("127.0.0.1:0", {"token": "é" * 20}, "16 or more"),
        ("127.0.0.1:0", {"hosts": ["*"]}, "Pass the names"),
        ("127.0.0.1:0", {"hosts": ["a.example:80"]}, "Pass the names"),
        ("127.0.0.1", {}, "a port that is free"),
        ("nine", {}, "a port that is free"),
        ("127.0.0.1:99999", {}, "a port that is free"),
        ("203.0.113.1:0", {"token": "x" * 16}, "a port that is free"),
    ],
)
def test_what_is_wrong_is_refused(
    store: TimerStore, where: str, how: dict[str, Any], told: str
) -> None:
    threads = threading.active_count()
    with pytest.raises(InvalidArgumentError, match=told):
        PageServer(store, where, **how)
    assert threading.active_count() == threads


def test_from_elsewhere_with_a_token(store: TimerStore) -> None:
    page = PageServer(store, "0.0.0.0:0", token="x" * 16, hosts=["timers.example.org"])
    port = urlsplit(page.url).port
    browser = Browser(f"http://127.0.0.1:{port}/", {"Host": "timers.example.org"})
    assert browser.get("/").status == 403
    assert (
        browser.send("/login", {"token": "x" * 16}, Origin="https://timers.example.org").status
        == 303
    )
    assert browser.get("/").status == 200
    assert browser.get("/", Host="127.0.0.1").status == 400


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
    monkeypatch.setattr(server, "LIFE_S", 0.1)
    for each in silent:
        each.close()
    wait_until(lambda: _asked(browser) == 200)
    with socket.create_connection(address, timeout=30) as odd:
        odd.sendall(b"\0 is no HTTP\r\n\r\n")
        assert b"400" in odd.recv(100)
    late = socket.create_connection(address, timeout=30)
    assert not _reads(late)
    late.close()
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


# --- the shell


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
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
    with subprocess.Popen([*command, *how], **pipes) as serving:
        assert serving.stdout is not None and serving.stderr is not None
        assert "serving, pid" in serving.stdout.readline()
        url = serving.stderr.readline().split()[-1]
        browser = Browser(url)
        assert browser.get("/", Host="a.example").status == 403
        assert browser.send("/login", {"token": "0123456789abcdef"}).status == 303
        assert "Pause" in browser.get("/").text
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0, serving.stderr.read()
    for wrong in (["--write"], ["--page", "nine"], ["--page", "0", "--token-file", "nowhere"]):
        done = subprocess.run([*command, *wrong], **pipes, timeout=60)
        assert done.returncode == 2 and "Pass" in done.stderr


def test_who_does_not_ask_for_it_does_not_load_it() -> None:
    program = (
        "import sys, timerstore, timerstore.cli.commands, timerstore.store.store\n"
        "assert not {'starlette', 'uvicorn', 'jinja2', 'anyio'} & {*sys.modules}"
    )
    python("-c", program, timeout_s=100)
    without = "import sys; sys.modules['starlette'] = None; import timerstore.page"
    assert "pip install 'timerstore[page]'" in ended("-c", without, timeout_s=100).stderr


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
