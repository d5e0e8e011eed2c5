"""The timer log as a file, appended to, read, walked. Its kernels: `wheel/test_chain.py`."""

import doctest
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from timerstore.timelog import timerlog
from timerstore.timelog.bytes.unit import NO_UNIT, NewUnit
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.timerlog import TimerLog


def test_the_example(tmp_path: Path) -> None:
    done = doctest.testmod(timerlog, extraglobs={"folder": tmp_path / "timerlog"})
    assert done.attempted > 5 and not done.failed


@given(slots=st.lists(st.integers(100, 103), max_size=12), segment_bytes=st.integers(68, 300))
def test_what_is_appended_is_read(slots: list[int], segment_bytes: int) -> None:
    """Also by who opens the files later; blanks are as the twin writes them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timerlog"
        log = TimerLog(Disk(), path, segment_bytes)
        by_slot: dict[int, list[int]] = {}
        blanks: dict[int, bytes] = {}
        end = 0
        for i, slot in enumerate(slots):
            ms, chain = slot * 1_000, by_slot.setdefault(slot, [])
            prev = chain[-1] if chain else NO_UNIT
            offset = log.append(NewUnit(prev, 1, ms - 5, ms, ms, 300 * i, 300, 7, ms + i))
            expected = naive.next_unit_offset(segment_bytes, end)
            if expected != end:
                blanks[end] = naive.blank_unit(expected - end)[:16]
            assert offset == expected
            chain.append(offset)
            end = offset + naive.UNIT_BYTES
            assert log.end == end
            unit = log.unit(offset)
            assert (unit.offset[0], unit.prev[0], unit.status[0]) == (offset, prev, 0)
            assert (unit.message[0], unit.due_ms[0]) == (300 * i, ms + i)
        log.flush(0, end)
        log.close()
        again = TimerLog(Disk(), path, segment_bytes)
        heads = np.array([[slot, chain[-1]] for slot, chain in by_slot.items()], np.int64)
        heads = heads.reshape(-1, 2)
        for lane_count in (1, 3):
            walked: dict[int, list[int]] = {}
            for units in again.chains(heads, 1_000, 0, chunk_rows=2, lane_count=lane_count):
                for offset, ms in zip(units.offset.tolist(), units.ms.tolist(), strict=True):
                    walked.setdefault(ms // 1_000, []).append(offset)
            assert walked == {slot: chain[::-1] for slot, chain in by_slot.items()}
        for at, blank in blanks.items():
            assert again.read(at, len(blank)) == blank
        again.close()
