"""Busy and healthy stores: no rule speaks of them. Beside each, one in which something is wrong."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.pipeline.planted_stores import CONFIG, FEW_SLOTS, START_MS, Case
from timerstore import InvalidArgumentError, ManualClock, pipeline
from timerstore.audit import Limits, ask
from timerstore.pipeline.judging import Looked, RunOptions, open_engine
from timerstore.pipeline.resulttables import TABLES
from timerstore.pipeline.tablefiles import TableFiles
from timerstore.pipeline.thresholds import Thresholds

pytestmark = pytest.mark.slow
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
SENSITIVE = {
    rule: {"least": 10}
    for rule in ("skew_neighbours", "skew_gini", "skew_heaviest", "chains_dead", "rolls_cost")
}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def rows(case: Case, **thresholds: Any) -> dict[str, dict[str, Any]]:
    """What a run says of the store, by rule."""
    run = pipeline.run({"store": str(case.path)}, case.out, thresholds=thresholds, **case.options)
    found = pipeline.read(case.out, "findings", run=run.run).to_pylist()
    return {row["rule"]: row for row in found}


def wrong(found: dict[str, dict[str, Any]]) -> set[str]:
    return {rule for rule, row in found.items() if row["verdict"] != "ok"}


def test_what_is_cancelled_does_not_fire(case: Case) -> None:
    """Of 500 timers of one second 495 are cancelled, of 100 beyond the window 90."""
    with case.store(FEW_SLOTS) as (store, _):
        near = store.put_many([b"x"] * 500, delay_ms=[4_000] * 500)
        far = store.put_many([b"x"] * 100, delay_ms=[60_000] * 100)
        store.cancel_many([*near[5:], *far[10:]])
    found = rows(case, fire_rate_per_s=10)
    assert "has 5 timers" in found["load_second"]["says"]
    (store_row,) = pipeline.read(case.out, "stores").to_pylist()
    assert (store_row["pending"], store_row["rolling"]) == (15, 10)
    slots = pipeline.read(case.out, "slot_load").to_pylist()
    assert sum(each["fires"] + each["rolls"] for each in slots) == 15


def steady(per_second: int, within_s: int, far_s: Sequence[int]) -> list[float]:
    """What waits at an instant of steady traffic, each timer due within so many seconds."""
    near = [s + 0.5 for s in range(within_s) for _ in range(per_second)]
    return [*near, *map(float, far_s)]


def test_steady_traffic_is_no_peak(case: Case) -> None:
    """Of a minute, with some timers far away; beside it a herd at night."""
    far = [*range(2_200, 7_900, 100)]
    case.put(steady(100, 60, far))
    assert wrong(rows(case, **SENSITIVE)) == set()
    case.path.rename(case.folder / "healthy")
    noon = [4_000 + s for s in range(60) for _ in range(120)]
    case.put([*steady(100, 60, far), *noon, *([6_000] * 90)])
    found = rows(case, **SENSITIVE)
    assert "91 timers" in found["skew_neighbours"]["says"]
    assert wrong(found) >= {"skew_neighbours"}


@pytest.mark.parametrize("delay_s", [20, 300])
def test_traffic_that_began_just_now_is_no_peak(delay_s: int, case: Case) -> None:
    """All with the same delay, for twenty seconds."""
    case.put([delay_s + s for s in range(20) for _ in range(200)] + [5_000.0])
    assert wrong(rows(case, **SENSITIVE)) == set()


def put_week(case: Case, now_ms: int, peak_hour: int) -> None:
    """Timers of the next twenty days, most at one hour of the day."""
    clock, midnight = ManualClock(now_ms), now_ms // DAY_MS * DAY_MS
    due = [
        midnight + day * DAY_MS + hour * HOUR_MS + i * 60_000
        for day in range(21)
        for hour in range(24)
        for i in range(60 if hour == peak_hour else 2)
    ]
    due = [each for each in due if now_ms < each <= now_ms + 20 * DAY_MS]
    with timerstore.open(case.path, config=CONFIG, clock=clock) as store:
        store.put_many([b"x"] * len(due), at_ms=due)
        clock.advance(timedelta(0))


def test_a_run_at_another_hour_is_no_drift(case: Case) -> None:
    """A week at three, then one at five; and one where the peak has moved."""
    midnight = START_MS // DAY_MS * DAY_MS
    for day in range(7):
        put_week(case, midnight + day * DAY_MS + 3 * HOUR_MS, 9)
        now_ms = midnight + day * DAY_MS + 4 * HOUR_MS
        pipeline.run({"store": str(case.path)}, case.out, run=f"day-{day}", now_ms=now_ms)
        case.path.rename(case.folder / f"day-{day}")
    case.options["now_ms"] = midnight + 7 * DAY_MS + 6 * HOUR_MS
    limits = {"drift_due": {"warn": 0.02, "least": 10}}
    put_week(case, midnight + 7 * DAY_MS + 5 * HOUR_MS, 9)
    assert "drift_due" not in wrong(rows(case, **limits))
    case.path.rename(case.folder / "healthy")
    put_week(case, midnight + 7 * DAY_MS + 5 * HOUR_MS, 15)
    assert "drift_due" in wrong(rows(case, **limits))


def test_a_clock_that_was_set_back_is_no_damage(case: Case) -> None:
    """Timers are put six minutes before what was fired already, also beyond the window."""
    clock = ManualClock(START_MS)
    with timerstore.open(case.path, config=FEW_SLOTS, clock=clock) as store:
        store.put(b"x", delay=1)
        clock.advance(timedelta(minutes=6))
    clock = ManualClock(START_MS)
    with timerstore.open(case.path, config=FEW_SLOTS, clock=clock) as store:
        store.put_many([b"x"] * 400, delay_ms=[1_000 * i for i in range(400)])
        clock.advance(timedelta(0))
    found = rows(case)
    assert not wrong(found) & {"slots_mapped", "slots_ring"}, found["slots_mapped"]


def test_cleaning_is_no_waste(tmp_path: Path) -> None:
    """What it moved elsewhere comes and goes with its own work; deletes are what is told."""
    files = TableFiles(tmp_path, "one", "2027-01-04")
    looked = []
    for name, deletes, superseded in (("cleaned", 0, 15_000), ("cancelled", 8_000, 0)):
        slot = {"units": 20_000, "deletes": deletes, "superseded": superseded}
        file = files.write("slot_load", TABLES["slot_load"].rows([slot]), name)
        row = {"at_ms": START_MS, "pending": 0} | {
            f"{each}_profile": [] for each in ("due", "late", "load")
        }
        looked.append(Looked(name, row, files=(file,)))
    options = RunOptions(files, Thresholds(), START_MS)
    with open_engine(looked, options, None) as engine:
        (rule,) = [each for each in pipeline.DISTRIBUTION_RULES if each.name == "chains_dead"]
        found = ask(engine, rule, Limits(warn=0.5, least=5_000))
    values = {name: row["value"] for name, (row,) in found.items()}
    assert values == {
        "cleaned": 0,
        "cancelled": 0.8,
    }


def busy(case: Case, open_until_s: int, *, bursts: int = 0, body: int = 1) -> None:
    """A store in use for some minutes, with timers of two days by chance; and bursts each hour."""
    delays = np.random.default_rng(7).integers(1, 48 * 3_600, 40_000)
    hours = np.repeat(np.arange(2, 47) * 3_600 + 60, bursts)
    due_s = np.concatenate([delays, hours, np.arange(20)])
    clock = ManualClock(START_MS)
    with timerstore.open(case.path, config=CONFIG, clock=clock) as store:
        store.put_many([bytes(body)] * len(due_s), delay_ms=1_000 * due_s, topic="mail")
        clock.advance(timedelta(seconds=open_until_s))


NEW = {
    "in_use": True,
    "fire_rate_per_s": 10,
    "fire_bytes_per_s": 10_000,
    "skew_regular": {"least": 100},
    "late_fired": {"least": 10},
}


def test_a_busy_store_that_was_closed_a_moment_ago(case: Case) -> None:
    """And one that nobody opens again, one with bursts, one with large bodies."""
    busy(case, 600)
    case.options["now_ms"] = START_MS + 660_000
    assert wrong(rows(case, **NEW)) == set()
    case.options["now_ms"] = START_MS + 2 * DAY_MS
    found = rows(case, **NEW)
    assert wrong(found) == {"age_stopped"} and found["age_stopped"]["verdict"] == "fail"
    case.path.rename(case.folder / "healthy")
    busy(case, 600, bursts=150)
    case.options["now_ms"] = START_MS + 660_000
    larger = {"fire_bytes_per_s": 100_000, "load_second": {"warn": 100, "fail": 200}}
    found = rows(case, **NEW | larger | {"skew_neighbours": {"warn": 1_000}})
    assert wrong(found) == {"skew_regular"}, wrong(found)
    assert "At minute 1 of most of the next 24 hours 1" in found["skew_regular"]["says"]
    case.path.rename(case.folder / "bursts")
    busy(case, 600, body=9_000)
    assert wrong(rows(case, **NEW)) == {"load_bytes"}


def test_a_backup_has_no_program(case: Case) -> None:
    """What is due since it was made is none of its faults."""
    busy(case, 600)
    timerstore.backup(case.path, case.folder / "copy")
    run = pipeline.run(
        case.folder / "copy", now_ms=START_MS + 2 * DAY_MS, thresholds={"in_use": True}
    )
    found = {row["rule"]: row for row in run.read("findings").to_pylist()}
    assert found["age_stopped"]["verdict"] == "ok" and not found["age_stopped"]["checked"]
    (row,) = run.read("stores").to_pylist()
    assert row["is_copy"]


def test_a_baseline_must_be_a_run(case: Case) -> None:
    case.put([300])
    with pytest.raises(InvalidArgumentError, match="no finished run of that name"):
        rows(case, baseline="never")
    with pytest.raises(InvalidArgumentError, match="baseline is 'a/b'"):
        rows(case, baseline="a/b")
