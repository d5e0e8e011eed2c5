"""The timer log: a unit for each pending timer, which points to the one before it in its slot.

    >>> from timerstore.timelog.files.disk import Disk
    >>> log = TimerLog(Disk(), folder, segment_bytes=160)  # two units and a blank
    >>> timer = NewUnit(NO_UNIT, fmt.UNIT_PLAIN, 0, 9_000, 9_000, 0, 300, 7, due_ms=9_250)
    >>> log.append(timer), log.append(timer._replace(prev=0, message=300))
    (0, 52)
    >>> log.append(timer._replace(prev=52, message=600))  # a blank closes the segment before it
    160
    >>> unit = log.unit(160)
    >>> int(unit.prev[0]), int(unit.message[0]), int(unit.ms[0] + unit.extra[0])
    (52, 600, 9250)
    >>> slot_9 = np.array([[9, 160]])  # its last unit stands at 160
    >>> [units.offset.tolist() for units in log.chains(slot_9, precision_ms=1_000, hop_ms=0)]
    [[160, 52, 0]]
    >>> log.close()

After RocketMQ's `TimerLog`. Services write by the same kernels, under the lock of the wheel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.intrinsics import get_i64, prefetch
from timerstore.jit.kernel import inlined, inlined_always, kernel_ahead, kernel_later
from timerstore.jit.record import Rows, Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import (
    NO_UNIT,
    UNIT_GOOD,
    UNIT_ROOM_BYTES,
    LoggedUnits,
    NewUnit,
    Units,
    check_unit,
    fill_unit,
    next_unit_offset,
    put_timerlog_blank,
    put_unit,
    unit_ms,
)
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.segmenttable import SegmentTable, can_close, can_write, segment_at
from timerstore.timelog.reading.units import EVERY_UNIT, read_units

CHUNK_ROWS: Final = 65_536
_ROWS_AT_FIRST: Final = 256
"""Most slots have few units: the first chunks are small."""
LANE_COUNT: Final = 16

# What a walk returns beside a count, in `state[1]`.
WALK_DONE: Final = 0
WALK_FULL: Final = 1
WALK_UNMAPPED: Final = 2
WALK_DAMAGED: Final = 3


@inlined
def find_unit_room(timerlog: SegmentTable) -> int:
    """Return the next unit's offset; −1 − the offset at which room must be made first. O(1)."""
    end = timerlog.end
    offset = next_unit_offset(timerlog.segment_bytes, end)
    if offset != end and not can_close(timerlog, end, fmt.TIMERLOG_BLANK_BYTES):
        return -1 - end
    buf = segment_at(timerlog, offset)
    if len(buf) == 0 or not can_write(timerlog, offset, offset + UNIT_ROOM_BYTES):
        return -1 - offset
    return offset


@inlined_always
def append_unit(timerlog: SegmentTable, unit: NewUnit) -> int:
    """Write a unit, for which there is room, at the log's end; return its offset. O(1)."""
    segment_bytes, end = timerlog.segment_bytes, timerlog.end
    offset = next_unit_offset(segment_bytes, end)
    if offset != end and end % segment_bytes != 0:
        last = segment_at(timerlog, end)
        if len(last) != 0:
            put_timerlog_blank(last, end % segment_bytes)
    buf = segment_at(timerlog, offset)
    put_unit(buf, offset % segment_bytes, offset, unit)
    timerlog.end = offset + fmt.UNIT_BYTES
    return offset


@kernel_later
def _append(timerlog: SegmentTable, unit: NewUnit) -> int:
    return append_unit(timerlog, unit) if find_unit_room(timerlog) >= 0 else -1


@kernel_ahead
def walk_chains(
    timerlog: SegmentTable,
    chains: Rows,
    precision_ms: int,
    hop_ms: int,
    units: Units,
    lanes: Rows,
    state: Words,
) -> int:
    """Walk some slots' chains, each newest first; return how many units it wrote. O(units).

    A unit says where the next one is, and the processor waits for that; so several chains are
    walked in turn. `chains`: int64[n, 2], a slot with the unit to begin at, NO_UNIT for none.
    `units`: written. `lanes`: int64[k, 2], for k chains at a time: the slot
    of each with the unit to go on at; NO_UNIT at first. `state`: int64[3], written: the next chain,
    a WALK_ constant, and the lane that it speaks of.
    """
    count, room = 0, len(units.offset)
    while True:
        is_done = True
        for lane in range(len(lanes)):
            offset = lanes[lane, 1]
            if offset == NO_UNIT:
                if state[0] == len(chains):
                    continue
                lanes[lane, 0] = chains[state[0], 0]
                offset = chains[state[0], 1]
                state[0] += 1
            else:
                state[2] = lane
                if count == room:
                    state[1] = WALK_FULL
                    return count
                buf = segment_at(timerlog, offset)
                if len(buf) == 0:
                    state[1] = WALK_UNMAPPED
                    return count
                at = offset % timerlog.segment_bytes
                sound = check_unit(buf, at, offset) == UNIT_GOOD
                if not sound or unit_ms(buf, at) // precision_ms != lanes[lane, 0]:
                    state[1] = WALK_DAMAGED
                    return count
                fill_unit(units, count, buf, at, offset, precision_ms, hop_ms)
                count += 1
                offset = get_i64(buf, at + fmt.UNIT_PREV_AT)
            lanes[lane, 1] = offset
            is_done = False
            if offset != NO_UNIT:
                prefetch(segment_at(timerlog, offset), offset % timerlog.segment_bytes)
        if is_done:
            state[1] = WALK_DONE
            return count


@kernel_ahead
def scan_units(
    timerlog: SegmentTable,
    stop: int,
    from_slot: int,
    precision_ms: int,
    hop_ms: int,
    units: Units,
    state: Words,
) -> int:
    """Read units in the order of the log, those of slots from `from_slot` on; return how many.

    `units`: written. `state`: int64[2]: the offset to go on at, and a
    WALK_ constant. O(units).
    """
    segment_bytes = timerlog.segment_bytes
    count, room = 0, len(units.offset)
    state[1] = WALK_DONE
    while True:
        offset = next_unit_offset(segment_bytes, state[0])
        if offset + fmt.UNIT_BYTES > stop:
            break
        if count == room:
            state[1] = WALK_FULL
            break
        buf = segment_at(timerlog, offset)
        if len(buf) == 0:
            state[1] = WALK_UNMAPPED
            break
        at = offset % segment_bytes
        if check_unit(buf, at, offset) != UNIT_GOOD:
            state[1] = WALK_DAMAGED
            break
        if unit_ms(buf, at) // precision_ms >= from_slot:
            fill_unit(units, count, buf, at, offset, precision_ms, hop_ms)
            count += 1
        state[0] = offset + fmt.UNIT_BYTES
    return count


class TimerLog(SegmentedFile):
    """The folder `timerlog`, with its units."""

    def prepare(self) -> None:
        """Map the segment at the log's end."""
        self.prepare_end(fmt.TIMERLOG_BLANK_BYTES)

    def make_unit_room(self) -> None:
        """Make room for a unit at the log's end. Raises StoreFullError."""
        left = self.segment_bytes - self.end % self.segment_bytes
        self.make_room(self.end + UNIT_ROOM_BYTES + (left if left < UNIT_ROOM_BYTES else 0))

    def append(self, unit: NewUnit) -> int:
        """Append a unit and return its offset, while no service does. Raises StoreFullError.

        A slot knows nothing of it yet, see `TimerWheel.put`.
        """
        with self.reading() as table:
            offset = _append(table, unit)
            while offset < 0:
                self.make_unit_room()
                offset = _append(table, unit)
        return offset

    def unit(self, offset: int) -> LoggedUnits:
        """Read one unit, which may be damaged: a table of one row. Raises CorruptStoreError."""
        self.existing(offset // self.segment_bytes)
        unit = LoggedUnits.room(1)
        with self.reading() as table:
            read_units(table, offset + 1, EVERY_UNIT, unit, np.array([offset, 0], np.int64))
        return unit

    def chains(
        self,
        heads: Words,
        precision_ms: int,
        hop_ms: int,
        chunk_rows: int = CHUNK_ROWS,
        lane_count: int = LANE_COUNT,
        pass_missing: Callable[[int], None] = lambda offset: None,
    ) -> Iterator[Units]:
        """Yield the units of chains in chunks, each chain newest first. O(units).

        `heads`: int64[n, 2], a slot with the unit to begin at. `lane_count`: so many chains are
        walked in turn. A chain ends if its next units are damaged, or were removed: then
        `pass_missing` is called with their offset, and may raise. A chunk is written over by the
        next. Raises CorruptStoreError if a segment is missing that was not removed.
        """
        units = Units.room(min(chunk_rows, _ROWS_AT_FIRST))
        lanes = np.full((lane_count, 2), NO_UNIT, np.int64)
        where = np.zeros(3, np.int64)
        while True:
            with self.reading() as table:
                count = walk_chains(table, heads, precision_ms, hop_ms, units, lanes, where)
            if count:
                yield units[:count]
            if where[1] == WALK_DONE:
                return
            offset = int(lanes[where[2], 1])
            if where[1] == WALK_UNMAPPED:
                try:
                    self.existing(offset // self.segment_bytes)
                    continue
                except CorruptStoreError:
                    if offset >= self.start:
                        raise
                    pass_missing(offset)
            if where[1] == WALK_FULL:
                if len(units) < chunk_rows:
                    units = Units.room(min(chunk_rows, 8 * len(units)))
            else:
                lanes[where[2], 1] = NO_UNIT
