"""Kernels that look at messages or units the way an auditor does: at all of them, past damage.

What stops recovery, a bad unit say, is only noted here, and the next one is looked at.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from timerstore.jit.intrinsics import as_word, get_i32, get_i64, get_word
from timerstore.jit.kernel import inlined, kernel_later
from timerstore.jit.record import Bytes, ReadBytes, Words, record
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import (
    GOOD,
    MessageParts,
    identify,
    identify_named,
    is_ours,
    java_hash,
    read_frame,
    read_message,
)
from timerstore.timelog.bytes.unit import (
    UNIT_GOOD,
    LoggedUnits,
    fill_logged,
    is_broker_unit,
    next_unit_offset,
    unit_ms,
)
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.reading.scan import LoggedMessages, stands_there

# Bits of a message's mark.
MARK_NOT_INDEXED: Final = 1  # half of a transaction, or taken back: no queue has it
MARK_OURS: Final = 2  # this store made it, or the timer that it is a copy of

# Verdicts on a queue entry.
ENTRY_NONE: Final = 0
ENTRY_GOOD: Final = 1
ENTRY_BLANK: Final = 2
ENTRY_REMOVED: Final = 3  # its message is before the log's start
ENTRY_BEHIND: Final = 4  # its message would stand behind the log's end
ENTRY_WRONG: Final = 5

# Verdicts on a unit; the first three are those of `check_unit`.
SOUND: Final = 0
NO_MESSAGE: Final = 3
OTHER_SIZE: Final = 4
OTHER_TOPIC: Final = 5
OTHER_KIND: Final = 6
OTHER_TIME: Final = 7
OTHER_SLOT: Final = 8
REMOVED: Final = 9  # its message is before the log's start
TOO_EARLY: Final = 10  # sound if recovery found its message's copy: it waits in the first slot
DIFFERS: Final = (NO_MESSAGE, OTHER_SIZE, OTHER_TOPIC, OTHER_KIND, OTHER_TIME, TOO_EARLY)
"""The unit may be right, and its message wrong."""
VERDICTS: Final = (
    "sound",
    "no unit begins at this offset",
    "the unit's checksum does not match",
    "the unit points to no timer message",
    "the unit's message has another size",
    "the unit's message has another topic",
    "of the unit and its message, one is a delete and the other is not",
    "the unit's time differs from its message's",
    "the unit's prev_pos is no unit of its slot",
    "the unit's message was removed, and its slot lies ahead",
    "the unit's slot is before its due time, and nothing was copied from its message",
)


class QueueRun(NamedTuple):
    """Entries of a queue that follow each other."""

    entries: ReadBytes  # uint8
    at: int  # where in `entries` the first stands
    start: int  # its index
    topic: ReadBytes  # uint8
    queue_id: int


_TRANSACTION: Final = 0xC
_COMMITTED: Final = 0x8
_TIMER_TOPIC_BYTES: Final = len(fmt.TIMER_TOPIC)
_TIMER_TOPIC_WORD = as_word(fmt.TIMER_TOPIC)


@record
class AuditedUnits(LoggedUnits):
    """Units with what their messages say; `status` is a verdict."""

    queue_index: Words  # −1 if the message cannot be read, as below
    high: Words  # identity of its timer, of a delete's target; else 0
    low: Words
    message_due_ms: Words  # else −1


class Audited(NamedTuple):
    """What a store says of itself, by which its units are judged."""

    start: int  # of the timer log
    from_slot: int  # the read cursor
    log_start: int  # of the commit log
    log_end: int
    floor: int  # 0 if nothing was cleaned
    precision_ms: int
    hop_ms: int  # of our rolls; 0: unknown
    window_ms: int  # of a broker's; 0: unknown
    tag: int


@kernel_later
def mark_messages(
    commitlog: SegmentTable, rows: LoggedMessages, tag: int, found: MessageParts, marks: Words
) -> None:
    """Mark scanned messages; `marks`: int64[n], written. Their segments are mapped. O(bytes)."""
    for i in range(len(rows.offset)):
        marks[i] = 0
        buf = segment_at(commitlog, rows.offset[i])
        at = rows.offset[i] % commitlog.segment_bytes
        if len(buf) == 0 or read_message(buf, at, rows.offset[i], found, False) != GOOD:
            continue
        ours = is_ours(buf, found, tag)
        if ours:
            marks[i] |= MARK_OURS
        transaction = get_i32(buf, at + fmt.MESSAGE_SYSTEM_FLAG_AT) & _TRANSACTION
        if transaction != 0 and transaction != _COMMITTED:
            marks[i] |= MARK_NOT_INDEXED


@inlined
def _judge_roll(buf: Bytes, at: int, due_ms: int, store: Audited) -> int:
    """Judge where a roll waits: on its timer's own grid, or where a broker's third rule puts it."""
    hop_ms, window_ms, precision_ms = store.hop_ms, store.window_ms, store.precision_ms
    ms, write_ms = unit_ms(buf, at), get_i64(buf, at + fmt.UNIT_WRITE_AT)
    if ms >= due_ms:
        return OTHER_TIME
    if not is_broker_unit(buf, at):
        return UNIT_GOOD if hop_ms <= 0 or (due_ms - ms) % hop_ms == 0 else OTHER_TIME
    delta_ms, ahead_ms = ms - write_ms, due_ms - write_ms
    if window_ms <= 0:  # it is delta, or twice that; either way the due time lies a third beyond
        return UNIT_GOOD if 3 * (ahead_ms + precision_ms) >= 4 * delta_ms else OTHER_TIME
    expected_ms = window_ms
    if ahead_ms - window_ms < window_ms // precision_ms // 3 * precision_ms:
        expected_ms = window_ms // precision_ms // 2 * precision_ms
    return UNIT_GOOD if ahead_ms >= window_ms and delta_ms == expected_ms else OTHER_TIME


@inlined
def _judge_message(
    source: Bytes,
    place: int,
    message: int,
    buf: Bytes,
    at: int,
    store: Audited,
    found: MessageParts,
) -> int:
    """Compare a unit with the message it points to: a verdict."""
    if read_message(source, place, message, found, False) != GOOD or found.due_ms < 0:
        return NO_MESSAGE
    same = get_word(source, found.topic_at) == _TIMER_TOPIC_WORD
    if found.topic_bytes != _TIMER_TOPIC_BYTES or not same or found.real_topic_bytes < 0:
        return NO_MESSAGE
    if found.size != get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT):
        return OTHER_SIZE
    topic_hash = java_hash(source, found.real_topic_at, found.real_topic_bytes)
    if topic_hash != get_i32(buf, at + fmt.UNIT_HASH_AT):
        return OTHER_TOPIC
    magic = get_i32(buf, at + fmt.UNIT_MAGIC_AT)
    if (magic & fmt.UNIT_DELETE != 0) != (found.deletes_bytes >= 0):
        return OTHER_KIND
    if magic & fmt.UNIT_ROLL != 0:
        return _judge_roll(buf, at, found.due_ms, store)
    # A handover puts a delete beside its timer, also if that is a roll.
    if magic & fmt.UNIT_DELETE != 0 and not is_broker_unit(buf, at):
        return UNIT_GOOD
    # A timer that came after its slot had passed waits in a later one; a broker's does not.
    ms = unit_ms(buf, at)
    if is_broker_unit(buf, at):
        return UNIT_GOOD if ms == found.due_ms else OTHER_TIME
    return TOO_EARLY if ms < found.due_ms else UNIT_GOOD


@kernel_later
def audit_units(
    timerlog: SegmentTable,
    commitlog: SegmentTable,
    stop: int,
    store: Audited,
    units: AuditedUnits,
    found: MessageParts,
    state: Words,
) -> int:
    """Judge each unit in [state[0], stop), damaged ones too; return how many. O(units).

    `units`: written. `state`: int64[3]: the offset to go on at; which log has to be mapped first, 0
    for none, 1 for the timer log, 2 for the commit log; at which offset. If a unit's predecessor
    lies in a segment that is missing, hand the two in again as they are.
    """
    start, from_slot = store.start, store.from_slot
    floor, precision_ms = store.floor, store.precision_ms
    segment_bytes = timerlog.segment_bytes
    count = 0
    missing = -1
    if state[1] == 1:
        missing = state[2] // segment_bytes
    state[1] = 0
    while count < len(units.offset):
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
        fill_logged(units, count, buf, at, offset)
        units.queue_index[count] = -1
        units.high[count] = 0
        units.low[count] = 0
        units.message_due_ms[count] = -1
        verdict = units.status[count]
        if verdict == UNIT_GOOD:
            slot = unit_ms(buf, at) // precision_ms
            previous = units.prev[count]
            if previous >= start and previous // segment_bytes == missing:
                verdict = OTHER_SLOT
            elif previous >= start:
                other = segment_at(timerlog, previous)
                if len(other) == 0:
                    state[1] = 1
                    state[2] = previous
                    break
                position = previous % segment_bytes
                aligned = (
                    position % fmt.UNIT_BYTES == 0 and position + fmt.UNIT_BYTES <= segment_bytes
                )
                if not aligned or unit_ms(other, position) // precision_ms != slot:
                    verdict = OTHER_SLOT
            elif previous != -1 and (previous < 0 or (slot >= from_slot and floor == 0)):
                verdict = OTHER_SLOT
            message = units.message[count]
            if message < store.log_start:
                if message < 0 or (slot >= from_slot and message >= floor):
                    verdict = REMOVED
            elif message >= store.log_end:
                verdict = NO_MESSAGE
            else:
                source = segment_at(commitlog, message)
                if len(source) == 0:
                    state[1] = 2
                    state[2] = message
                    break
                place = message % commitlog.segment_bytes
                judged = _judge_message(source, place, message, buf, at, store, found)
                if judged != UNIT_GOOD:
                    verdict = judged
                if judged != NO_MESSAGE:
                    units.queue_index[count] = get_i64(source, place + fmt.MESSAGE_QUEUE_INDEX_AT)
                    units.message_due_ms[count] = found.due_ms
                    identify_named(source, found, store.tag)
                    units.high[count] = found.identity_high
                    units.low[count] = found.identity_low
        units.status[count] = verdict
        count += 1
        state[0] = offset + fmt.UNIT_BYTES
    return count


@kernel_later
def identify_copies(
    commitlog: SegmentTable,
    rows: LoggedMessages,
    tag: int,
    found: MessageParts,
    high: Words,
    low: Words,
) -> None:
    """Fill the identities of scanned copies, whose own topic is their timer's; int64[n] each.

    Their segments are mapped. O(bytes).
    """
    for i in range(len(rows.offset)):
        buf = segment_at(commitlog, rows.offset[i])
        at = rows.offset[i] % commitlog.segment_bytes
        if len(buf) == 0 or read_message(buf, at, rows.offset[i], found, False) != GOOD:
            continue
        topic_at, topic_bytes = found.topic_at, found.topic_bytes
        key_bytes = max(0, found.key_bytes)
        identify(buf, topic_at, topic_bytes, found.key_at, key_bytes, tag, found)
        high[i] = found.identity_high
        low[i] = found.identity_low


@kernel_later
def judge_entries(
    commitlog: SegmentTable,
    run: QueueRun,
    log_start: int,
    log_stop: int,
    found: MessageParts,
    verdicts: Words,
    state: Words,
) -> int:
    """Judge queue entries by the messages they point to; return how many. O(entries).

    `verdicts`: int64[n], written: ENTRY_ constants. `state`: int64[2]: the entry to go on at; the
    offset of a segment that has to be mapped first, or −1.
    """
    entries = run.entries
    state[1] = -1
    i = state[0]
    while i < len(verdicts):
        at = run.at + i * fmt.ENTRY_BYTES
        message = get_i64(entries, at + fmt.ENTRY_OFFSET_AT)
        size = get_i32(entries, at + fmt.ENTRY_SIZE_AT)
        verdict = ENTRY_WRONG
        if size == 0 and message == 0 and get_i64(entries, at + fmt.ENTRY_TAGS_AT) == 0:
            verdict = ENTRY_NONE
        elif message == 0 and size == fmt.QUEUE_BLANK_SIZE:
            verdict = ENTRY_BLANK
        elif 0 <= message < log_start:
            verdict = ENTRY_REMOVED
        elif message >= log_stop:
            verdict = ENTRY_BEHIND
        elif message >= 0:
            buf = segment_at(commitlog, message)
            if len(buf) == 0:
                state[1] = message
                break
            place = message % commitlog.segment_bytes
            if _is_of_queue(buf, place, message, size, run.start + i, run, found):
                verdict = ENTRY_GOOD
        verdicts[i] = verdict
        i += 1
    state[0] = i
    return i


@inlined
def _is_of_queue(
    buf: Bytes,
    place: int,
    message: int,
    size: int,
    index: int,
    run: QueueRun,
    found: MessageParts,
) -> bool:
    """Tell whether the message at `place` is the one that an entry of a queue stands for."""
    if len(buf) - place < fmt.MESSAGE_BYTES_MIN or read_frame(buf, place, found) != GOOD:
        return False
    if found.size != size or get_i64(buf, place + fmt.MESSAGE_OFFSET_AT) != message:
        return False
    return stands_there(buf, place, found, run.topic, run.queue_id, index)
