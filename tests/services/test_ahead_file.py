"""What is pending, as a clean close leaves it: it counts only together with the rest of that."""

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.services.durable import flush
from timerstore.services.opening import recovery
from timerstore.timelog.files.checkpoint import AHEAD_FILE, Stamp, read_derived, write_derived
from timerstore.timelog.files.disk import Disk

SMALL = Config(durability="process", tuning=Tuning(wheel_slot_count=1_024, roll_window_slots=60))
DELAYS_MS = [0, 500, 5_000, 3_600_000, 90 * 86_400_000, 60 * 365 * 86_400_000]


def fill(path: Path) -> tuple[Any, ManualClock]:
    """A store that was closed; what its topics were then."""
    clock = ManualClock()
    with TimerStore(path, config=SMALL, clock=clock) as store:
        store.put_many([b"abc"] * len(DELAYS_MS), topic="a", delay_ms=DELAYS_MS)
        store.put(b"level", topic="b", delay_level=9)
        clock.advance(timedelta(seconds=1))
        return store.stats().topics, clock


def reopened(path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, bool]:
    """The topics as opening finds them, and whether it counted every timer for that."""
    seen: list[Any] = []
    count = recovery.count_units
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "count_units", lambda *a, **k: seen.append(1) or count(*a, **k))
        store = TimerStore(path, config=SMALL, clock=clock)
        found = store.stats().topics
        store.abandon()
    return found, bool(seen)


def test_a_clean_close_says_what_is_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, clock = fill(tmp_path / "s")
    assert reopened(tmp_path / "s", clock, monkeypatch) == (before, False)
    assert reopened(tmp_path / "s", clock, monkeypatch) == (before, True)  # it was abandoned


def test_a_clock_that_went_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, clock = fill(tmp_path / "s")
    earlier = ManualClock(clock.now_ms - 3_600_000)
    found, again = reopened(tmp_path / "s", earlier, monkeypatch)
    assert again and found[0].pending_count == before[0].pending_count
    assert found[0].upcoming.overdue_count == 0


def changed(data: bytes, number: int, change: Any) -> bytes:
    """Return it with another array, under a checksum that holds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "f"
        file.write_bytes(data)
        stamp = Stamp(*np.frombuffer(data, "<i8", 3, 16).tolist())
        arrays = read_derived(Disk(), file, stamp, flush._ROW, flush._BUCKET)
        assert arrays is not None
        arrays[number] = arrays[number].copy()
        write_derived(
            Disk(), file, stamp, *(change(a) if i == number else a for i, a in enumerate(arrays))
        )
        return file.read_bytes()


def with_first(name: str, value: Any) -> Any:
    """Return what sets a field of an array's first element."""

    def change(array: Any) -> Any:
        array[name][0] = value
        return array

    return change


PATH = np.frombuffer(b"../a".ljust(flush._ROW["name"].itemsize, b"\0"), np.uint8)
DAMAGE = {
    "it is gone": lambda data: None,
    "a bucket is gone": lambda data: data[:-16],
    "it has no rows for its buckets": lambda data: changed(data, 0, lambda rows: rows[:0]),
    "its topic is a path": lambda data: changed(data, 0, with_first("name", PATH)),
    "its queue cannot be": lambda data: changed(data, 0, with_first("queue_id", -1)),
    "its bucket cannot be": lambda data: changed(data, 1, with_first("place", -1)),
    "its count cannot be": lambda data: changed(data, 1, with_first("count", 1 << 40)),
    "an older version's": lambda data: b'{"rows":[],"checksum":1}',
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_does_not_hold_is_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    before, clock = fill(tmp_path / "s")
    file = tmp_path / "s" / AHEAD_FILE
    content = DAMAGE[damage](file.read_bytes())
    file.unlink() if content is None else file.write_bytes(content)
    assert reopened(tmp_path / "s", clock, monkeypatch) == (before, True)
