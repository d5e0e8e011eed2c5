"""What is pending, as a clean close leaves it: it counts only together with the rest of that."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.services.durable.ahead_file import AHEAD_FILE
from timerstore.services.opening import recovery
from timerstore.timelog.files.jsonfile import sealed

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


def change(path: Path, what: dict[str, Any], row: dict[str, Any]) -> None:
    """Change the file, under a checksum that holds."""
    file = path / "config" / AHEAD_FILE
    content = json.loads(file.read_text())
    del content["checksum"]
    content |= what
    if row:
        content["rows"][0] |= row
    file.write_text(json.dumps(sealed(content)))


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


@pytest.mark.parametrize(
    ("what", "row"),
    [
        ({"logEnd": 1}, {}),
        ({"rows": []}, {}),
        ({"rows": 5}, {}),
        ({}, {"counts": [1]}),
        ({}, {"topic": "other"}),
        ({}, {"buckets": "x"}),
        ({}, {"buckets": [-1, 0, 1, 2], "counts": [1, 1, 1, 1]}),
        ({}, {"buckets": [0, 0, 1, 2], "counts": [1, 1, 1, 1]}),
        ({}, {"words": []}),
        ({}, {"words": [1 << 70] * 12}),
        ({}, {"words": [-1] * 12}),
    ],
)
def test_what_does_not_hold_is_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Any, row: Any
) -> None:
    before, clock = fill(tmp_path / "s")
    change(tmp_path / "s", what, row)
    assert reopened(tmp_path / "s", clock, monkeypatch) == (before, True)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"rows":[],"checksum":1}'])
def test_a_damaged_file_is_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    before, clock = fill(tmp_path / "s")
    file = tmp_path / "s" / "config" / AHEAD_FILE
    file.unlink() if content is None else file.write_bytes(content)
    assert reopened(tmp_path / "s", clock, monkeypatch) == (before, True)
