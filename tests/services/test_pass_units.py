"""The units of a pass of cleaning: all are read, also while their segments go."""

from pathlib import Path

import pytest

from tests.services.test_cleaning import START_MS, live_on, open_small, put_far
from timerstore import ManualClock
from timerstore.services.looking.log_units import all_units
from timerstore.timelog.reading.reader import ReadSegments


def test_all_units_are_read_in_pieces(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        put_far(store, 50)
        end = store.core.engine.timerlog.end
        assert sum(len(part) for part in all_units(store.core.engine, 0, end)) == 50
        assert sum(len(part) for part in all_units(store.core.engine, 0, end, 1 << 40)) == 0


@pytest.mark.parametrize("when", ["listed", "not listed"])
def test_segments_may_go_while_units_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A flush of a caller's reads units; that of the flush thread removes their segments."""
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        retention = store.core.retention.run
        store.core.flusher.after = None
        live_on(store, clock, 30)
        log = store.core.engine.timerlog
        start, end, map_from = log.start, log.end, ReadSegments.map_from

        def removed_first(reader: ReadSegments, offset: int, count: int = 2) -> bool:
            monkeypatch.undo()
            assert retention()
            return map_from(reader, offset, count)

        if when == "listed":
            monkeypatch.setattr(ReadSegments, "map_from", removed_first)
        else:
            assert retention()
        read = sum(len(units) for units in all_units(store.core.engine, start, end))
        assert log.start > start
        kept = sum(len(units) for units in all_units(store.core.engine, log.start, end))
        assert read == kept < 600
