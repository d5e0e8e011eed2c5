"""Who may look at the page, and who may change the store through it."""

import asyncio
import re
import threading
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import urlsplit

import pytest

import timerstore
from tests.page.browsing import Browser, kill_some
from tests.page.conftest import Shown
from timerstore import InvalidArgumentError, TimerStore
from timerstore.page import PageServer, guard

pytestmark = pytest.mark.timeout(120)

HOUR = timedelta(hours=1)


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


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_others_make_it_read_nothing(show: Shown, site: str) -> None:
    """A search costs time: any page in a browser here could ask for a thousand."""
    browser = show()
    for dest, status in (("image", 403), ("iframe", 403), (None, 403), ("document", 200)):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": dest}
        assert browser.get("/pending?text=x", **headers).status == status
    headers = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "iframe"}
    assert browser.get("/", **headers).status == 200


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
    browser = show(hosts=["timers.example.org"], token="x" * 16)
    assert browser.get("/", Host=host).status == 400
    for good in ("localhost", "localhost:8080", "127.0.0.1:1", "Timers.Example.org", "[::1]:80"):
        assert browser.get("/", Host=good).status == 403  # the token is asked for


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
    assert answer.status == 303 and "HttpOnly" in cookie and "SameSite=lax" in cookie
    assert "0123456789abcdef" not in cookie
    assert "Max-Age=43200" in cookie and f"_{browser.url.split(':')[2][:-1]}_" in cookie
    again = Browser(browser.url).send("/login", right).headers["set-cookie"]
    assert again.partition(";")[0] != cookie.partition(";")[0]
    assert "a secret" in browser.get("/pending").text
    assert (
        browser.get("/pending", Cookie=cookie.partition("=")[0] + "=0123456789abcdef").status == 403
    )
    assert browser.send("/pause", {"csrf": browser.get("/").csrf, "what": "putting"}).status == 303
    other = PageServer(store, "127.0.0.1:0", token="0123456789abcdef")
    stranger = Browser(other.url, dict(browser.headers))
    assert stranger.get("/").status == 403


def test_a_session_ends(show: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SESSIONS_MAX", 2)
    url, right = show(token="x" * 16).url, {"token": "x" * 16}
    browsers = [Browser(url), Browser(url), Browser(url)]
    assert [each.send("/login", right).status for each in browsers] == [303] * 3
    assert [each.get("/").status for each in browsers] == [403, 200, 200]
    monkeypatch.setattr(guard, "SESSION_S", -1)
    assert browsers[0].send("/login", right).status == 303 and browsers[0].get("/").status == 403


def test_a_login_leads_to_what_was_asked_for(show: Shown) -> None:
    browser, right = show(token="x" * 16), {"token": "x" * 16}
    asked = "/pending?key=a%22%3Eb&text=%5Cx"
    site = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
    onward = re.findall(r'name="onward" value="([^"]*)"', browser.get(asked, **site).text)
    assert [unescape(each) for each in onward] == [asked]
    others = ("//evil.example", "http://evil.example/", "/\\evil.example", "/a b", "evil", "")
    for given, leads_to in ((asked, asked), *((each, "/") for each in others)):
        answer = browser.send("/login", right | {"onward": given})
        assert (answer.status, answer.headers["location"]) == (303, leads_to)


@pytest.mark.parametrize(
    ("where", "how", "told"),
    [
        ("0.0.0.0:0", {}, "Pass a token"),
        ("0.0.0.0:0", {"token": "x" * 16}, "Pass the names"),
        ("[::]:0", {}, "Pass a token"),
        ("127.0.0.1:0", {"token": "short"}, "16 or more"),
        ("127.0.0.1:0", {"token": "é" * 20}, "16 or more"),
        ("127.0.0.1:0", {"token": "x" * 16, "hosts": ["*"]}, "Pass the names"),
        ("127.0.0.1:0", {"token": "x" * 16, "hosts": ["a.example:80"]}, "Pass the names"),
        ("127.0.0.1:0", {"hosts": ["a.example"]}, "Pass a token"),
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


def test_what_is_no_store_is_not_shown(store: TimerStore) -> None:
    async def show_it() -> None:
        async with timerstore.aio.attach(store) as face:
            with pytest.raises(InvalidArgumentError, match=r"store\.sync"):
                PageServer(face, "127.0.0.1:0")  # type: ignore[arg-type]

    asyncio.run(show_it())
    with pytest.raises(InvalidArgumentError, match="Pass a TimerStore"):
        PageServer("timers/", "127.0.0.1:0")  # type: ignore[arg-type]


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
