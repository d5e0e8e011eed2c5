"""Chains of units: kernels that walk the timer log, slot by slot or from end to end."""

from __future__ import annotations

from typing import Final

from timerstore.jit.intrinsics import get_i32, get_i64, prefetch, put_i32, put_i64
from timerstore.jit.kernel import inlined, kernel_ahead, kernel_later
from timerstore.jit.record import Rows, Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import (
    UNIT_GOOD,
    Units,
    check_unit,
    fill_unit,
    next_unit_offset,
    put_prev,
    unit_change,
    unit_ms,
)
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.wheel.checksums import PAGE_BYTES
from timerstore.wheel.slots import NO_UNIT, PAGE_CHANGED, SlotArray, link_unit, slot_last

# What a walk returns beside a count, in `state[1]`.
WALK_DONE: Final = 0
WALK_FULL: Final = 1
WALK_UNMAPPED: Final = 2
WALK_DAMAGED: Final = 3


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


@inlined
def point_back(timerlog: SegmentTable, offset: int, prev: int) -> int:
    """Make a unit point to another one; 1, or 0 if it did before, or −1 if it is not mapped."""
    buf = segment_at(timerlog, offset)
    at = offset % timerlog.segment_bytes
    if len(buf) == 0:
        return -1
    if get_i64(buf, at + fmt.UNIT_PREV_AT) == prev:
        return 0
    put_prev(buf, at, offset, prev)
    return 1


@kernel_later
def point_all_back(timerlog: SegmentTable, links: Rows) -> int:
    """Make units point to others; `links`: int64[n, 2], both offsets. O(n).

    Return how many did not before, or −1 − offset of a unit that is not mapped.
    """
    changed = 0
    for i in range(len(links)):
        done = point_back(timerlog, links[i, 0], links[i, 1])
        if done < 0:
            return -1 - links[i, 0]
        changed += done
    return changed


@kernel_later
def cut_heads(timerlog: SegmentTable, wheel: SlotArray, end: int) -> int:
    """Walk every slot whose last unit lies at or past `end` back to before it.

    Return how many slots were changed, or −1 − offset of a unit that is damaged. All segments
    from `end` on must be mapped. O(slots + units past the end).
    """
    changed = 0
    count = len(wheel.slots) // fmt.SLOT_BYTES
    for index in range(count):
        at = index * fmt.SLOT_BYTES
        offset = get_i64(wheel.slots, at + fmt.SLOT_LAST_AT)
        if offset < end or get_i64(wheel.slots, at + fmt.SLOT_TIME_AT) <= 0:
            continue
        units = get_i32(wheel.slots, at + fmt.SLOT_COUNT_AT)
        while offset >= end:
            buf = segment_at(timerlog, offset)
            position = offset % timerlog.segment_bytes
            if len(buf) == 0 or check_unit(buf, position, offset) != UNIT_GOOD:
                return -1 - offset
            units -= unit_change(get_i32(buf, position + fmt.UNIT_MAGIC_AT))
            offset = get_i64(buf, position + fmt.UNIT_PREV_AT)
        put_i64(wheel.slots, at + fmt.SLOT_LAST_AT, offset)
        put_i32(wheel.slots, at + fmt.SLOT_COUNT_AT, units)
        if offset == NO_UNIT:
            put_i64(wheel.slots, at + fmt.SLOT_TIME_AT, NO_UNIT)
        wheel.dirty[at // PAGE_BYTES] = PAGE_CHANGED
        changed += 1
    return changed


@kernel_later
def revise_slots(wheel: SlotArray, units: Units, precision_ms: int) -> int:
    """Make slots agree with units that a broker wrote, given in the order of the log. O(units).

    Return how many slots were changed: those that another time held, or whose last unit is older.
    """
    changed = 0
    for i in range(len(units.offset)):
        slot = units.ms[i] // precision_ms
        if slot_last(wheel, slot) < units.offset[i]:
            link_unit(wheel, slot, units.offset[i], unit_change(units.magic[i]))
            changed += 1
    return changed
