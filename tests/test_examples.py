"""The programs of `examples/` do what they say."""

import importlib.util
import json
import os
import smtplib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.markdown import ROOT
from tests.rigs.program import python
from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.testing.disk import QuietDisk

EXAMPLES = ROOT / "examples"
TRIED = {
    "mailer.py",
    "reminders_flask.py",
    "reminders_fastapi.py",
    "from_apscheduler.py",
    "from_celery.py",
    "demo.py",
}
START = datetime(2027, 1, 15, 8, tzinfo=UTC)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    config = Config(
        tuning=Tuning(commitlog_segment_bytes=1 << 18, wheel_slot_count=1024, roll_window_slots=300)
    )
    clock = ManualClock(round(START.timestamp() * 1000))
    with TimerStore(tmp_path, config=config, clock=clock, disk=QuietDisk()) as store:
        yield store


def test_each_one_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TRIED


def test_mailer(store: TimerStore) -> None:
    mailer, clock = load("mailer"), store.core.clock
    assert isinstance(clock, ManualClock)
    sent: list[tuple[str, int]] = []
    start_ms = clock.now_ms

    def send(letter: EmailMessage) -> None:
        sent.append((letter["To"], clock.now_ms - start_ms))
        if letter["To"] == "away@x.org" and len(sent) < 4:
            raise ConnectionRefusedError("the server is away")
        if letter["To"] == "nobody@x.org":
            raise smtplib.SMTPResponseException(550, b"no such user")
        assert letter["Message-ID"].endswith("@mailer.example>")
        assert letter.get_content() == "Hello.\n"

    consumer = mailer.make_mailer(store, send)
    with consumer:
        for to in ("ann@x.org", "away@x.org", "nobody@x.org"):
            mailer.put_letter(store, to, "Hi", "Hello.", timedelta(seconds=2))
        clock.advance(timedelta(hours=1))
    at_once = [(to, 2_000) for to in ("ann@x.org", "away@x.org", "nobody@x.org")]
    assert sent == [*at_once, ("away@x.org", 12_000)]
    (letter,) = store.consume("%DLQ%mailer", timeout=0)
    assert json.loads(letter.body)["to"] == "nobody@x.org"


def test_reminders(store: TimerStore) -> None:
    told: list[tuple[str, str]] = []
    app, consumer = load("reminders_flask").create_service(
        store, lambda user, text: told.append((user, text))
    )
    client, clock = app.test_client(), store.core.clock
    assert isinstance(clock, ManualClock)

    def post(text: str, seconds: int, **more: Any) -> Any:
        at = (START + timedelta(seconds=seconds)).isoformat()
        return client.post("/reminders", json={"user": "ann", "text": text, "at": at} | more)

    with consumer:
        first, second, third = (
            post(t, s).get_json()["id"] for t, s in [("a", 5), ("b", 9), ("c", 9)]
        )
        assert client.get(f"/reminders/{first}").get_json()["text"] == "a"
        later = (START + timedelta(seconds=60)).isoformat()
        moved = client.put(f"/reminders/{second}", json={"at": later}).get_json()["id"]
        assert client.delete(f"/reminders/{third}").get_json() == {"cancelled": True}
        clock.advance(timedelta(seconds=10))
        assert told == [("ann", "a")]
        assert client.get(f"/reminders/{first}").status_code == 404
        assert client.put(f"/reminders/{first}", json={"at": later}).status_code == 409
        assert client.delete(f"/reminders/{first}").get_json() == {"cancelled": False}
        clock.advance(timedelta(seconds=60))
        assert told == [("ann", "a"), ("ann", "b")]
        assert client.get(f"/reminders/{moved}").status_code == 404
    assert client.delete("/reminders/nonsense").status_code == 404
    assert post("late", 5, at="2027-01-15T08:00:00").status_code == 400  # no time zone
    assert client.post("/reminders", json={}).status_code == 400


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.parametrize("name", ["from_apscheduler", "from_celery"])
def test_side_by_side(name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    printed = python(EXAMPLES / f"{name}.py", tmp_path, cwd=tmp_path, env=environment)
    assert "with_timerstore" in printed
