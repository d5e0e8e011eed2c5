"""A slot's units against the twins: one scans a timer log, one walks a chain."""

import dataclasses
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
from tests import naive
from tests.small_store import SMALL
from timerstore.errors import CorruptStoreError
from timerstore.services.looking.read_units import slot_units

START_MS = 1_700_000_000_000
TINY = dataclasses.replace(SMALL, timerlog_segment_bytes=520)


def segments(folder: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in folder.iterdir()}


def walked(store: timerstore.TimerStore, slot: int, chunk_rows: int, start: int = -1) -> list[int]:
    """Offsets, newest first, after all segments have been unmapped that may be."""
    log = store.core.engine.timerlog
    for number in log.numbers:
        log.retire(number)
    chunks = slot_units(store.core.engine, slot, start, chunk_rows)
    parts = [each.offset.tolist() for each in chunks]
    assert all(0 < len(part) <= chunk_rows for part in parts)
    return [offset for part in parts for offset in part]


@settings(max_examples=25)
@given(
    slots=st.lists(st.integers(1, 4), max_size=60),
    chunk_rows=st.integers(1, 70),
    skipped=st.integers(0, 60),
)
def test_it_is_what_the_twins_say(slots: list[int], chunk_rows: int, skipped: int) -> None:
    clock = timerstore.ManualClock(START_MS)
    with (
        tempfile.TemporaryDirectory() as folder,
        timerstore.open(Path(folder) / "store", config=TINY, clock=clock) as store,
    ):
        precision_ms = store.core.engine.precision_ms
        for slot in slots:
            store.put(b"x", topic="t", at_ms=START_MS + slot * precision_ms)
        clock.advance(timedelta(milliseconds=1))
        store.flush()
        path = Path(folder) / "store"
        units = naive.scan_timer_log(segments(path / "timerlog")).units
        assert len(units) == len(slots)
        wheel = naive.used_slots(store.core.engine.wheel.array.slots.tobytes())
        chains = {slot.number: slot.last_offset for slot in wheel.values()}
        for slot in range(START_MS // precision_ms - 1, START_MS // precision_ms + 6):
            expected = list(naive.walk_chain(units, chains.get(slot, -1)))
            assert walked(store, slot, chunk_rows) == expected
            if skipped < len(expected):
                rest = expected[skipped:]
                assert walked(store, slot, chunk_rows, expected[skipped]) == rest


def test_a_segment_that_is_missing(tmp_path: Path) -> None:
    """What lies before the log's start was removed; what lies behind it must be there."""
    clock = timerstore.ManualClock(START_MS)
    store = timerstore.open(tmp_path / "store", config=TINY, clock=clock)
    log, slot = store.core.engine.timerlog, START_MS // store.core.engine.precision_ms + 1
    for _ in range(40):
        store.put(b"x", topic="t", at_ms=slot * store.core.engine.precision_ms)
    clock.advance(timedelta(milliseconds=1))
    whole = walked(store, slot, 100)
    assert len(whole) == 40
    log.detach_before(2 * log.segment_bytes)
    log.remove_detached()
    kept = [offset for offset in whole if offset >= log.start]
    assert 0 < len(kept) < 40
    assert walked(store, slot, 100) == kept
    missing = log.numbers.pop(1)
    log._forget(missing)
    with pytest.raises(CorruptStoreError):
        walked(store, slot, 100)
    store.abandon()
