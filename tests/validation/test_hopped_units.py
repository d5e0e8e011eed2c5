"""A timer with several units: the last one counts, to tables, verify, validation."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.rigs.handmade_hops import hop
from tests.rigs.patient import Patient
from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore
from timerstore.pipeline.judging import tables_of
from timerstore.tables import read_table
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes import format as fmt
from timerstore.validation import Validation, validate
from timerstore.validation.plan import make_plan
from timerstore.validation.rounds import run

FAR = timedelta(seconds=100)
"""Two hops or more beyond what a window of 40 slots holds."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with three far timers, of which one hopped once, another twice."""
    clock, path = ManualClock(), tmp_path / "s"
    with TimerStore(path, config=SMALL, clock=clock, disk=QuietDisk()) as store:
        ids = [store.put(b"x", topic="t", delay=FAR) for _ in range(3)]
        store.put(b"near", delay=timedelta(seconds=20))
        clock.advance(timedelta(seconds=1))
        for id in (ids[1], ids[2], ids[2]):
            assert hop(store, id)["is_hop"]
    return path


def test_tables_show_the_last_unit_of_each_message(path: Path) -> None:
    units = read_table(path, "units").to_pylist()
    last = {row["message_offset"]: row["offset"] for row in units}
    assert len(units) > len(last) == 4 and sum(row["is_hop"] for row in units) == len(units) - 4
    for columns in (None, ["unit_offset", "message_offset"]):
        rows = read_table(path, "timers", columns).to_pylist()
        assert {row["message_offset"]: row["unit_offset"] for row in rows} == last
        assert len(rows) == 4


def test_it_is_sound_and_each_timer_counts_once(path: Path) -> None:
    report = timerstore.verify(path)
    assert report.ok and report.pending_count == 4, report
    found = validate(path)
    assert found.ok, found
    assert (found.counts["units"], found.counts["pending"]) == (len(read_table(path, "units")), 4)


def test_slots_hold_the_units_that_count(path: Path) -> None:
    plan = make_plan(path, measures=True)
    tally = run(plan, lambda _: None)
    _, tables = tables_of(plan.scope, tally, Validation.make(plan.scope, tally), 0)
    rows = tables["slot_load"].to_pylist()
    units = read_table(path, "units", ["slot", "is_hop"]).to_pylist()
    assert sum(row["units"] for row in rows) == len(units)
    assert sum(row["live"] for row in rows) == 4
    assert sum(row["superseded"] for row in rows) == sum(row["is_hop"] for row in units)
    assert all(row["live"] <= row["expected"] for row in rows)


def test_two_units_that_no_hop_linked_are_one_too_many(path: Path) -> None:
    hops = [row for row in read_table(path, "units").to_pylist() if row["is_hop"]]
    Patient(path).set_unit(hops[0]["offset"], magic=hops[0]["magic"] & ~fmt.UNIT_HOP)
    found = validate(path)
    assert {each.name for each in found.rules if not each.ok} == {"enqueued"}
