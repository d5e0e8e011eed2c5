"""Cutting chains for a broker, which knows no floor, by handing over in the midst of a pass."""

from pathlib import Path

import pytest

from tests import naive
from tests.services.test_cleaning import (
    SECOND,
    START_MS,
    copy_some,
    drain,
    is_sound,
    live_on,
    open_small,
)
from timerstore import ManualClock
from timerstore.services.broker.cut_chains import cut_chains


@pytest.mark.usefixtures("any_wheel")
def test_a_broker_sees_each_timer_once(tmp_path: Path) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    store = open_small(path, clock)
    ids = [store.put(b"far %d" % (i % 3), delay=(500 + i % 3) * SECOND) for i in range(30)]
    cancelled = [ids[3], ids[7]]
    assert store.cancel_many(cancelled).all()
    store.core.cleaner.stopped = True
    live_on(store, clock, 5)
    assert 0 < copy_some(store, 7) < 28
    store.handover()
    assert is_sound(path)

    # What a broker would reach: the chains of all slots from R on.
    check = naive.decode_timercheck((path / "config" / "timercheck").read_bytes())
    files = {int(file.name): file.read_bytes() for file in (path / "timerlog").iterdir()}
    units = naive.scan_timer_log(files).units
    log = {int(file.name): file.read_bytes() for file in (path / "commitlog").iterdir()}
    messages = {each.offset: each for each in naive.scan_commit_log(log, min(log)).messages}
    reached = [
        messages[unit.message_offset].properties["UNIQ_KEY"]
        for slot in naive.used_slots((path / "timerwheel").read_bytes()).values()
        if slot.number >= check.read_ms // 1_000
        for unit in map(units.get, naive.walk_chain(units, slot.last_offset))
        if unit is not None and not unit.is_delete
    ]
    assert sorted(reached) == sorted(set(reached))
    assert set(ids) - set(cancelled) <= set(reached)

    with open_small(path, clock) as store:
        assert store.count() == 28 == len(list(store.pending()))
        clock.advance(700 * SECOND)
        assert len(drain(store)) == 28


def test_there_may_be_nothing_to_cut(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        assert cut_chains(store.core.engine) == 0
        store.put(b"far", delay=500 * SECOND)
        assert cut_chains(store.core.engine) == 0
