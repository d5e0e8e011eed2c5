"""What a broker removes by itself, by a file's last unit or its age, goes once nobody needs it."""

import dataclasses
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import naive
from tests.as_broker import AsBroker
from tests.services.test_cleaning import SECOND, SMALL, START_MS, drain, open_small
from timerstore import ManualClock, TimerStore, verify
from timerstore.closing import handover
from timerstore.services.broker.full_files import NamedDelete, misleading_units, name_units
from timerstore.services.engine.engine import Engine
from timerstore.validation import validate

pytestmark = pytest.mark.whole

FEW_UNITS = dataclasses.replace(SMALL, timerlog_segment_bytes=52 * 4 + 16)


def hopped_store(path: Path, clock: ManualClock, rnd: random.Random) -> tuple[TimerStore, set[str]]:
    """A store whose timers have hopped among those that were put since; and which are pending."""
    store = open_small(path, clock, FEW_UNITS)
    ids: list[str] = []
    for _ in range(rnd.randrange(8, 14)):
        for _ in range(rnd.randrange(1, 9)):
            delay = rnd.choice((1, 30, 100, 300, 900)) + rnd.randrange(9)
            ids.append(store.put(b"%d" % len(ids), delay=delay * SECOND))
        store.cancel(rnd.choice(ids))
        clock.advance(rnd.randrange(1, 40) * SECOND)
        drain(store)
        if rnd.random() < 0.5:
            store.flush()
    return store, {timer.id for timer in store.pending()}


@pytest.mark.usefixtures("any_wheel")
@pytest.mark.parametrize("seed", range(4))
def test_a_broker_keeps_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    clock, path, counts = ManualClock(START_MS, force=True), tmp_path / "s", []
    store, ids = hopped_store(path, clock, random.Random(seed))
    name_units = handover.name_units

    def named(engine: Engine, offsets: np.ndarray, *delete: Any) -> None:
        counts.append(len(offsets))
        name_units(engine, offsets, *delete)

    monkeypatch.setattr(handover, "name_units", named)
    hours_ago = time.time() - 100 * 3_600
    for file in (path / "commitlog").glob("0*"):
        os.utime(file, (hours_ago, hours_ago))
    store.handover()
    assert sum(counts) > 0
    assert min(file.stat().st_mtime for file in (path / "commitlog").glob("0*")) > hours_ago + 3_600
    broker = AsBroker(path)
    assert broker.misled_files() == []
    due = {id for id in ids if int(id[:12], 16) > clock.now_ms}  # others fired meanwhile
    assert due <= set(broker.keys()) <= ids and len(broker.keys()) == len(set(broker.keys()))
    assert validate(path).ok, str(validate(path))
    assert verify(path).ok, str(verify(path))
    with open_small(path, clock, FEW_UNITS) as store:
        assert {timer.id for timer in store.pending()} == set(broker.keys())
        left = store.count()
        drain(store)
        clock.advance(1_000 * SECOND)
        assert len(drain(store)) == left and store.count() == 0


@pytest.mark.usefixtures("any_wheel")
@pytest.mark.parametrize("step", ["link_again", "cut_chains", "name_units", "_link_last"])
@pytest.mark.parametrize("after", [True, False])
def test_it_may_be_killed_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """Whoever opens the store then has the same timers, and fires each once."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    store, _ = hopped_store(path, clock, random.Random(3))
    original, calls = getattr(handover, step), []

    def killed(*given: object) -> object:
        calls.append(given)
        if step == "cut_chains" and len(calls) == 1:  # the next one is of what was linked again
            return original(*given)
        if after:
            original(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(handover, step, killed)
    with pytest.raises(KeyboardInterrupt):
        store.handover()
    monkeypatch.undo()
    drain(store)
    ids = sorted(timer.id for timer in store.pending())
    store.abandon()
    with open_small(path, clock, FEW_UNITS) as store:
        assert sorted(timer.id for timer in store.pending()) == ids
        assert store.health().ok
        clock.advance(1_000 * SECOND)
        assert len(drain(store)) == len(ids)
    if step != "cut_chains":  # the wheel may still say where chains ended that were cut
        assert verify(path).ok, str(verify(path))


@pytest.mark.usefixtures("any_wheel")
@pytest.mark.parametrize("seed", range(4))
def test_a_second_handover_waits_no_longer_than_the_first(tmp_path: Path, seed: int) -> None:
    """What the first one linked again lies a window ahead, and is no hop to wait for."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    store, _ = hopped_store(path, clock, random.Random(seed))
    store.handover()
    ids, start_ms = AsBroker(path).keys(), clock.now_ms
    with open_small(path, clock, FEW_UNITS) as store:
        store.handover()
    assert clock.now_ms <= start_ms + 3 * SMALL.precision_ms
    due = [id for id in ids if int(id[:12], 16) > clock.now_ms]
    assert set(due) <= set(AsBroker(path).keys()) <= set(ids)
    assert verify(path).ok, str(verify(path))
    with open_small(path, clock, FEW_UNITS) as store:
        clock.advance(1_000 * SECOND)
        assert len(drain(store)) >= len(due) and store.count() == 0


@pytest.mark.parametrize("seed", range(6))
def test_what_is_named_is_in_no_chain(tmp_path: Path, seed: int) -> None:
    """All other units and slots are those of the naive twin."""
    rnd, path = random.Random(seed), tmp_path / "s"
    store, _ = hopped_store(path, ManualClock(START_MS, force=True), rnd)
    engine = store.core.engine

    def scanned() -> tuple[dict[int, naive.Unit], list[naive.Slot]]:
        log = {int(file.name): file.read_bytes() for file in (path / "timerlog").iterdir()}
        scan = naive.scan_timer_log(log)
        assert scan.damage is None
        return scan.units, list(naive.used_slots(engine.wheel.slots.tobytes()).values())

    units, slots = scanned()
    named = set(rnd.sample(sorted(units), len(units) * rnd.randrange(1, 10) // 10))
    others, lead = naive.take_out(units, slots, named, SMALL.precision_ms)
    name_units(engine, np.array(list(named)), NamedDelete(52, 300, 7))
    after, slots = scanned()
    assert {offset: unit for offset, unit in after.items() if offset not in named} == others
    assert {slot.number: slot for slot in slots if slot.number >= 0} == lead
    assert after.keys() - others.keys() == named
    for unit in map(after.__getitem__, named):
        assert (unit.prev_pos, unit.message_offset, unit.message_bytes) == (-1, 52, 300)
        assert unit.is_delete and unit.time_ms // SMALL.precision_ms < engine.read_slot
    store.abandon()


def test_files_in_order_mislead_nobody(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock, FEW_UNITS) as store:
        store.put_many([b"far"] * 30, delay_ms=50_000)
        store.core.play_now()
        assert [len(each) for each in misleading_units(store.core.engine)] == [0, 0]
