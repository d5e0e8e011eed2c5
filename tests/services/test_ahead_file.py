"""What is pending, as a clean close leaves it: it counts only together with the rest of that."""

import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.services.durable.ahead_file import AHEAD_FILE
from timerstore.services.opening import recovery

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


def sealed(data: bytes, at: int, value: int) -> bytes:
    """Return it with another number somewhere, under a checksum that holds."""
    rest = data[4:at] + value.to_bytes(4, "little") + data[at + 4 :]
    return zlib.crc32(rest).to_bytes(4, "little") + rest


DAMAGE = {
    "it is gone": lambda data: None,
    "it is empty": lambda data: b"",
    "it is cut": lambda data: data[:-8],
    "a bucket is gone": lambda data: data[:-16],
    "it is another close's": lambda data: data[:8] + bytes(8) + data[16:],
    "a bit is flipped": lambda data: data[:-50] + bytes([data[-50] ^ 4]) + data[-49:],
    "it says more rows than it has": lambda data: sealed(data, 4, 99),
    "it has no rows for its buckets": lambda data: sealed(data, 4, 0),
    "its topic is a path": lambda data: sealed(data, 24, int.from_bytes(b"../a", "little")),
    "an older version's": lambda data: b'{"rows":[],"checksum":1}',
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_does_not_hold_is_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    before, clock = fill(tmp_path / "s")
    file = tmp_path / "s" / "config" / AHEAD_FILE
    content = DAMAGE[damage](file.read_bytes())
    file.unlink() if content is None else file.write_bytes(content)
    assert reopened(tmp_path / "s", clock, monkeypatch) == (before, True)
