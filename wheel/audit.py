"""A kernel that walks the chains of slots to their ends, or to where one is broken."""

from __future__ import annotations

from typing import Final

from timerstore.timelog.format import (
    SLOT_BYTES,
    SLOT_FIRST_AT,
    SLOT_LAST_AT,
    SLOT_TIME_AT,
    UNIT_BYTES,
    UNIT_DELETE,
    UNIT_MAGIC_AT,
    UNIT_PREV_AT,
)
from timerstore.timelog.jit.intrinsics import get_i32, get_i64
from timerstore.timelog.jit.kernel import kernel_later
from timerstore.timelog.jit.record import Bytes, ReadBytes, Rows, Words
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.timelog.unit import UNIT_GOOD, check_unit, unit_ms
from timerstore.wheel.slots import NO_UNIT

# Columns of an audited slot.
CHAIN_VERDICT: Final = 0
CHAIN_OFFSET: Final = 1  # the unit at which the verdict fell
CHAIN_COUNT: Final = 2  # units − 2 × deletes
CHAIN_COLUMNS: Final = 3

# Verdicts on a chain.
CHAIN_WHOLE: Final = 0
CHAIN_CUT: Final = 1  # its first units were removed
CHAIN_OUTSIDE: Final = 2
CHAIN_BAD_UNIT: Final = 3
CHAIN_OTHER_SLOT: Final = 4
CHAIN_OTHER_FIRST: Final = 5
CHAIN_UNMAPPED: Final = 6
CHAIN_VERDICTS: Final = (
    "whole",
    "cut",
    "the chain leads out of the timer log",
    "the chain leads to something that is no unit",
    "the chain leads to a unit of another slot",
    "the chain does not end at the slot's first unit",
    "the chain leads into a segment that is missing",
)


@kernel_later
def audit_chains(
    timerlog: SegmentTable,
    slots: ReadBytes,
    indexes: Words,
    start: int,
    stop: int,
    read_slot: int,
    precision_ms: int,
    visited: Bytes,
    chains: Rows,
    scratch: Bytes,
) -> None:
    """Walk the chains of the slots at `indexes`. O(units). All segments are mapped.

    `slots`: uint8, the wheel; `indexes`: int64[n]; `chains`: int64[n, CHAIN_COLUMNS], written.
    `start`, `stop`: where the timer log begins and ends. `visited`: uint8, written: 1 for each unit
    that a chain has, by (offset − start) // 52. `read_slot`: units can have been removed of slots
    before it alone.
    """
    segment_bytes = timerlog.words[SEGMENT_BYTES]
    for i in range(len(indexes)):
        at = indexes[i] * SLOT_BYTES
        time = get_i64(slots, at + SLOT_TIME_AT)
        offset = get_i64(slots, at + SLOT_LAST_AT)
        verdict, last, count = CHAIN_WHOLE, offset, 0
        while offset != NO_UNIT:
            last = offset
            if offset < start and time < read_slot:
                verdict = CHAIN_CUT
                break
            if offset < start or offset + UNIT_BYTES > stop:
                verdict = CHAIN_OUTSIDE
                break
            buf = segment_at(timerlog, offset)
            if len(buf) == 0:
                verdict = CHAIN_UNMAPPED
                break
            position = offset % segment_bytes
            if (
                position % UNIT_BYTES != 0
                or check_unit(buf, position, offset, scratch) != UNIT_GOOD
            ):
                verdict = CHAIN_BAD_UNIT
                break
            if unit_ms(buf, position) // precision_ms != time:
                verdict = CHAIN_OTHER_SLOT
                break
            visited[(offset - start) // UNIT_BYTES] = 1
            count += -1 if get_i32(buf, position + UNIT_MAGIC_AT) & UNIT_DELETE != 0 else 1
            offset = get_i64(buf, position + UNIT_PREV_AT)
        if verdict == CHAIN_WHOLE and last != get_i64(slots, at + SLOT_FIRST_AT):
            verdict = CHAIN_OTHER_FIRST
        chains[i, CHAIN_VERDICT] = verdict
        chains[i, CHAIN_OFFSET] = last
        chains[i, CHAIN_COUNT] = count
