"""Units of the timer log in its order, damaged ones too, as columns of numbers.

Whoever looks at a store from outside reads them through this one kernel, with `walk_units` to map
segments on the way. Those who may not go on past damage, recovery and cleaning, have `scan_units`;
who asks for one slot, walks its chain (`wheel/chain.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import check_unit, is_broker_unit, next_unit_offset, unit_ms
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.jit.intrinsics import get_i32, get_i64, get_u32
from timerstore.timelog.jit.kernel import kernel_later
from timerstore.timelog.jit.record import Bytes, Rows, Words
from timerstore.timelog.reading.reader import ReadSegments

# Rows of a table of units; each is one column, contiguous.
UNIT_OFFSET: Final = 0
UNIT_PREV: Final = 1
UNIT_MAGIC: Final = 2
UNIT_WRITE_MS: Final = 3
UNIT_MS: Final = 4
UNIT_MESSAGE: Final = 5
UNIT_MESSAGE_SIZE: Final = 6
UNIT_HASH: Final = 7
UNIT_EXTRA: Final = 8
UNIT_BY_BROKER: Final = 9
UNIT_STATUS: Final = 10
UNIT_DUE_MS: Final = 11  # exact; NOT_SAID where the unit does not say it
UNIT_COLUMNS: Final = 12

NOT_SAID: Final = -(1 << 63)
CHUNK_UNITS: Final = 65_536
"""Units of one step: 6 MB of columns."""
_DONE: Final = 0
_UNMAPPED: Final = 1


class Wanted(NamedTuple):
    """Which units are read.

    Of timers, those that may be due within the bounds: ours say when, in a roll to the second; a
    broker's, and one that does not say, are always among them.
    """

    from_slot: int = NOT_SAID
    precision_ms: int = 1
    timers: bool = True
    deletes: bool = True
    low_ms: int = NOT_SAID
    high_ms: int = (1 << 63) - 1


EVERY_UNIT: Final = Wanted()


@kernel_later
def read_units(
    timerlog: SegmentTable, stop: int, wanted: Wanted, units: Rows, scratch: Bytes, state: Words
) -> int:
    """Read the units that begin in [state[0], stop), damaged ones too; return how many. O(units).

    `units`: int64[UNIT_COLUMNS, n], written. `scratch`: uint8[16]. `state`: int64[2], written: the
    offset to go on at; 1 where its segment has to be mapped first.
    """
    segment_bytes = timerlog.segment_bytes
    count = 0
    state[1] = _DONE
    while count < units.shape[1]:
        offset = next_unit_offset(segment_bytes, state[0])
        state[0] = offset
        if offset >= stop:
            break
        buf = segment_at(timerlog, offset)
        if len(buf) == 0:
            state[1] = _UNMAPPED
            break
        at = offset % segment_bytes
        state[0] = offset + fmt.UNIT_BYTES
        magic, ms = get_i32(buf, at + fmt.UNIT_MAGIC_AT), unit_ms(buf, at)
        is_delete = magic & fmt.UNIT_DELETE != 0
        if (is_delete and not wanted.deletes) or (not is_delete and not wanted.timers):
            continue
        if ms // wanted.precision_ms < wanted.from_slot:
            continue
        extra, by_broker, due_ms = (
            get_u32(buf, at + fmt.UNIT_EXTRA_AT),
            is_broker_unit(buf, at),
            NOT_SAID,
        )
        if extra != fmt.EXTRA_READ_MESSAGE and not by_broker:
            first_ms = ms + extra
            last_ms = first_ms
            if magic & fmt.UNIT_ROLL != 0:
                first_ms = extra * 1000
                last_ms = first_ms + 999
            else:
                due_ms = first_ms
            if not is_delete and (last_ms < wanted.low_ms or first_ms > wanted.high_ms):
                continue
        units[UNIT_OFFSET, count] = offset
        units[UNIT_PREV, count] = get_i64(buf, at + fmt.UNIT_PREV_AT)
        units[UNIT_MAGIC, count] = magic
        units[UNIT_WRITE_MS, count] = get_i64(buf, at + fmt.UNIT_WRITE_AT)
        units[UNIT_MS, count] = ms
        units[UNIT_MESSAGE, count] = get_i64(buf, at + fmt.UNIT_MESSAGE_AT)
        units[UNIT_MESSAGE_SIZE, count] = get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT)
        units[UNIT_HASH, count] = get_i32(buf, at + fmt.UNIT_HASH_AT)
        units[UNIT_EXTRA, count] = extra
        units[UNIT_BY_BROKER, count] = 1 if by_broker else 0
        units[UNIT_STATUS, count] = check_unit(buf, at, offset, scratch)
        units[UNIT_DUE_MS, count] = due_ms
        count += 1
    return count


def walk_units(
    log: ReadSegments, start: int, stop: int, wanted: Wanted = EVERY_UNIT, chunk: int = CHUNK_UNITS
) -> Iterator[Words]:
    """Yield the units that begin in [start, stop) in chunks: int64[UNIT_COLUMNS, n]. O(units).

    A segment that is missing is passed over, for the reader of the files names it. A chunk is
    written over by the next, and may be empty.
    """
    units = np.zeros((UNIT_COLUMNS, chunk), np.int64)
    state, scratch = np.array([start, 0], np.int64), np.zeros(64, np.uint8)
    while True:
        log.map_from(int(state[0]))
        count = read_units(log.table, stop, wanted, units, scratch, state)
        yield units[:, :count]
        if state[1] == _DONE and count < chunk:
            return
        if state[1] == _UNMAPPED and not log.map_from(int(state[0])):
            starts = [number * log.segment_bytes for number in log.numbers]
            behind = [each for each in starts if each > state[0]]
            if not behind:
                return
            state[0] = min(behind)
