"""What waits in the oldest part of the log: all units are read, also while their segments go."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.services.test_cleaning import START_MS, live_on, open_small
from timerstore import ManualClock
from timerstore.services.cleaning import pass_units
from timerstore.services.cleaning.pass_units import Linked, Round, UnitRanges
from timerstore.services.looking.read_units import all_units
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.reading.reader import ReadSegments

SEGMENT_BYTES = 52 * 3 + 64


@pytest.mark.parametrize("when", ["listed", "not listed"])
def test_segments_may_go_while_units_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A flush of a caller's reads units; that of the flush thread removes their segments."""
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        retention = store.core.upkeep.retention.run
        monkeypatch.setattr(store.core.upkeep.retention, "run", lambda: 0)
        live_on(store, clock, 30)
        retention()
        store.flush()  # the checkpoint says now that the timer log may begin later
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


# --- rounds


def written_log(folder: Path, units: list[tuple[int, int]]) -> Any:
    """An engine, as far as a round knows it, whose timer log has units of (message, slot)."""
    offset, parts = 0, bytearray()
    for message, slot in units:
        at = naive.next_unit_offset(SEGMENT_BYTES, offset)
        if at != offset:
            parts += naive.blank_unit(at - offset)
        unit = naive.Unit(52, -1, 1, slot * 1_000, 7, message, 300, 5, 0, 3)
        parts += naive.encode_unit(naive.seal_unit(unit, at))
        offset = at + 52
    for begin in range(0, len(parts), SEGMENT_BYTES):
        segment = bytes(parts[begin : begin + SEGMENT_BYTES]).ljust(SEGMENT_BYTES, b"\0")
        (folder / f"{begin:020}").write_bytes(segment)
    numbers = list(range(-(-len(parts) // SEGMENT_BYTES)))
    log = SimpleNamespace(
        folder=folder,
        name="timerlog",
        segment_bytes=SEGMENT_BYTES,
        start=0,
        end=offset,
        numbers=numbers,
    )
    engine = SimpleNamespace(timerlog=log, disk=Disk(), read_slot=0)
    engine.world = engine
    return engine


@pytest.fixture(scope="module", autouse=True)
def linked() -> Iterator[None]:
    """Such an engine says itself what is linked."""
    with patch.object(
        *(pass_units, "linked_by_now"),
        lambda engine: Linked(engine.timerlog.end, engine.read_slot, 0, 0),
    ):
        yield


@given(
    units=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=25),
    read_slot=st.integers(0, 5),
    start=st.integers(0, 6),
    stop=st.integers(7, 14),
    rows_max=st.sampled_from([2, 3, 6, 100]),
    at_once=st.integers(1, 9),
)
def test_rounds_tell_what_waits(
    units: list[tuple[int, int]],
    read_slot: int,
    start: int,
    stop: int,
    rows_max: int,
    at_once: int,
) -> None:
    """Wherever a message's units stand; where there are too many, those of the first messages."""
    slots = dict(units)  # the last unit of a message counts
    units = [(message, slots[message]) for message, _ in units]  # all lead to one slot
    with tempfile.TemporaryDirectory() as folder, patch.object(pass_units, "ROWS_MAX", rows_max):
        engine = written_log(Path(folder), units)
        engine.precision_ms, engine.hop_ms, engine.read_slot = 1_000, 0, read_slot
        at, turns, ranges = start, 0, UnitRanges()
        found: list[tuple[int, int]] = []
        while at < stop:
            part = Round(engine, at, stop, at_once, ranges)
            while not part.is_read:
                part.read_on()
            assert at < part.stop <= stop
            waiting, last_slot = part.waiting(at, part.stop, read_slot + 1)
            assert len(waiting) <= rows_max
            left = [slots[m] for m in slots if at <= m < part.stop and slots[m] == read_slot]
            assert last_slot == max(left, default=-1)
            found += zip(waiting.message.tolist(), (waiting.ms // 1_000).tolist(), strict=True)
            at, turns = part.stop, turns + 1
        assert turns <= 1 + len(slots)
    expected = [each for each in sorted(slots.items()) if start <= each[0] < stop]
    assert found == [each for each in expected if each[1] > read_slot]


def test_rounds_together_read_units_in_the_order_of_the_log_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hopped, behind them, is read by each."""
    monkeypatch.setattr(pass_units, "ROWS_MAX", 20)
    hops = [(message, 9) for message in range(0, 1_000, 100)]
    engine = written_log(tmp_path, [(message, 5) for message in range(1_000)] + hops)
    engine.precision_ms, engine.hop_ms = 1_000, 0
    read_units, read, at, ranges, turns = pass_units.read_units, 0, 0, UnitRanges(), 0

    def counted(*given: Any) -> Any:
        nonlocal read
        found = read_units(*given)
        read += len(found)
        return found

    monkeypatch.setattr(pass_units, "read_units", counted)
    while at < 1_000:
        part = Round(engine, at, 1_000, 5, ranges)
        while not part.is_read:
            part.read_on()
        at, turns = part.stop, turns + 1
    assert turns >= 50
    assert read < 4_000 + turns * 2 * len(hops)  # each of them read all: 50,000
