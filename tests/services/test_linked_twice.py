"""A broker that was killed links some timers again: the last unit of a message counts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests import naive
from tests.rigs.patient import Folder
from timerstore import Config, ManualClock, TimerStore, Tuning, verify
from timerstore.timelog.bytes import format as fmt
from timerstore.validation import validate

pytestmark = pytest.mark.whole

PRECISION_MS = 1_000
CONFIG = Config(tuning=Tuning(precision_ms=PRECISION_MS, roll_window_slots=172_800))
TWICE_COUNT = 12


def link_again(path: Path) -> int:
    """Link the last unit of some slots once more, as a broker does; return how many."""
    read_ms = int.from_bytes((path / "config" / "timercheck").read_bytes()[:8], "big")
    wheel, log = np.memmap(path / "timerwheel", fmt.SLOT, "r+"), Folder(path / "timerlog")
    units = naive.scan_timer_log({int(f.name): f.read_bytes() for f in log.files}).units
    end = max(units) + fmt.UNIT_BYTES
    ahead = (wheel["time"] * PRECISION_MS >= read_ms) & (wheel["count"] == 1)
    count = 0
    for at in np.flatnonzero(ahead).tolist():
        last = int(wheel[at]["last"])
        unit = naive.decode_unit(log.read(last, fmt.UNIT_BYTES))
        if unit.is_delete or count == TWICE_COUNT:
            continue
        log.write(end, naive.encode_unit(unit._replace(prev_pos=last)))
        wheel["last"][at], wheel["count"][at] = end, 2
        end += fmt.UNIT_BYTES
        count += 1
    wheel.flush()
    return count


def twice_id(path: Path) -> str:
    """Return the id of a pending timer that has two units."""
    messages = timerstore.read(path, "units", columns=["message_offset"])["message_offset"]
    found, counts = np.unique(messages.to_numpy(), return_counts=True)
    rows = timerstore.read(path, columns=["id", "message_offset"]).to_pylist()
    twice = set(found[counts > 1].tolist())
    return next(str(row["id"]) for row in rows if row["message_offset"] in twice)


def opened(path: Path, clock: ManualClock) -> TimerStore:
    return TimerStore(path, config=CONFIG, clock=clock)


def fired_until(store: TimerStore, topics: set[str], clock: ManualClock, at_ms: int) -> list[str]:
    clock.advance((at_ms - clock.now_ms) / 1_000)
    found: list[str] = []
    for topic in topics:
        while len(batch := store.pull(topic, timeout=0, max_count=4_000)):
            found += batch.ids.to_pylist()
            batch.ack()
    return found


@pytest.mark.parametrize("openings", [1, 3])
def test_each_fires_once(openings: int, golden: Callable[[str], Path]) -> None:
    """Also if it is opened again, cleanly or not, before they fire."""
    path = golden("pending")
    read_ms = int.from_bytes((path / "config" / "timercheck").read_bytes()[:8], "big")
    clock = ManualClock(read_ms, force=True)
    with opened(golden("pending"), clock) as store:
        before = {timer.id: timer.due_ms for timer in store.pending()}
        topics = {timer.topic for timer in store.pending()}
        count = store.count()
    assert link_again(path) == TWICE_COUNT
    for report in verify(path), validate(path):
        assert report.ok, str(report)
    for _ in range(openings - 1):
        with opened(path, clock) as store:
            assert store.count() == count
            assert sorted(timer.id for timer in store.pending()) == sorted(before)
        for report in verify(path), validate(path):
            assert report.ok, str(report)
        (path / "abort").write_text("1")
    with opened(path, clock) as store:
        assert store.count() == count
        cancelled = twice_id(path)
        assert store.cancel(cancelled)
        assert store.count() == count - 1
        del before[cancelled]
        found = fired_until(store, topics, clock, max(before.values()) + 5_000)
        assert set(before) <= set(found)
        assert len(found) == len(set(found))
        assert cancelled not in found
        assert store.count() == 0
    for report in verify(path), validate(path):
        assert report.ok, str(report)


def test_what_is_handed_over_then_is_sound(golden: Callable[[str], Path]) -> None:
    path = golden("pending")
    read_ms = int.from_bytes((path / "config" / "timercheck").read_bytes()[:8], "big")
    assert link_again(path) == TWICE_COUNT
    with opened(path, ManualClock(read_ms, force=True)) as store:
        store.handover()
    for report in verify(path), validate(path):
        assert report.ok, str(report)
