"""health, pause, resume, tail: asked of a program that has the store open, from a second shell."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from rich.cells import cell_len

import timerstore
from tests.cli.shell import SMALL, Run, finish, process
from tests.rigs.waiting import wait_until
from timerstore import TimerStore
from timerstore.cli.operating import fitting

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def store(path: Path) -> Iterator[TimerStore]:
    """The store, open in this process: the commands ask it as those of another process do."""
    with timerstore.open(path, config=SMALL) as store:
        yield store


def test_health_of_a_running_store(store: TimerStore, path: Path, run: Run) -> None:
    assert f"{path}: running, open since" in run("health", path).output
    assert json.loads(run("health", path, "--json").output)["ok"] is True


def test_health_where_nobody_has_it_open(path: Path, run: Run) -> None:
    assert "Nothing fires" in run("health", path, exits=3).output
    found = json.loads(run("health", path, "--json", exits=3).output)
    assert (found["state"], found["ok"]) == ("not open", False)


def test_health_of_damage_and_of_an_end(store: TimerStore, path: Path, run: Run) -> None:
    store.core.engine.damage.note("commitlog", 4_711, "the CRC does not match")
    out = run("health", path, exits=1).output
    assert "commitlog at 4711" in out and f"{path}: damaged" in out
    store.core.engine.stop(ValueError("an end"))
    assert "stopped" in run("health", path, exits=4).output
    store.core.engine.failure.error = None


def test_firing_stops_for_an_hour(store: TimerStore, path: Path, run: Run) -> None:
    out = run("pause", path, "firing", "--for", "1h").output
    assert re.search(r"Firing is paused until \d{4}-\d\d-\d\dT", out)
    store.put(b"x")
    time.sleep(0.1)
    out = run("health", path).output
    assert "paused" in out and f"timerstore resume {path} firing" in out
    assert store.count() == 1
    assert "goes on" in run("resume", path, "firing").output
    assert len(store.pull("default", timeout=10)) == 1


def test_a_group_is_paused_until_a_time(store: TimerStore, path: Path, run: Run) -> None:
    store.pull("t", group="g", timeout=0)
    said = run("pause", path, "consuming", "--group", "q", exits=2).output
    assert "There is no group 'q'" in said
    run("pause", path, "consuming", "--group", "g", "--until", "+1h", "--keep")
    (found,) = store.core.switches.pauses
    assert (found.what, found.group, found.kept) == ("consuming", "g", True)
    assert abs(found.until_ms - found.since_ms - 3_600_000) < 10_000
    assert json.loads(run("resume", path, "consuming", "--json").output)["resumed"] == "consuming"
    assert store.core.switches.pauses == ()


def test_what_waits_for_somebody_is_a_status_where_one_asks(
    store: TimerStore, path: Path, run: Run
) -> None:
    run("health", path, "--strict")
    store.put_many([b"a", b"b"], topic="mials")
    wait_until(lambda: store.health().warnings)
    said = run("health", path).output
    assert "running" in said and "2 messages fired in topic 'mials'" in said
    assert said.count("warning") == 1 and "Let a group consume this topic" in said
    again = run("health", path, "--strict", exits=5).output  # it says how old it is
    assert again.partition(": 2 messages")[2] == said.partition(": 2 messages")[2]
    found = json.loads(run("health", path, "--strict", "--json", exits=5).output)
    assert found["ok"] and [each["topic"] for each in found["warnings"]] == ["mials"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("everything",),
        ("firing", "--group", "g"),
        ("firing", "--for", "soon"),
        ("firing", "--for", "1h", "--until", "+1h"),
        ("firing", "--until", "2001-01-01"),
        ("firing", "--for", "0s"),
    ],
)
@pytest.mark.parametrize("is_open", [True, False])
def test_wrong_usage(path: Path, run: Run, arguments: tuple[str, ...], is_open: bool) -> None:
    if is_open:
        with timerstore.open(path, config=SMALL) as store:
            run("pause", path, *arguments, exits=2)
            assert store.core.switches.pauses == ()
    else:
        run("pause", path, *arguments, exits=2)
        assert not (path / "config" / "switches.json").exists()


def test_a_store_that_nobody_has_open_is_paused_for_the_next_one(path: Path, run: Run) -> None:
    with timerstore.open(path, config=SMALL) as store:
        store.put(b"x", delay=timedelta(seconds=0.05))
        store.pause("firing", keep=True)
        store.resume("firing")
    assert "find it paused" in run("pause", path, "firing").output
    with timerstore.open(path, config=SMALL) as store:
        assert [each.what for each in store.health().conditions] == ["Firing is paused."]
    run("resume", path, "firing")
    with timerstore.open(path, config=SMALL) as store:
        assert store.health().state == "running"
    assert "does not exist" in run("pause", path / "none", "firing", exits=3).output


def test_a_store_whose_owner_cannot_be_asked(path: Path, run: Run) -> None:
    with timerstore.open(path, config=timerstore.Config(tuning=timerstore.Tuning(control=False))):
        assert str(os.getpid()) in run("health", path, exits=3).output


def test_tail_shows_the_last_ones(store: TimerStore, path: Path, run: Run) -> None:
    for i in range(5):
        store.put(b"body %d" % i, topic="a" if i % 2 else "b", key=f"k{i}", tag="t")
    wait_until(lambda: store.stats().fired_count == 5)
    lines = run("tail", path, "--no-follow", "-n", "3").output.splitlines()
    assert len(lines) == 3 and all("body" in each for each in lines)
    (line, *_) = run("tail", path, "--no-follow", "--topic", "a", "--json").output.splitlines()
    found = json.loads(line)
    assert (found["topic"], found["key"], found["body"], found["attempt"]) == (
        *("a", "k1", "body 1", 0),
    )
    assert found["lateness_ms"] == found["fired_ms"] - found["due_ms"] >= 0
    assert len(store.pull("a", timeout=5)) == 2  # nothing was consumed


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("body", [b"short", b"x" * 300, "\u4f60\u597d".encode() * 40, b"\x1b[2J\n"])
def test_a_line_of_tail_fits(width: int, body: bytes) -> None:
    fired = {"fired_ms": 1_800_000_000_123, "topic": "reminders", "key": "k" * 9, "id": "0" * 32}
    line = fitting(fired | {"body": body}, 7, width)
    assert cell_len(line) <= width and line.isprintable()
    assert line.startswith("08:00:00.123Z")
    assert ("0" * 32 in line) == (width == 200) and ("k" * 9 in line) == (width >= 80)


def test_tail_of_nobody(path: Path, run: Run) -> None:
    assert "nothing fires" in run("tail", path, exits=3).output


@pytest.mark.slow
def test_tail_follows_and_ends_with_its_owner_or_a_signal(path: Path) -> None:
    with timerstore.open(path, config=SMALL) as store:
        children = [process("tail", path, "-n", "0") for _ in range(2)]
        first = [each.stdout for each in children]
        seen = set()
        until_s = time.monotonic() + 60
        number = 0
        for out in first:
            os.set_blocking(out.fileno(), False)
        while len(seen) < 2 and time.monotonic() < until_s:
            store.put(b"number %d" % number)
            number += 1
            time.sleep(0.1)
            seen |= {i for i, out in enumerate(first) if b"number" in (out.read() or b"")}
        assert len(seen) == 2
        for out in first:
            os.set_blocking(out.fileno(), True)
        children[0].send_signal(signal.SIGINT)
        assert finish(children[0])[0] == 130
    status, _, err = finish(children[1])
    assert status == 4 and "ended" in err
