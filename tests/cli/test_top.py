"""top: two looks at a store, drawn to fit any terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import timerstore
from tests.cli.shell import SMALL, Run
from tests.rigs.waiting import wait_until
from timerstore import TimerStore
from timerstore.cli.operating import Look, draw, look_at, sparkline
from timerstore.share.wire import find_owner
from timerstore.watching.sections import lateness, rates

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def store(path: Path) -> Iterator[TimerStore]:
    with timerstore.open(path, config=SMALL) as store:
        yield store


@pytest.fixture
def looks(store: TimerStore) -> tuple[Look, Look]:
    """Before and after thirty timers of three topics, of which a group has handled some."""
    owner = find_owner(store.path)
    before = look_at(store.path, owner)
    for i in range(30):
        store.put(b"x", topic=f"topic-{i % 3}", delay=timedelta(minutes=i // 15))
    wait_until(lambda: store.stats().fired_count >= 15)
    store.pull("topic-0", group="g", timeout=5).ack()
    store.pause("putting")
    return before, look_at(store.path, owner)


def test_one_look(store: TimerStore, path: Path, run: Run) -> None:
    store.put(b"x", topic="mail", delay=timedelta(seconds=30))
    out = run("top", path, "--interval", "0.3").output
    for part in ("/timers  running", "enqueue-get", "mail", "next minute", "1 due"):
        assert part in out
    found = json.loads(run("top", path, "--json", "--interval", "0.2").output)
    assert sum(found["seconds_ahead"]) == 1 and found["health"]["ok"]
    assert set(found["rates_per_s"].values()) == {0}


def test_of_nobody(path: Path, run: Run) -> None:
    assert "nothing changes" in run("top", path, exits=3).output


def test_rates_and_lateness_are_those_between_two_looks(looks: tuple[Look, Look]) -> None:
    before, now = looks
    since = now.since(before)
    assert since.passed_s == now.at_s - before.at_s
    found = rates(now.stats, since)
    assert found["put"] == pytest.approx(30 / since.passed_s)
    assert found["fired"] == pytest.approx(15 / since.passed_s)
    assert found["handled"] == pytest.approx(5 / since.passed_s)
    for name in ("put_bytes", "fired_bytes", "rolled_bytes"):
        appended = now.stats[name] - before.stats[name]
        assert found[name] == pytest.approx(appended / since.passed_s)
    assert found["put_bytes"] > 0 and found["fired_bytes"] > 0
    p50_ms, p99_ms, max_ms = lateness(now.stats, since)
    assert 0 <= p50_ms <= p99_ms <= max_ms
    nothing_since = now.since(now)  # nothing fired: of everything
    assert lateness(now.stats, nothing_since) == lateness(now.stats, since)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [5, 10, 24, 50])
def test_it_fits(looks: tuple[Look, Look], width: int, height: int) -> None:
    before, now = looks
    lines = draw(now, before, width, height).plain.splitlines()
    assert len(lines) <= height
    if width >= 80:
        assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    if (width, height) == (80, 24):
        assert "topic-2" in text and "Putting is paused" in text and "(nobody)" in text
    if (width, height) == (200, 50):
        assert f"timerstore resume {now.path} putting" in text


def test_many_topics_leave_room_for_groups(looks: tuple[Look, Look]) -> None:
    before, now = looks
    topic, group = now.stats["topics"][0], now.stats["groups"][0]
    now.stats["topics"] = [topic | {"topic": f"t{i}"} for i in range(500)]
    now.stats["groups"] = [group | {"group": f"g{i}"} for i in range(500)]
    text = draw(now, before, 80, 24).plain
    assert text.count("more") == 2 and "t0" in text and "g0" in text


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**9), max_size=200), st.integers(1, 100))
def test_a_sparkline_has_a_block_for_each_value_or_some(values: list[int], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    if any(values):
        assert "█" in line
    if len(values) <= width and any(values):
        assert all(
            (value == 0) == (block == " ") for value, block in zip(values, line, strict=True)
        )
