"""The page shows what a store has, changes it if it may, escapes all."""

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.page.browsing import EVIL, Browser, kill_some
from tests.page.conftest import Shown
from tests.rigs.waiting import wait_until
from timerstore import TimerStore
from timerstore.page import history, listing, views
from timerstore.values.check_arguments import DUE_MS_MIN
from timerstore.values.times import parse_instant

pytestmark = pytest.mark.timeout(120)

HOUR = timedelta(hours=1)


# --- what is shown


def test_each_address_shows_what_strangers_wrote_and_runs_nothing(
    store: TimerStore, show: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "EVERY_S", 0.01)
    kill_some(store, 2)
    more: Any = {"key": EVIL, "tag": EVIL, "properties": {"<b": EVIL}, "expires": 2 * HOUR}
    id = store.put(EVIL.encode() + b"\xff\0", delay=HOUR, **more)
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
    assert "&lt;script&gt;" in (text := browser.get(f"/timer?id={id}").text) and "expires" in text
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


class Body(bytes):
    """Counts what is decoded."""

    decoded = 0

    def __getitem__(self, at: Any) -> Any:
        return Body(super().__getitem__(at))

    def decode(self, *how: Any) -> str:
        Body.decoded += len(self)
        return super().decode(*how)


def test_a_text_is_looked_for_in_the_beginning_of_a_body() -> None:
    """Else four million bytes of each are decoded, while no handler runs."""
    long = Body(b"-" * (listing.SEARCHED_BYTES - 4) + b"near" + b"far" * 1_000_000)
    timers = [timerstore.Timer("1", "t", long, None, None, {}, due, 0, 0) for due in (1, 2)]
    asked: Any = {"key": None, "skip": 0, "topic": None, "start_ms": None, "end_ms": None}
    for text, found in (("near", 2), ("far", 0)):
        fake: Any = FakeStore(timers)
        assert len(listing.list_some(fake, text=text, **asked)[0]) == found
    assert Body.decoded == 4 * listing.SEARCHED_BYTES


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
        *("/dead", "/dead?group=a/b", "/dead?group=g&at=x", "/?at=1e9", "/pending?topic=none"),
        *("/dead?group=typo", "/pending?" + "a=1&" * 2_000),
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


def test_names_of_a_broker_that_are_no_unicode() -> None:
    odd = "a\udcff\u202e"
    timer = timerstore.Timer(odd, odd, b"\xff", odd, odd, {odd: odd}, 1, 1, 0)
    asked = dict.fromkeys(("topic", "key", "start", "end", "text"), odd)
    told = {"timers": [timer], "asked": asked, "next": None, "count": 1, "now_ms": 1}
    text = views.render("pending.html", store="s", writes=True, csrf="", **told).decode()
    assert "/timer?id=a%FF%E2%80%AE" in text and ">a\\udcff\\u202e</td>" in text
    letter = {"id": odd, "died_ms": 1, "topic": odd, "attempts": 1, "error_type": odd}
    letter |= {"error_text": odd, "key": odd, "body": b"\xff"}
    told = {"letters": [letter], "group": odd, "next": None, "now_ms": 1}
    told |= {"done": (None, 0), "sure": None}
    text = views.render("dead.html", store="s", writes=True, csrf="", **told).decode()
    assert 'name="id" value="a%FF%E2%80%AE"' in text and "\u202e" not in text


def test_what_is_shown_steers_nothing_and_is_escaped_once(store: TimerStore, show: Shown) -> None:
    browser = show()
    id = store.put("a\u202eb\\c\x9b\n\u3000d".encode(), key="k\\\u2066", delay=HOUR)
    for address in (f"/timer?id={id}", "/pending"):
        text = browser.get(address).text
        assert "a\\u202eb\\c\\x9b\n\u3000d" in text and "k\\\\u2066" in text
    assert "&#39;a\\u202eb&#39;" in browser.get("/pending?topic=a%E2%80%AEb").text


def test_fields_are_stripped_but_what_is_looked_for(store: TimerStore, show: Shown) -> None:
    browser = show()
    id = store.put(b"x", topic="t", key=" k ", delay=HOUR)
    for address in ("/pending?topic=+t+", "/pending?key=+k+", "/pending?end=+%2B2h+"):
        assert f"/timer?id={id}" in browser.get(address).links("/timer"), address
    for address in ("/pending?key=k", "/pending?text=k++", "/pending?end=+%2B30m"):
        assert not browser.get(address).links("/timer"), address


def test_going_on_ends_where_it_was_to_end(
    store: TimerStore, show: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`+2h` is another time when the next page is read."""
    monkeypatch.setattr(listing, "ROWS", 1)
    store.put_many([b"x"] * 3, topic="t", delay_ms=[1_000_000, 2_000_000, 3_000_000])
    (onward,) = show().get("/pending?end=%2B2h").links("/pending?topic")
    (end,) = parse_qs(urlsplit(onward).query)["end"]
    assert abs(parse_instant(end).ms - parse_instant("+2h").ms) < 600_000 and "+" not in end


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
    store.pause("firing")
    old = [store.put(b"x", topic="old", at_ms=DUE_MS_MIN + i // 10) for i in range(30)]
    assert sorted(walked(browser, "/pending?topic=old")) == sorted(old)
    middle_ms = now_ms + 3_601_000
    after = [each.id for each in every if each.due_ms == middle_ms]
    between = f"/pending?start={middle_ms}&end={middle_ms + 1}"
    assert walked(browser, between) == after and len(after) == 20


class FakeStore:
    """What is pending, as pairs of a due time and a body."""

    def __init__(self, timers: list[Any]) -> None:
        self.timers, self.read = timers, 0

    def pending(self, *, start_ms: int | None, end_ms: None) -> Iterator[Any]:
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
    drawn = st.tuples(st.sampled_from([b"one", b"other"]), st.sampled_from("tu"))
    timers = [
        timerstore.Timer(str(i), its_topic, body, None, None, {}, due, 0, 0)
        for i, due in enumerate(sorted(dues))
        for body, its_topic in [data.draw(drawn)]
    ]
    topic = data.draw(st.sampled_from([None, "t"]))
    text = data.draw(st.sampled_from(["", "OTHER"]))
    shown, start_ms, skip = [], None, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "ROWS", rows)
        patch.setattr(listing, "READ_MAX", read_max)
        for _ in range(len(timers) + 1):
            fake: Any = FakeStore(timers)
            some, onward = listing.list_some(
                fake, text=text, key=None, skip=skip, topic=topic, start_ms=start_ms, end_ms=None
            )
            assert len(some) <= rows and fake.read <= skip + read_max + 1
            shown += some
            if onward is None:
                break
            start_ms, skip = onward
    fit = [each for each in timers if topic in (None, each.topic)]
    assert shown == [each for each in fit if text.lower() in each.body.decode()]


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
    for skip in range(10):
        assert [each.id for each in store.dead_letters("billing", skip=skip)] == ids[skip:]
    csrf = browser.get("/dead?group=billing").csrf
    form = {"csrf": csrf, "group": "billing"}
    assert browser.send("/drop", form).status == 400  # nothing was chosen
    assert browser.send("/drop", form | {"id": ids[0], "all": "1"}).status == 400
    assert len(store.dead_letters("billing")) == 8
    answer = browser.send("/drop", form | {"id": ids[1:3]})
    onward = answer.headers["location"]
    assert answer.status == 303 and "2 dropped." in browser.get(onward).text
    onward = browser.send("/drop", form | {"id": ids[1:3]}).headers["location"]
    assert "None was dropped" in browser.get(onward).text
    onward = browser.send("/drop", form | {"all": "1"}).headers["location"]
    assert "Drop all 6 for good" in browser.get(onward).text
    assert "done is" in browser.get("/dead?group=billing&what=drop&done=x").text
    assert browser.send("/retry", form | {"id": [ids[0], ids[1]]}).status == 303
    assert [each.id for each in store.dead_letters("billing")] == ids[3:]
    assert browser.send("/retry", form | {"all": "1"}).status == 303
    assert store.dead_letters("billing") == []
    back = [next(store.consume("orders", group="billing", timeout=9)).id for _ in range(6)]
    assert sorted(back) == sorted([ids[0], *ids[3:]])
    assert browser.send("/retry", form | {"group": "stranger", "all": "1"}).status == 303
    assert "No group" in browser.get("/dead?group=stranger").text
    kill_some(store, 2)
    assert browser.send("/drop", form | {"all": "1", "sure": "1"}).status == 303
    assert store.dead_letters("billing") == []
    assert "stranger" not in {each.group for each in store.stats().groups}


def test_pause_and_resume(store: TimerStore, show: Shown) -> None:
    browser = show(write=True)
    form = {"csrf": browser.get("/").csrf, "what": "firing"}
    assert browser.send("/pause", form | {"for": "1h30m", "group": ""}).status == 303
    assert store.health().state == "paused" and 'class="warn">paused' in browser.get("/").text
    assert browser.send("/resume", form).status == 303
    assert store.health().state == "running"
    for wrong in ({"what": "time"}, {"for": "soon"}, {"group": "nobody"}):
        assert browser.send("/pause", form | wrong).status == 400
