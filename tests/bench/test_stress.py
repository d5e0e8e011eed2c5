"""Stress: its ledger finds each kind of fault, each scenario is played for some seconds."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import stressing
from stress import audit, clock, judge, load, watch
from stress.ledger import Ledger, bodies_of, words_of
from stress.scenarios import SCENARIOS

import timerstore
from tests.small_store import SMALL

pytestmark = pytest.mark.long

PUTTERS = 3
IN_TIME = np.zeros(1, bool)


def took(ledger: Ledger, *numbers: int) -> None:
    for number in numbers:
        ledger.take(np.array([number]), IN_TIME)


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
        ledger.take(numbers, np.zeros(len(numbers), bool))
    ledger["queue_end"] = 28
    return ledger


FIRST = ", the first of them number"


def faults(ledger: Ledger, *, killed: bool = False) -> list[str]:
    return judge.faults(ledger, judge.count(ledger), killed=killed)


def test_all_agrees(ledger: Ledger) -> None:
    assert judge.count(ledger) == judge.Counts(put=30, cancelled=2, came=28)
    assert faults(ledger) == []


def test_one_comes_whose_cancel_answers_later(ledger: Ledger) -> None:
    ledger.answered(np.array([6, 9]), np.array([False, True]))
    assert judge.blamed(ledger, killed=True) == [f"1 timers were cancelled and came{FIRST} 9"]


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
    assert f"1 timers came with a body that nobody put{FIRST} 1000" in faults(ledger)


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


def test_a_body_says_its_number_and_when_it_may_come() -> None:
    numbers, earliest_ms = np.array([0, 7, 1 << 40]), np.array([5, 1 << 50, 6])
    made = bodies_of(numbers, earliest_ms, 100)
    bodies = pa.array([row.tobytes() for row in made], pa.binary())
    for first in (0, 1):
        found = [each.tolist() for each in words_of(bodies[first:], 100)]
        assert found == [numbers[first:].tolist(), earliest_ms[first:].tolist()]
    assert words_of(pa.array([b"x"], pa.binary()), 100)[0].tolist() == [-1]


class Putting:
    """A store whose calls, but one, do what they say."""

    def __init__(self, store: timerstore.TimerStore, fault: str) -> None:
        self._store, self._fault = store, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_many(self, bodies: Any, *, delay_ms: Any, **more: Any) -> list[str]:
        rows, delay_ms = [row.tobytes() for row in bodies], delay_ms.tolist()
        if self._fault == "lost":
            del rows[-1], delay_ms[-1]
        elif self._fault == "doubled":
            rows, delay_ms = [*rows, rows[0]], [*delay_ms, delay_ms[0]]
        elif self._fault in ("early", "taken late"):
            delay_ms = [each - (400 if self._fault == "early" else 20) for each in delay_ms]
        ids = list(self._store.put_many(rows, delay_ms=delay_ms, **more))
        return ids + ids[:1] if self._fault == "lost" else ids[: len(bodies)]

    def cancel_many(self, ids: list[str]) -> Any:
        spared = 1 if self._fault == "undead" else 0
        self._store.cancel_many(ids[spared:])
        return np.ones(len(ids), bool)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("", []),
        ("lost", [f"1 timers were put and never came{FIRST} 255"]),
        (
            "doubled",
            [f"1 timers came more than once{FIRST} 0", "257 fired, 256 different timers came"],
        ),
        ("early", [f"256 timers fired before their time{FIRST} 0"]),
        ("taken late", [f"256 timers fired before their time{FIRST} 0"]),
        ("undead", [f"1 timers were cancelled and came{FIRST} 0"]),
    ],
)
def test_what_is_wrong_with_a_store_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: list[str]
) -> None:
    """The putters and consumers of a play, beside a store that does one thing wrong."""
    monkeypatch.setattr(load, "LIST_COUNT", load.FEW)
    ledger = Ledger(tmp_path / "ledger", 1)
    with timerstore.open(tmp_path / "store", config=SMALL) as store:
        wrong: Any = Putting(store, fault)
        work: Any = load.Work(wrong, ledger, timers=load.FEW, ahead_ms=450, seed=1)
        work.draw = lambda count: np.full(count, 450)
        (load.cancelling if fault == "undead" else load.lists)(work, 0)
        if fault == "taken late":
            time.sleep(0.5)  # by its own clock a consumer that is behind sees nothing early
        load.columns(work, 0)
    ledger["queue_end"] = ledger["pulled"]
    assert [each for each in faults(ledger) if "handed out" not in each] == said


@pytest.mark.parametrize("fault", ["", "lost"])
def test_a_lost_timer_is_named_while_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """What was put before a round of the audit is judged after the next one."""
    monkeypatch.setattr(load, "LIST_COUNT", load.FEW)
    ledger, tuning = Ledger(tmp_path / "ledger", 1), replace(SMALL.tuning, precision_ms=100)
    with timerstore.open(tmp_path / "store", config=replace(SMALL, tuning=tuning)) as store:
        wrong: Any = Putting(store, fault)
        work = load.Work(wrong, ledger, timers=load.FEW, ahead_ms=200, seed=1)
        load.lists(work, 0)
        load.columns(work, 0)
        judged, audited = list[int](), ledger.audit
        monkeypatch.setattr(ledger, "audit", lambda put: audited(put) or judged.append(put[0]))
        until_s = time.monotonic() + 60
        for _ in audit.rounds(work):
            time.sleep(0.01)
            if load.FEW in judged:
                break
            assert time.monotonic() < until_s, "slots, or acknowledgements, do not go on"
    assert judge.blamed(ledger, killed=False) == (
        [f"1 timers were put and never came{FIRST} 255"] if fault else []
    )


def test_one_that_fires_early_is_seen_before_it_is_taken(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", 1)
    with timerstore.open(tmp_path / "store", config=SMALL) as store:
        work = load.Work(store, ledger, timers=1, ahead_ms=1, seed=1)
        audit.look_at_newest(work)  # nothing has fired
        bodies = bodies_of(np.array([7, 8]), work.now_ms() + np.array([0, 60_000]), 100)
        store.put_many(bodies, topic=load.TOPIC)
        while store.stats().fired_count < 2:
            time.sleep(0.01)
        audit.look_at_newest(replace(work, step_ms=1))
        assert judge.blamed(ledger, killed=False) == []
        audit.look_at_newest(work)
    said = [f"1 timers fired before their time{FIRST} 8"]
    assert judge.blamed(ledger, killed=False) == said


@pytest.mark.slow
@pytest.mark.prove
def test_a_play_ends_as_soon_as_a_timer_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an hour: one timer never gets to the consumer that has acknowledged it."""
    planted = tmp_path / "planted.py"
    planted.write_text(
        f"import sys\nsys.path.insert(0, {str(stressing.WORKER.parents[1])!r})\n"
        "from stress import ledger, worker\n"
        "take = ledger.Ledger.take\n"
        "def take_others(self, numbers, is_early):\n"
        "    take(self, numbers[numbers != 5_000], is_early[numbers != 5_000])\n"
        "ledger.Ledger.take = take_others\n"
        "worker.main()\n"
    )
    monkeypatch.setattr(stressing, "WORKER", planted)
    began_s = time.monotonic()
    with pytest.raises(stressing.PlayError, match=f"never came{FIRST} 5000"):
        stressing.play("small", tmp_path, seconds=3_600)
    assert time.monotonic() - began_s < 200


def test_a_clock_that_is_set_says_nothing_about_who_is_early(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", 1)
    ledger.begin(0, 4)
    with timerstore.open(tmp_path / "store", config=SMALL) as store:
        numbers, due_ms = np.arange(3), np.array([1 << 60, 1 << 60, 5])
        earliest_ms, fired_ms = np.array([1 << 60, 1 << 60, 6]), np.array([1 << 60, 4, 6])
        for step_ms, early in ((10, 2), (0, 5)):
            work = load.Work(store, ledger, 1, 1, 1, step_ms)
            work.took(numbers, earliest_ms, due_ms, fired_ms)
            assert ledger["early"] == early


def samples(**values: Any) -> list[watch.Sample]:
    """A life of two minutes, of which each value is given at its beginning and its end."""
    usual = dict.fromkeys(("private_bytes", "used_bytes"), (100 << 20, 100 << 20))
    usual |= {"descriptors": (20, 20)} | values
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


def lives(samples: list[watch.Sample]) -> list[watch.Sample]:
    """Return them as of lives of five seconds."""
    return [replace(each, life=1 + round(each.at_s) // 5) for each in samples]


def peaks(samples: list[watch.Sample]) -> list[watch.Sample]:
    """Return them with memory that is needed for a moment, now and then."""
    return [
        replace(each, used_bytes=each.used_bytes + (60 << 20 if each.at_s > 60 and i % 4 else 0))
        for i, each in enumerate(samples)
    ]


@pytest.mark.parametrize("of", [lambda samples: samples, lives, peaks])
def test_growth_is_found(of: Callable[[list[watch.Sample]], list[watch.Sample]]) -> None:
    """What the allocator keeps, and what is needed for a moment, is no growth."""
    assert watch.growth(of(samples(private_bytes=(283 << 20, 349 << 20)))) == []
    (found,) = watch.growth(of(samples(used_bytes=(110 << 20, 180 << 20))))
    assert found.startswith("used_bytes grew")
    (found,) = watch.growth(of(samples(descriptors=(20, 80))))
    assert found.startswith("descriptors grew")
    assert watch.growth(of(samples(descriptors=(20, 80)))[:50]) == []  # too short a play


def test_what_the_allocator_keeps_is_not_in_use() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(stressing.WORKER.parents[1])!r})\n"
        "import machine, numpy as np\n"
        "from stress.watch import used_bytes\n"
        "start = used_bytes()\n"
        "pairs = [(np.ones(100_000, np.uint8), np.ones(5_000, np.uint8)) for _ in range(600)]\n"
        "pins = [small for _, small in pairs]\n"
        "del pairs\n"
        "kept = machine.private_bytes() - start\n"
        "used = used_bytes() - start\n"
        "leak = [np.ones(100_000, np.uint8) for _ in range(300)]\n"
        "print(kept, used, used_bytes() - start)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    kept, used, leaked = (int(word) / 1e6 for word in said.stdout.split())
    assert kept > 50
    assert used < 20
    assert leaked > used + 25


def test_plays_are_kept_and_shown() -> None:
    counts = judge.Counts(put=2_000_000, cancelled=1, came=1_999_999)
    for each in ([], samples()):
        ended = stressing.Ended(counts, [], 3_600, 3, 0, 0, 0, each)
        told = stressing.table({"hops": stressing.kept(ended) | {"day": "a day"}}).splitlines()
    assert told[0] == "a day."
    cells = [each.strip() for each in told[4].split("|")[1:-1]]
    assert cells[:7] == ["`hops`", "60.0", "2 M", "2 M", "2", "105 → 105", "0"]
    assert cells[8] == "all agree"


def test_each_scenario_is_whole() -> None:
    for name, each in SCENARIOS.items():
        each.config.check_max_bytes()
        assert each.what, name
        assert each.script is None or each.putters == (load.lists,), name


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


@pytest.mark.parametrize("is_ready", [False, True])
def test_no_process_is_left_of_a_play_that_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    def cut(seconds: float) -> None:
        if play.ledger["ready"] == is_ready:
            raise KeyboardInterrupt

    play = stressing.Play("small", SCENARIOS["small"], tmp_path, seconds=60, seed=1)
    started, start = list[subprocess.Popen[bytes]](), play.start
    monkeypatch.setattr(play, "start", lambda: started.append(start()) or started[-1])
    # Its own `time`: threads that other tests left, such as py4j's, go on to sleep.
    monkeypatch.setattr(stressing, "time", SimpleNamespace(**vars(time) | {"sleep": cut}))
    with pytest.raises(KeyboardInterrupt):
        play.run()
    assert [worker.returncode for worker in started] == [-signal.SIGKILL]


def test_a_worker_whose_parent_has_ended_ends_by_itself(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", 1)
    command = [sys.executable, "-P", str(stressing.WORKER), "small", str(tmp_path)]
    gone = subprocess.Popen(["true"])
    gone.wait()
    words = ["1000", "10", "1", str(gone.pid)]
    assert subprocess.run([*command, *words], timeout=200).returncode == 4
    assert ledger["ready"]


def test_how_a_process_ended_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store's process that somebody kills is a fault, without a traceback; the others go on."""
    dying = tmp_path / "dying.py"
    dying.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setattr(stressing, "WORKER", dying)
    monkeypatch.setattr(sys, "argv", ["stressing.py", "all", "--folder", str(tmp_path)])
    monkeypatch.setattr(stressing, "missing", lambda name: None if name == "days" else "why")
    with pytest.raises(SystemExit) as ended:
        stressing.main()
    assert ended.value.code == 1
    said = "FAULT: the process with the store ended with SIGKILL"
    assert said in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [dying]


def test_a_play_in_which_nothing_comes_any_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that never ends, because a timer of ten does not come."""
    never = tmp_path / "never.py"
    never.write_text("import time\ntime.sleep(1_000)\n")
    monkeypatch.setattr(stressing, "WORKER", never)
    monkeypatch.setattr(stressing, "_STUCK_S", 0.5)
    play = stressing.Play("small", SCENARIOS["small"], tmp_path, seconds=0.2, seed=1)
    numbers = play.ledger.begin(0, 10)
    play.ledger.done(0, 10)
    play.ledger.take(numbers[1:], np.zeros(9, bool))
    started, start = list[subprocess.Popen[bytes]](), play.start

    def start_ready() -> subprocess.Popen[bytes]:
        started.append(start())
        play.ledger["ready"] = 1
        return started[-1]

    monkeypatch.setattr(play, "start", start_ready)
    said = f"nothing has come for 0.5 s; 1 timers were put and never came{FIRST} 0"
    with pytest.raises(stressing.PlayError, match=said):
        play.run()
    assert started[0].returncode == -signal.SIGKILL


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stressing, "compiler", lambda: None)
    assert stressing.missing("small") is None
    assert stressing.missing("clock") == clock.MISSING


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
