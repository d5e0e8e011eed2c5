"""Stress: its ledger finds each kind of fault, each scenario is played for some seconds."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import stressing
from stress import clock, judge, load, plays, slow, watch
from stress.ledger import Ledger, bodies_of, numbers_of
from stress.scenarios import SCENARIOS

PUTTERS = 3
LATE = np.zeros(1, np.int64)


def took(ledger: Ledger, *numbers: int) -> None:
    for number in numbers:
        ledger.take(np.array([number]), LATE)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Each of three putters has put ten; of the first one, two are cancelled; the others came."""
    ledger = Ledger(tmp_path / "ledger", PUTTERS)
    for putter in range(PUTTERS):
        numbers = ledger.begin(putter, 10)
        ledger.done(putter, 10)
        if putter == 0:
            ledger.ask(numbers[:3])
            ledger.answered(numbers[:3], np.array([True, True, False]))
            numbers = numbers[2:]
        ledger.take(numbers, np.zeros(len(numbers), np.int64))
    ledger["queue_end"] = 28
    return ledger


def faults(ledger: Ledger, *, killed: bool = False) -> list[str]:
    return judge.faults(ledger, judge.count(ledger), killed=killed)


def test_all_agrees(ledger: Ledger) -> None:
    assert judge.count(ledger) == judge.Counts(put=30, cancelled=2, came=28)
    assert faults(ledger) == []


def test_one_is_missing(ledger: Ledger) -> None:
    ledger.begin(1, 1)
    ledger.done(1, 1)
    assert faults(ledger) == ["1 timers were put and never came"]


def test_one_that_was_cancelled_comes(ledger: Ledger) -> None:
    took(ledger, 0)
    ledger["queue_end"] = 29
    assert faults(ledger) == ["1 timers were cancelled and came"]


def test_one_comes_twice(ledger: Ledger) -> None:
    took(ledger, 1)
    assert any("came more than once" in each for each in faults(ledger))
    assert faults(ledger, killed=True) == []  # its acknowledgement was lost, it was fired once
    ledger["queue_end"] = 29
    assert faults(ledger, killed=True) == ["29 fired, 28 different timers came"]


def test_one_comes_that_nobody_put(ledger: Ledger) -> None:
    ledger.begin(2, 5)
    ledger.done(2, 5)
    took(ledger, *range(32, 47, 3))
    assert "timers came that nobody put" not in str(faults(ledger))
    took(ledger, 33)
    assert "1 timers came that nobody put" in faults(ledger)
    took(ledger, 1_000)
    assert "1 timers came with a body that nobody put" in faults(ledger)


def test_one_fires_early(ledger: Ledger) -> None:
    ledger.begin(0, 1)
    ledger.done(0, 1)
    ledger.take(np.array([30]), np.array([-1]))
    ledger["queue_end"] = 29
    assert faults(ledger) == ["1 timers fired before their time"]


def test_nobody_knows_what_was_under_way_at_a_kill(ledger: Ledger, tmp_path: Path) -> None:
    ledger.begin(1, 4)
    again = Ledger(tmp_path / "ledger", PUTTERS)  # another process maps the same files
    assert again.settle() == 4
    took(again, 31)
    again["queue_end"] = 29
    assert judge.count(again) == judge.Counts(put=30, unsure=4, cancelled=2, came=29)
    assert faults(again, killed=True) == []


def test_nothing_came(tmp_path: Path) -> None:
    assert faults(Ledger(tmp_path / "ledger", 1)) == ["no timer came at all"]


def test_a_body_says_its_number() -> None:
    numbers = np.array([0, 7, 1 << 40])
    made = bodies_of(numbers, 100)
    bodies = pa.array([row.tobytes() for row in made], pa.binary())
    assert numbers_of(bodies, 100).tolist() == numbers.tolist()
    assert numbers_of(bodies[1:], 100).tolist() == numbers[1:].tolist()
    assert numbers_of(pa.array([b"x"], pa.binary()), 100).tolist() == [-1]


def samples(**values: Any) -> list[watch.Sample]:
    """A life of two minutes, of which each value is given at its beginning and its end."""
    usual = {"private_bytes": (100 << 20, 100 << 20), "descriptors": (20, 20)} | values
    return [
        watch.Sample(
            at_s=float(second),
            life=1,
            disk_bytes=0,
            **{
                name: round(first + (last - first) * second / 120)
                for name, (first, last) in usual.items()
            },
        )
        for second in range(121)
    ]


def test_growth_is_found() -> None:
    assert watch.growth(samples()) == []
    (found,) = watch.growth(samples(private_bytes=(100 << 20, 200 << 20)))
    assert found.startswith("private_bytes grew")
    (found,) = watch.growth(samples(descriptors=(20, 80)))
    assert found.startswith("descriptors grew")
    assert watch.growth(samples(descriptors=(20, 80))[:50]) == []  # too short a life


def test_growth_over_many_short_lives_is_found() -> None:
    def short_lives(*last_mib: int) -> list[watch.Sample]:
        grown = samples(private_bytes=(100 << 20, last_mib[0] << 20))
        return [replace(each, life=1 + round(each.at_s) // 5) for each in grown]

    assert watch.growth(short_lives(100)) == []
    (found,) = watch.growth(short_lives(200))
    assert found.startswith("private_bytes grew")


def test_plays_are_kept_and_shown(tmp_path: Path) -> None:
    file, page = tmp_path / "plays.json", tmp_path / "page.md"
    page.write_text("before\n<!-- stress: begin -->\nold\n<!-- stress: end -->\n")
    counts = judge.Counts(put=2_000_000, cancelled=1, came=1_999_999)
    for seconds in (60.0, 3_600.0):  # the later one counts
        plays.keep(file, plays.of("hops", "a day", seconds, counts, 3, samples(), 1.5, []))
    plays.keep(file, plays.of("days", "a day", 60, counts, 1, samples(), 1.5, ["1 is missing"]))
    plays.fill(page, plays.kept(file))
    lines = page.read_text().splitlines()
    assert lines[2] == "a day."
    row = "| `hops` | 60.0 | 2 M | 1 | 2 M | 2 | 105 → 105 | 20 → 20 | 0 | 1.5 | all agree |"
    assert row in lines
    assert lines[lines.index(row) + 1].endswith("| 1 is missing |")


def test_a_process_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    found = watch.look(os.getpid(), tmp_path, 1.0, 1)
    assert found is not None
    assert found.descriptors > 2
    assert found.disk_bytes >= 100_000
    assert watch.look(1 << 30, tmp_path, 1.0, 1) is None


def test_each_scenario_is_whole() -> None:
    for name, each in SCENARIOS.items():
        each.config.check_max_bytes()
        assert each.what, name
        assert each.script is None or each.putters == (load.lists,), name
        assert not each.disk_bytes_per_second or each.disk_bytes > (each.config.max_bytes or 0)


@pytest.mark.slow
@pytest.mark.prove
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_for_some_seconds(name: str, tmp_path: Path) -> None:
    if reason := stressing.missing(name):
        pytest.skip(reason)
    ended = stressing.play(name, tmp_path, seconds=6, progress_s=1)
    assert ended.faults == []
    assert ended.counts.came > 1_000
    assert (ended.lives > 1) == (SCENARIOS[name].kill_s is not None)
    assert "Every timer is accounted for." in stressing.told(ended)


@pytest.mark.slow
@pytest.mark.prove
def test_a_worker_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    play = stressing.Play("small", SCENARIOS["small"], tmp_path, seconds=60, seed=1)
    worker = play.start()
    while not play.ledger["ready"]:
        assert worker.poll() is None
    play.ledger["stop"] = 1
    assert worker.wait(120) == 0


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stressing, "compiler", lambda: None)
    monkeypatch.setattr(slow.os, "geteuid", lambda: 1_000)
    assert stressing.missing("small") is None
    assert stressing.missing("clock") == clock.MISSING
    assert stressing.missing("slow-disk") == "only root can mount a throttled disk"


def test_a_clock_is_moved(tmp_path: Path) -> None:
    if reason := stressing.missing("clock"):
        pytest.skip(reason)
    moved = clock.MovedClock(tmp_path)
    moved.set(-3_600)
    code = "import time; print(time.time(), time.time_ns(), time.monotonic())"
    environment = os.environ | moved.environment
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True
    )
    wall, wall_ns, monotonic = map(float, said.stdout.split())
    for seconds in (wall, wall_ns / 1e9):
        assert 3_000 < time.time() - seconds < 4_000
    assert abs(time.monotonic() - monotonic) < 1_000
