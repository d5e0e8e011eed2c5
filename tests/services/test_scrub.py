"""The scrub finds what nothing else has met yet."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.services.test_damage import CONFIG, START_MS, TIMER_QUEUE, filled, flip
from tests.small_store import small
from timerstore import ManualClock, TimerStore
from timerstore.services.engine.rebuild import MARK_FILE
from timerstore.testing.disk import QuietDisk


def scrub(store: TimerStore) -> list[tuple[str, int]]:
    """Let one pass come to its end; return the places that are known now."""
    while store.core.upkeep.scrub.step():
        pass
    return [(each["file"], each["offset"]) for each in store.stats().damage]


def test_a_sound_store_has_nothing_to_find(tmp_path: Path) -> None:
    store, clock, _ = filled(tmp_path / "s")
    clock.advance(timedelta(seconds=5))
    store.flush()
    assert scrub(store) == []
    assert store.stats().scrub == {"pass_count": 1, "file": "", "offset": 0}
    assert store.core.upkeep.scrub.step() > 0
    assert store.stats().scrub["file"] == "timerlog"
    store.close()


def test_entries_are_made_anew_by_the_next_opening(tmp_path: Path) -> None:
    """It writes to none of them itself."""
    path = tmp_path / "s"
    store, clock, _ = filled(path)
    store.flush()
    flip(path, TIMER_QUEUE, 3 * 20 + 6)
    damaged = (path / TIMER_QUEUE / f"{0:020d}").read_bytes()
    for _ in range(2):
        assert scrub(store) == [(TIMER_QUEUE, 60)]
    assert (path / TIMER_QUEUE / f"{0:020d}").read_bytes() == damaged
    assert store.health().state == "damaged"
    pending = [timer.id for timer in store.pending()]
    store.close()
    with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as again:
        assert again.core.findings.rebuilt == ["consume queues"]
        assert [timer.id for timer in again.pending()] == pending
        assert scrub(again) == [] and again.health().ok


def test_units_and_messages_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store, _, ids = filled(path)
    offset = int(ids[50][12:24], 16)
    flip(path, "commitlog", offset + 100)
    flip(path, "timerlog", 20)
    assert scrub(store) == [("timerlog", 0), ("commitlog", offset)]
    assert (path / MARK_FILE).exists()
    count = store.count()
    store.close()
    clock = ManualClock(START_MS + 1_000)
    with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as again:
        assert again.core.findings.rebuilt == ["timer index"]
        assert again.count() == count - 1  # without the one that is lost


@pytest.mark.linux
def test_what_is_removed_gives_its_room_back(tmp_path: Path) -> None:
    """Between two steps it has no file mapped, and it goes on behind what was removed."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    config = small(1 << 16, 2_000, 5_248, retention_ms=1, roll_window_slots=60)
    with TimerStore(path, config=config, clock=clock, disk=QuietDisk()) as store:
        core, at = store.core, set[str]()
        log, units, scrub = core.engine.commitlog, core.engine.timerlog, core.upkeep.scrub

        def live() -> None:
            store.put_many([b"x" * 1_000] * 60, topic="t", delay_ms=50)
            clock.advance(timedelta(seconds=1))
            store.pull("t", max_count=1_000, timeout=0).ack()
            store.flush()

        for _ in range(10):
            store.put_many([b"x" * 1_000] * 60, topic="t", delay_ms=1_000)
        clock.advance(timedelta(seconds=3))
        store.flush()
        first = log.start, units.start
        while scrub.step():
            at.add(scrub.file)
            mapped = Path("/proc/self/maps").read_text().splitlines()
            assert not [row for row in mapped if str(path) in row and "(deleted)" in row]
            live()
        assert at == {"timerlog", "commitlog"} and scrub.pass_count == 1
        assert log.start > first[0] and units.start > first[1]
        assert scrub.message_count > 0 and store.stats().damage == []
