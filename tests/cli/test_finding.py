"""Finding timers at the shell by key or text; names that the store has never seen; headers."""

from __future__ import annotations

import errno
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.cli.shell import SMALL, Run
from timerstore import Consumer, ManualClock, Retry

HOUR = timedelta(hours=1)


@pytest.fixture
def ids(path: Path) -> list[str]:
    """The ids of three pending timers, of two topics; two have the same key."""
    with timerstore.open(path, config=SMALL) as store:
        return [
            store.put(b"to Ann", topic="mail", key="user:7", delay=HOUR),
            store.put(b"call", topic="calls", key="user:7", delay=2 * HOUR, tag="vip"),
            store.put(b"\xff\x00", topic="calls", key="k", properties={"a": "Berlin"}, delay=HOUR),
        ]


def listed(output: str) -> set[str]:
    return {line.split("\t")[2] for line in output.splitlines()}


def test_a_key_without_its_topic(path: Path, run: Run, ids: list[str]) -> None:
    assert listed(run("pending", path, "--key", "user:7").output) == set(ids[:2])
    assert listed(run("pending", path, "--key", "user:7", "-t", "mail").output) == {ids[0]}
    (line,) = run("pending", path, "--key", "user:7", "-n", "1", "--json").output.splitlines()
    assert json.loads(line)["id"] == ids[0]
    assert run("pending", path, "--key", "none").output == ""


def test_get_by_key(path: Path, run: Run, ids: list[str]) -> None:
    assert ids[2] in run("get", path, "--key", "k").output
    assert ids[1] in run("get", path, "--key", "user:7", "--topic", "calls").output
    assert "Several timers" in run("get", path, "--key", "user:7", exits=2).output
    assert "not pending" in run("get", path, "--key", "none", exits=1).output
    for wrong in ([], [ids[0], "--key", "k"], [ids[0], "--topic", "mail"]):
        assert "Pass an id, or --key" in run("get", path, *wrong, exits=2).output


@pytest.mark.parametrize(
    ("text", "places"),
    [("ann", [0]), ("USER:7", [0, 1]), ("berlin", [2]), ("vip", [1]), ("\ufffd", [2])],
)
def test_find(path: Path, run: Run, ids: list[str], text: str, places: list[int]) -> None:
    assert listed(run("search", path, text).output) == {ids[i] for i in places}
    assert listed(run("search", path, ids[0].lower()).output) == {ids[0]}
    assert "No pending timer contains" in run("search", path, "nowhere", exits=1).output
    assert run("search", path, text, "--limit", "0").output == ""


@pytest.mark.parametrize(
    "command",
    [
        *(["pending", "-t"], ["count", "-t"], ["horizon", "-t"], ["horizon", "--bucket=1h", "-t"]),
        *(["pending", "--key=k", "-t"], ["get", "--key=k", "-t"], ["search", "x", "-t"]),
        *(["cancel", "--key=k", "-t"], ["cancel", "--key-prefix=k", "-t"]),
    ],
)
def test_a_misspelt_topic(path: Path, run: Run, ids: list[str], command: list[str]) -> None:
    name, *options = command
    said = run(name, path, *options, "mial", exits=2).output
    assert (
        "There is no topic 'mial' in this store. Did you mean 'mail'? It has calls, mail." in said
    )


def test_a_misspelt_topic_may_be_awaited(path: Path, run: Run, ids: list[str]) -> None:
    said = run("consume", path, "-t", "mial", "--timeout", "0").stderr
    assert "Did you mean 'mail'?" in said and "waits until" in said
    assert run("consume", path, "-t", "mail", "--timeout", "0").stderr == ""


def test_a_topic_in_which_nothing_is_pending_any_more_is_known(path: Path, run: Run) -> None:
    with timerstore.open(path, config=SMALL) as store:
        store.cancel(store.put(b"x", topic="mail", delay=HOUR))
    assert run("count", path, "-t", "mail").output == "0\n"
    assert run("pending", path, "-t", "mail").output == ""


def test_a_misspelt_group_and_headers(path: Path, run: Run) -> None:
    with timerstore.open(path, config=SMALL, clock=ManualClock()) as store:
        store.put(b"x", topic="mail", delay_level=1)
        store.put(b"x", topic="mail")
        consumer = Consumer(store, "mailer")
        consumer.subscribe("mail", lambda d: Retry(delay_level=-1, reason="no such address"))
        consumer.step()
    for command in (["dead"], ["dead", "retry"], ["dead", "drop", "--all"]):
        assert "Did you mean 'mailer'?" in run(*command, path, "mialer", exits=2).output
    head, line = (each.split("\t") for each in run("dead", path, "mailer").output.splitlines())
    letter = dict(zip(head, line, strict=True))
    assert letter["topic"] == "mail" and letter["error"] == "retry: no such address"
    head, line = (each.split("\t") for each in run("groups", path).output.splitlines())
    group = dict(zip(head, line, strict=True))
    assert (group["group"], group["dead letter"], group["dead"]) == ("mailer", "1", "1")
    lines = run("info", path).output.splitlines()
    assert lines[0] == f"path\t{path}"
    assert "level\tdelay\toffset\tend\tlag\toverdue" in lines


def test_another_users_store(path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library says what is the matter, not a check of the command line before it."""
    asked = os.listdir
    monkeypatch.setattr(os, "access", lambda *_, **__: False)

    def refuse(place: Any = ".") -> list[str]:
        if str(place) == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        return asked(place)

    monkeypatch.setattr(os, "listdir", refuse)
    for command in (["info"], ["pending"], ["health"], ["search", "x"], ["put", "x", "--topic=t"]):
        name, *options = command
        said = run(name, path, *options, exits=3).output
        assert f"{path} may not be used by this user. Change its rights" in said, name
