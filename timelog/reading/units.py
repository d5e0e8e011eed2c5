"""Units of the timer log in its order, damaged ones too.

Code that looks at a store from outside reads them through this one kernel, with `walk_units` to map
segments on the way. Those who may not go on past damage, recovery and cleaning, have `scan_units`;
who asks for one slot, walks its chain (`timelog/timerlog.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.intrinsics import get_i32, get_u32
from timerstore.jit.kernel import inlined_always, kernel_later
from timerstore.jit.record import Bytes, Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import (
    NOT_SAID,
    UNIT_ROOM_BYTES,
    LoggedUnits,
    fill_logged,
    is_broker_unit,
    is_late_unit,
    next_unit_offset,
    unit_ms,
)
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.reading.reader import ReadSegments

CHUNK_UNITS: Final = 65_536
"""Units of one step: 6 MB of columns."""
_DONE: Final = 0
_UNMAPPED: Final = 1


class Wanted(NamedTuple):
    """Which units are read.

    Of timers, those that may be due within the bounds: ours say when, in a roll to the second; a
    broker's, and one that does not say, are always among them.
    """

    from_ms: int = NOT_SAID  # of slots from this one on, which begins then
    timers: bool = True
    deletes: bool = True
    low_ms: int = NOT_SAID
    high_ms: int = (1 << 63) - 1
    late: bool = False  # also those of any slot that were written after their time


EVERY_UNIT: Final = Wanted()


@kernel_later
def read_units(
    timerlog: SegmentTable,
    stop: int,
    wanted: Wanted,
    units: LoggedUnits,
    state: Words,
) -> int:
    """Read the units that begin in [state[0], stop), damaged ones too; return how many. O(units).

    `units`: written. `state`: int64[2], written: the offset to go on at; 1 if its segment has to be
    mapped first.
    """
    segment_bytes = timerlog.segment_bytes
    count = 0
    state[1] = _DONE
    while count < len(units.offset):
        offset = next_unit_offset(segment_bytes, state[0])
        state[0] = offset
        if offset >= stop:
            break
        buf = segment_at(timerlog, offset)
        if len(buf) == 0:
            state[1] = _UNMAPPED
            break
        # A division costs as much as all else that is done for a unit, so one serves a segment.
        at = offset % segment_bytes
        base = offset - at
        last = min(segment_bytes - UNIT_ROOM_BYTES, stop - 1 - base)
        while at <= last and count < len(units.offset):
            if _is_wanted(buf, at, wanted):
                fill_logged(units, count, buf, at, base + at)
                count += 1
            at += fmt.UNIT_BYTES
        state[0] = base + at
    return count


@inlined_always
def _is_wanted(buf: Bytes, at: int, wanted: Wanted) -> bool:
    magic, ms = get_i32(buf, at + fmt.UNIT_MAGIC_AT), unit_ms(buf, at)
    if ms < wanted.from_ms and not (wanted.late and is_late_unit(buf, at)):
        return False
    if magic & fmt.UNIT_DELETE != 0:
        return wanted.deletes
    if not wanted.timers:
        return False
    extra = get_u32(buf, at + fmt.UNIT_EXTRA_AT)
    if extra == fmt.EXTRA_READ_MESSAGE or is_broker_unit(buf, at):
        return True
    first_ms = ms + extra
    last_ms = first_ms
    if magic & fmt.UNIT_ROLL != 0:
        first_ms = extra * 1000
        last_ms = first_ms + 999
    return last_ms >= wanted.low_ms and first_ms <= wanted.high_ms


def walk_units(
    log: ReadSegments, start: int, stop: int, wanted: Wanted = EVERY_UNIT, chunk: int = CHUNK_UNITS
) -> Iterator[LoggedUnits]:
    """Yield the units that begin in [start, stop) in chunks. O(units).

    A segment that is missing is passed over, because the reader of the files names it. A chunk is
    written over by the next, and may be empty.
    """
    units = LoggedUnits.room(chunk)
    state = np.array([start, 0], np.int64)
    while True:
        log.map_from(int(state[0]))
        count = read_units(log.table, stop, wanted, units, state)
        yield units[:count]
        if state[1] == _DONE and count < chunk:
            return
        if state[1] == _UNMAPPED and not log.map_from(int(state[0])):
            starts = [number * log.segment_bytes for number in log.numbers]
            behind = [each for each in starts if each > state[0]]
            if not behind:
                return
            state[0] = min(behind)
