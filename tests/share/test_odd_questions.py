"""Questions of any kind are answered, without a traceback in the owner's log."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.small_store import SMALL
from timerstore import TimerStore
from timerstore.share.answers import OWN, PLAIN, Answers
from timerstore.share.wire import PROTOCOL, SOCKET_NAME, Wire, connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ODD: list[Any] = [
    *(None, True, 0, -1, 5, 1.5, float("nan"), float("inf"), 1 << 40, 1 << 80),
    *("", "x", "\ud800", "a\0b", "0" * 32, "%RETRY%g", "dead"),
    *([], [1], [[]], ["x"], [None], [{}], [-1], [1 << 70], [["t"]], [[1, 2]]),
    *({}, {"a": 1}, {"base64": "eA=="}, {"base64": 5}, {"object": {}}),
]
GOOD: dict[str, Any] = {
    "body": {"base64": "eA=="},
    "topic": "t",
    "group": "g",
    "key": "k",
    "id": "0" * 32,
    "places": [0],
    "place": 0,
    "puts": [{"body": {"base64": "eA=="}}],
    "topics": ["t"],
    "max_count": 1,
    "timeout": 0,
    "failure": ["a", "b"],
    "level": 1,
    "what": "consuming",
    "bucket_ms": 1_000,
    "pairs": [["t", "g"]],
    "start": "latest",
    "ids": ["0" * 32],
    "offsets": [0],
    "stop": 1,
}
PUT = ("topic", "delay_s", "at_ms", "key", "tag", "properties", "delay_level", "if_absent")
PENDING = ("topic", "start_ms", "end_ms", "limit")
OPTIONS = {
    "put": ("body", *PUT, "replace"),
    "put_many": ("topic", "tag", "delay_level"),
    "reschedule": ("at_ms", "body", "properties", "delay_s"),
    "pending": (*PENDING, "key"),
    "pending_columns": (*PENDING, "columns"),
    "pause": ("what", "group", "keep"),
    "fired": ("after", "topic", "limit"),
}
"""What calls take besides what they name."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        timerstore.serve(store)
        yield store


@pytest.fixture
def wire(store: TimerStore) -> Iterator[Wire]:
    wire = Wire(connect(store.path, SOCKET_NAME, 10))
    wire.send({"protocol": PROTOCOL, "session": "0123456789ab", "slot": "1"})
    assert "life" in wire.receive()[0]
    yield wire
    wire.close()


def calls(store: TimerStore) -> dict[str, list[str]]:
    """Every call that can be asked, with the names of its arguments."""
    answers = Answers(store)
    found = {name: [*inspect.signature(getattr(store, name)).parameters] for name in PLAIN}
    for name in OWN:
        named = inspect.signature(getattr(answers, f"_{name}")).parameters.values()
        own = [each.name for each in named if each.kind == each.POSITIONAL_OR_KEYWORD]
        found[name] = [each for each in own if each != "asked"]
    for name, more in OPTIONS.items():
        found[name] += more
    return found


def test_each_argument_of_each_call(
    store: TimerStore, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is replaced in turn; one that waits would keep the rest from running."""
    count = 0
    for name, arguments in calls(store).items():
        for odd in arguments:
            for value in ODD:
                if odd == "timeout" and isinstance(value, int | float) and value > 0:
                    continue
                store.put(b"x", topic="t")
                pull = {"topics": ["t"], "group": "g", "max_count": 1, "timeout": 0}
                wire.send({"call": "pull", "with": pull})
                batch = (wire.receive()[0]["result"] or {"batch": "x"})["batch"]
                given = {each: GOOD[each] for each in arguments if each in GOOD}
                given |= {"batch": batch} if "batch" in arguments else {}
                wire.send({"call": name, "with": given | {odd: value}})
                header, _ = wire.receive()
                assert "result" in header or header["error"] != "TimerStoreError", (
                    name,
                    odd,
                    value,
                )
                count += 1
                if name == "pause":
                    for pause in store.core.switches.pauses:
                        store.resume(pause.what, group=pause.group)
    assert count > 1_000 and store.health().state == "running"
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_questions_that_are_none(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    nested = json.loads("[" * 400 + "]" * 400)
    for odd in [*ODD, nested, {"body": nested}]:
        for question in (
            {"call": odd},
            {"call": odd, "with": {}},
            {"call": "put", "with": odd},
            {"call": "count", "with": odd},
            {"call": "count", "with": {}, "since": odd, "number": odd, "again": odd},
            {"call": "put", "with": GOOD, "since": odd, "number": odd, "again": True},
        ):
            wire.send(question)
            header, _ = wire.receive()
            assert "result" in header or header["error"] != "TimerStoreError", question
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
