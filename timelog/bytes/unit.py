"""Units of the timer log: kernels that write, check or read one 52-byte unit; tables of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from timerstore.jit.crc import START, crc_register, register_of_i64
from timerstore.jit.intrinsics import get_i32, get_i64, get_u32, put_i32, put_i64
from timerstore.jit.kernel import inlined, inlined_always
from timerstore.jit.record import Bytes, Table, Words, record
from timerstore.timelog.bytes import format as fmt

UNIT_GOOD: Final = 0
UNIT_BROKEN: Final = 1
UNIT_BAD_CRC: Final = 2
WRITE_MS_BITS: Final = 48
UNIT_ROOM_BYTES: Final = fmt.UNIT_BYTES + fmt.TIMERLOG_BLANK_BYTES
"""The room that a unit needs: behind it a segment can still be closed."""
NO_UNIT: Final = -1
NOT_SAID: Final = -(1 << 63)
WRONG_UNIT_REASON: Final = "this is not the unit that was written there"


class NewUnit(NamedTuple):
    """What a unit is to say."""

    prev: int
    magic: int
    write_ms: int
    ms: int  # its time
    slot_ms: int  # its slot's start
    message: int
    size: int
    topic_hash: int
    due_ms: int  # exact


@record
class Units(Table):
    """Units as the services read them; int64[n] each."""

    offset: Words
    ms: Words  # its time, which says its slot
    magic: Words
    message: Words
    size: Words  # of its message
    leads_to: Words  # the slot in which its timer is due; NOT_SAID if the unit does not say it
    due_ms: Words  # exact; NOT_SAID if the unit does not say it


@record
class LoggedUnits(Units):
    """Units as they are read from outside, damaged ones too."""

    prev: Words
    write_ms: Words
    topic_hash: Words
    extra: Words
    by_broker: Words  # 1: a broker wrote it
    status: Words  # a UNIT_ constant; of audited units a verdict, see `audit.py`


@inlined_always
def unit_crc(buf: Bytes, at: int, offset: int) -> int:
    """Return the CRC of a unit that stands at `offset` of the timer log, which it covers."""
    register = crc_register(buf, at, fmt.UNIT_CRC_AT, register_of_i64(offset, START))
    register = crc_register(buf, at + fmt.UNIT_EXTRA_AT, 4, register)
    return register ^ START


@inlined
def next_unit_offset(segment_bytes: int, end: int) -> int:
    """Return where the next unit goes: at `end`, or at the next segment's start."""
    left = segment_bytes - end % segment_bytes
    if UNIT_ROOM_BYTES > left:
        return end + left
    return end


@inlined
def put_timerlog_blank(segment: Bytes, position: int) -> None:
    """Close a segment of the timer log at `position`."""
    left = len(segment) - position
    if left >= fmt.TIMERLOG_BLANK_BYTES:
        put_i32(segment, position, left)
        put_i64(segment, position + 4, 0)
        put_i32(segment, position + 12, fmt.BLANK_MAGIC)


@inlined_always
def put_unit(buf: Bytes, at: int, offset: int, unit: NewUnit) -> None:
    """Write a unit at `at`, which is `offset` of the timer log. O(1)."""
    earliest_ms = unit.slot_ms - fmt.WRITE_BEFORE_SLOT_MS_MAX
    write_ms = min(max(unit.write_ms, earliest_ms), unit.slot_ms)
    extra = unit.due_ms // 1000
    if unit.magic & fmt.UNIT_ROLL == 0:
        extra = unit.due_ms - unit.ms
    if extra < 0 or extra > fmt.EXTRA_READ_MESSAGE:
        extra = fmt.EXTRA_READ_MESSAGE
    put_i32(buf, at + fmt.UNIT_SIZE_AT, fmt.UNIT_BYTES)
    put_i64(buf, at + fmt.UNIT_PREV_AT, unit.prev)
    put_i32(buf, at + fmt.UNIT_MAGIC_AT, unit.magic)
    put_i64(buf, at + fmt.UNIT_WRITE_AT, write_ms)
    put_i32(buf, at + fmt.UNIT_DELTA_AT, unit.ms - write_ms)
    put_i64(buf, at + fmt.UNIT_MESSAGE_AT, unit.message)
    put_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT, unit.size)
    put_i32(buf, at + fmt.UNIT_HASH_AT, unit.topic_hash)
    put_i32(buf, at + fmt.UNIT_EXTRA_AT, extra)
    put_i32(buf, at + fmt.UNIT_CRC_AT, unit_crc(buf, at, offset))


@inlined
def check_unit(buf: Bytes, at: int, offset: int) -> int:
    """Check a unit's structure and, if it is ours, its CRC: a UNIT_ constant."""
    if len(buf) - at < fmt.UNIT_BYTES or get_i32(buf, at + fmt.UNIT_SIZE_AT) != fmt.UNIT_BYTES:
        return UNIT_BROKEN
    if get_i32(buf, at + fmt.UNIT_MAGIC_AT) | fmt.UNIT_MAGIC_BITS != fmt.UNIT_MAGIC_BITS:
        return UNIT_BROKEN
    prev_pos = get_i64(buf, at + fmt.UNIT_PREV_AT)
    if prev_pos >= offset or prev_pos < -1:
        return UNIT_BROKEN
    if (
        get_i64(buf, at + fmt.UNIT_WRITE_AT) >> WRITE_MS_BITS != 0
    ):  # negative, or past the year 9999
        return UNIT_BROKEN
    if is_broker_unit(buf, at):
        return UNIT_GOOD if unit_ms(buf, at) >= 0 else UNIT_BROKEN
    if get_i32(buf, at + fmt.UNIT_DELTA_AT) < 0:
        return UNIT_BROKEN
    if unit_crc(buf, at, offset) != get_u32(buf, at + fmt.UNIT_CRC_AT):
        return UNIT_BAD_CRC
    return UNIT_GOOD


@inlined_always
def fill_unit(
    units: Units, i: int, buf: Bytes, at: int, offset: int, precision_ms: int, hop_ms: int
) -> None:
    """Write what the services need of the unit at `at`, which is `offset` of the timer log."""
    _fill(units, i, buf, at, offset)
    units.leads_to[i] = leads_to(buf, at, precision_ms, hop_ms)


@inlined_always
def fill_logged(units: LoggedUnits, i: int, buf: Bytes, at: int, offset: int) -> None:
    """Write what the unit at `at` says, except where it leads, and whether it is sound."""
    _fill(units, i, buf, at, offset)
    units.leads_to[i] = NOT_SAID
    units.prev[i] = get_i64(buf, at + fmt.UNIT_PREV_AT)
    units.write_ms[i] = get_i64(buf, at + fmt.UNIT_WRITE_AT)
    units.topic_hash[i] = get_i32(buf, at + fmt.UNIT_HASH_AT)
    units.extra[i] = get_u32(buf, at + fmt.UNIT_EXTRA_AT)
    units.by_broker[i] = 1 if is_broker_unit(buf, at) else 0
    units.status[i] = check_unit(buf, at, offset)


@inlined_always
def _fill(units: Units, i: int, buf: Bytes, at: int, offset: int) -> None:
    units.offset[i] = offset
    units.ms[i] = unit_ms(buf, at)
    units.magic[i] = get_i32(buf, at + fmt.UNIT_MAGIC_AT)
    units.message[i] = get_i64(buf, at + fmt.UNIT_MESSAGE_AT)
    units.size[i] = get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT)
    units.due_ms[i] = said_due_ms(buf, at)


@inlined
def is_broker_unit(buf: Bytes, at: int) -> bool:
    """Tell whether a broker wrote the unit: its reserved eight bytes are 0."""
    return get_u32(buf, at + fmt.UNIT_CRC_AT) == 0 and get_u32(buf, at + fmt.UNIT_EXTRA_AT) == 0


@inlined
def said_due_ms(buf: Bytes, at: int) -> int:
    """Return the exact due time that a unit says: not a broker's, and not a roll."""
    extra = get_u32(buf, at + fmt.UNIT_EXTRA_AT)
    is_roll = get_i32(buf, at + fmt.UNIT_MAGIC_AT) & fmt.UNIT_ROLL != 0
    if extra == fmt.EXTRA_READ_MESSAGE or is_roll or is_broker_unit(buf, at):
        return NOT_SAID
    return unit_ms(buf, at) + extra


@inlined_always
def leads_to(buf: Bytes, at: int, precision_ms: int, hop_ms: int) -> int:
    """Return the slot in which a unit's timer is due: of a roll the one to which its hops lead.

    It is the same for all units of one message. NOT_SAID for a roll that does not tell: a broker's,
    one from the year 2106 on, or if hops are so short that seconds do not count them.
    """
    ms = unit_ms(buf, at)
    if get_i32(buf, at + fmt.UNIT_MAGIC_AT) & fmt.UNIT_ROLL == 0:
        return ms // precision_ms
    extra = get_u32(buf, at + fmt.UNIT_EXTRA_AT)
    # A timer is due up to one precision later than its TIMER_OUT_MS, to which the hops lead.
    if hop_ms < precision_ms + 1000 or extra == fmt.EXTRA_READ_MESSAGE or is_broker_unit(buf, at):
        return NOT_SAID
    hops = (extra * 1000 + 999 - ms) // hop_ms
    if hops < 1:
        return NOT_SAID
    return (ms + hops * hop_ms) // precision_ms


@inlined
def is_late_unit(buf: Bytes, at: int) -> bool:
    """Tell whether the unit was written after its time, by a broker that had just started."""
    return get_i32(buf, at + fmt.UNIT_DELTA_AT) < 0


@inlined
def unit_change(magic: int) -> int:
    """Return by how much a unit changes the count of its slot: a delete takes one off."""
    return -1 if magic & fmt.UNIT_DELETE != 0 else 1


@inlined
def unit_ms(buf: Bytes, at: int) -> int:
    """Return a unit's time."""
    return get_i64(buf, at + fmt.UNIT_WRITE_AT) + get_i32(buf, at + fmt.UNIT_DELTA_AT)
