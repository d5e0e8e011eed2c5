"""Kernels that look at messages or units the way an auditor does: at all of them, past damage.

What stops recovery, a bad unit say, is only noted here, and the next one is looked at.
"""

from __future__ import annotations

from typing import Any, Final

from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.format import (
    CRC_PROPERTY_BYTES,
    MESSAGE_OFFSET_AT,
    MESSAGE_QUEUE_INDEX_AT,
    MESSAGE_SYSTEM_FLAG_AT,
    NAME_END,
    PROPERTY_CRC,
    TIMER_TOPIC,
    UNIT_BYTES,
    UNIT_DELETE,
    UNIT_HASH_AT,
    UNIT_MAGIC_AT,
    UNIT_MESSAGE_AT,
    UNIT_MESSAGE_SIZE_AT,
    UNIT_PREV_AT,
    UNIT_ROLL,
    VALUE_END,
)
from timerstore.timelog.intrinsics import as_word, get_i32, get_i64, get_u8, get_word
from timerstore.timelog.kernel import inlined, kernel
from timerstore.timelog.message import (
    DELETES_BYTES,
    DUE_MS,
    GOOD,
    PROPERTIES_BYTES,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    SIZE,
    TOPIC_AT,
    TOPIC_BYTES,
    WHOLE_CRC,
    is_ours,
    java_hash,
    read_message,
)
from timerstore.timelog.scan import (
    ROW_OFFSET,
    ROW_QUEUE_ID,
    ROW_TOPIC,
    ROW_TOPIC_BYTES,
)
from timerstore.timelog.segments import SEGMENT_BYTES, segment_at
from timerstore.timelog.unit import (
    UNIT_GOOD,
    check_unit,
    is_broker_unit,
    next_unit_offset,
    unit_ms,
)

# Bits of a message's mark.
MARK_NO_CHECKSUM: Final = 1  # ours, but without the checksum that we always write
MARK_BAD_CHECKSUM: Final = 2  # something that was a checksum property once
MARK_NOT_INDEXED: Final = 4  # half of a transaction, or taken back: no queue has it

# Columns of an audited unit.
AUDIT_OFFSET: Final = 0
AUDIT_UNIT_MS: Final = 1
AUDIT_MAGIC: Final = 2
AUDIT_MESSAGE: Final = 3
AUDIT_BROKER: Final = 4
AUDIT_VERDICT: Final = 5
AUDIT_QUEUE_INDEX: Final = 6  # of its message; −1 where that cannot be read
AUDIT_COLUMNS: Final = 7

# Verdicts on a unit; the first three are those of `check_unit`.
NO_MESSAGE: Final = 3
OTHER_SIZE: Final = 4
OTHER_TOPIC: Final = 5
OTHER_KIND: Final = 6
OTHER_TIME: Final = 7
OTHER_SLOT: Final = 8
REMOVED: Final = 9  # its message is before the log's start
VERDICTS: Final = (
    "sound",
    "this is no unit",
    "the unit's checksum does not match",
    "the unit points to no timer message",
    "the unit's message has another size",
    "the unit's message has another topic",
    "a delete and a timer are mixed up between the unit and its message",
    "the unit's time is not its message's",
    "the unit's prev_pos is no unit of its slot",
    "the unit's message was removed, and its slot lies ahead",
)

_CRC_NAME = as_word(PROPERTY_CRC)
_TRANSACTION: Final = 0xC
_COMMITTED: Final = 0x8
_TIMER_TOPIC_BYTES: Final = len(TIMER_TOPIC)
_TIMER_TOPIC_WORD = as_word(TIMER_TOPIC)


@kernel
def mark_messages(commitlog: Any, rows: Any, tag: int, found: Any, marks: Any) -> None:
    """Mark scanned messages; `marks`: int64[n], written. Their segments are mapped. O(bytes)."""
    for i in range(len(rows)):
        marks[i] = 0
        buf = segment_at(commitlog, rows[i, ROW_OFFSET])
        at = rows[i, ROW_OFFSET] % commitlog.words[SEGMENT_BYTES]
        if read_message(buf, at, found, False) != GOOD:
            continue
        transaction = get_i32(buf, at + MESSAGE_SYSTEM_FLAG_AT) & _TRANSACTION
        if transaction != 0 and transaction != _COMMITTED:
            marks[i] |= MARK_NOT_INDEXED
        if found[WHOLE_CRC] == 1:
            # Reading the digits takes any bytes for some.
            for place in range(at + found[SIZE] - 11, at + found[SIZE] - 1):
                if get_u8(buf, place) < 48 or get_u8(buf, place) > 57:
                    marks[i] |= MARK_BAD_CHECKSUM
            continue
        if found[PROPERTIES_BYTES] >= CRC_PROPERTY_BYTES:
            start = at + found[SIZE] - CRC_PROPERTY_BYTES
            same = 0
            different = get_word(buf, start) ^ _CRC_NAME
            for _ in range(8):
                if different & 0xFF == 0:
                    same += 1
                different >>= 8
            if get_u8(buf, start + 8) == NAME_END:
                same += 1
            if get_u8(buf, start + 19) == VALUE_END:
                same += 1
            if same >= 6:  # of 10 bytes that never differ
                marks[i] |= MARK_BAD_CHECKSUM
        if is_ours(buf, found, tag):
            marks[i] |= MARK_NO_CHECKSUM


@kernel
def find_rows(queues: Any, commitlog: Any, rows: Any, result: Any) -> int:
    """Fill `result`, int64[n], with queue rows; return the first message without one, or −1."""
    for i in range(len(rows)):
        offset = rows[i, ROW_TOPIC]
        buf = segment_at(commitlog, offset)
        at = offset % commitlog.words[SEGMENT_BYTES]
        row = find_row(queues, buf, at, rows[i, ROW_TOPIC_BYTES], rows[i, ROW_QUEUE_ID])
        if row < 0:
            return i
        result[i] = row
    return -1


@inlined
def _judge_message(source: Any, place: int, message: int, buf: Any, at: int, found: Any) -> int:
    """Compare a unit with the message it points to: a verdict."""
    if read_message(source, place, found, False) != GOOD:
        return NO_MESSAGE
    if get_i64(source, place + MESSAGE_OFFSET_AT) != message or found[DUE_MS] < 0:
        return NO_MESSAGE
    same = get_word(source, found[TOPIC_AT]) == _TIMER_TOPIC_WORD
    if found[TOPIC_BYTES] != _TIMER_TOPIC_BYTES or not same or found[REAL_TOPIC_BYTES] < 0:
        return NO_MESSAGE
    if found[SIZE] != get_i32(buf, at + UNIT_MESSAGE_SIZE_AT):
        return OTHER_SIZE
    topic_hash = java_hash(source, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES])
    if topic_hash != get_i32(buf, at + UNIT_HASH_AT):
        return OTHER_TOPIC
    magic = get_i32(buf, at + UNIT_MAGIC_AT)
    if (magic & UNIT_DELETE != 0) != (found[DELETES_BYTES] >= 0):
        return OTHER_KIND
    ms = unit_ms(buf, at)
    if magic & UNIT_ROLL != 0:
        return UNIT_GOOD if ms < found[DUE_MS] else OTHER_TIME
    # A handover puts a delete beside its timer, also where that is a roll.
    if magic & UNIT_DELETE != 0 and not is_broker_unit(buf, at):
        return UNIT_GOOD
    # A timer that came after its slot had passed waits in a later one; a broker's does not.
    if ms < found[DUE_MS] or (is_broker_unit(buf, at) and ms != found[DUE_MS]):
        return OTHER_TIME
    return UNIT_GOOD


@kernel
def audit_units(
    timerlog: Any,
    commitlog: Any,
    start: int,
    stop: int,
    from_slot: int,
    log_start: int,
    log_end: int,
    precision_ms: int,
    units: Any,
    found: Any,
    scratch: Any,
    state: Any,
) -> int:
    """Judge each unit in [state[0], stop), damaged ones too; return how many. O(units).

    `units`: int64[n, AUDIT_COLUMNS], written. `state`: int64[3]: the offset to go on at; which log
    has to be mapped first, 0 for none, 1 for the timer log, 2 for the commit log; at which offset.
    `start`: the timer log's. `from_slot`: R. `log_start`, `log_end`: the commit log's.
    """
    segment_bytes = timerlog.words[SEGMENT_BYTES]
    count = 0
    state[1] = 0
    while count < len(units):
        offset = next_unit_offset(segment_bytes, state[0])
        if offset >= stop:
            state[0] = offset
            break
        buf = segment_at(timerlog, offset)
        if len(buf) == 0:
            state[1] = 1
            state[2] = offset
            break
        at = offset % segment_bytes
        unit = units[count]
        unit[AUDIT_OFFSET] = offset
        unit[AUDIT_UNIT_MS] = unit_ms(buf, at)
        unit[AUDIT_MAGIC] = get_i32(buf, at + UNIT_MAGIC_AT)
        unit[AUDIT_MESSAGE] = get_i64(buf, at + UNIT_MESSAGE_AT)
        unit[AUDIT_BROKER] = 1 if is_broker_unit(buf, at) else 0
        unit[AUDIT_QUEUE_INDEX] = -1
        verdict = check_unit(buf, at, offset, scratch)
        if verdict == UNIT_GOOD:
            slot = unit_ms(buf, at) // precision_ms
            previous = get_i64(buf, at + UNIT_PREV_AT)
            if previous >= start:
                other = segment_at(timerlog, previous)
                if len(other) == 0:
                    state[1] = 1
                    state[2] = previous
                    break
                position = previous % segment_bytes
                aligned = position % UNIT_BYTES == 0 and position + UNIT_BYTES <= segment_bytes
                if not aligned or unit_ms(other, position) // precision_ms != slot:
                    verdict = OTHER_SLOT
            elif previous != -1 and (previous < 0 or slot >= from_slot):
                verdict = OTHER_SLOT
            message = unit[AUDIT_MESSAGE]
            if message < log_start:
                if slot >= from_slot or message < 0:
                    verdict = REMOVED
            elif message >= log_end:
                verdict = NO_MESSAGE
            else:
                source = segment_at(commitlog, message)
                if len(source) == 0:
                    state[1] = 2
                    state[2] = message
                    break
                place = message % commitlog.words[SEGMENT_BYTES]
                judged = _judge_message(source, place, message, buf, at, found)
                if judged != UNIT_GOOD:
                    verdict = judged
                if judged != NO_MESSAGE:
                    unit[AUDIT_QUEUE_INDEX] = get_i64(source, place + MESSAGE_QUEUE_INDEX_AT)
        unit[AUDIT_VERDICT] = verdict
        count += 1
        state[0] = offset + UNIT_BYTES
    return count
