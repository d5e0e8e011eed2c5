"""Pulling: kernels that turn a run of queue entries into columns."""

from __future__ import annotations

from typing import Final, NamedTuple

from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import (
    GOOD,
    MessageParts,
    check_crc,
    exact_due_ms,
    read_frame,
    read_properties,
    stored_at,
)
from timerstore.timelog.bytes.text import get_decimal_13, hex_8_word
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.jit.arraytypes import known_tuple
from timerstore.timelog.jit.intrinsics import (
    as_word,
    copy_bytes,
    get_i32,
    get_i64,
    get_u8,
    get_word,
    prefetch,
)
from timerstore.timelog.jit.kernel import inlined, kernel_ahead
from timerstore.timelog.jit.record import Bytes, Int32Rows, ReadBytes, Rows, Words, observe

_AHEAD: Final = 12
_AHEAD_BYTES: Final = 448
PULL_UNMAPPED: Final = -1
PULL_NO_ROOM: Final = -2
"""There is no room for the ids: a producer may make them as long as a message."""

# What an entry of a queue turned out to stand for.
PULL_SOUND: Final = 0
PULL_DAMAGED: Final = 1  # a message that cannot be read
PULL_STRAY: Final = 2  # a message of another queue, of another place in this one, or size
PULL_WILD: Final = 3  # nothing: it points past the log's end, or says less than nothing

# Rows of the numbers of a run, a column each.
RUN_INDEX: Final = 0
RUN_OFFSET: Final = 1
RUN_DUE_MS: Final = 2
RUN_FIRED_MS: Final = 3
RUN_TAGS: Final = 4
RUN_COLUMNS: Final = 5

# Words that `measure_run` fills.
RUN_LOW: Final = 0  # the lowest offset of its messages, and one more than the highest
RUN_HIGH: Final = 1
RUN_BYTES: Final = 2  # no sound messages of the run are longer together
RUN_WORDS: Final = 3

# A timer that we fired begins its properties with these two, each with a value of one length.
_DUE = as_word(fmt.PROPERTY_DUE)
_DUE_END = as_word((fmt.PROPERTY_DUE + b"\x01")[-8:])
_KEY = as_word(fmt.PROPERTY_UNIQUE_KEY)
_DUE_BYTES: Final = len(fmt.PROPERTY_DUE) + 1 + 13 + 1
_KEY_AT: Final = _DUE_BYTES + len(fmt.PROPERTY_UNIQUE_KEY) + 1
_TAG_AT: Final = _KEY_AT + fmt.KEY_DIGITS - 8
_OURS_BYTES: Final = _KEY_AT + fmt.KEY_DIGITS + 1
assert len(fmt.PROPERTY_DUE) == 12 and len(fmt.PROPERTY_UNIQUE_KEY) == 8


@known_tuple
class QueueRun(NamedTuple):
    """Entries of a queue that follow each other."""

    entries: ReadBytes  # uint8
    at: int  # where in `entries` the first stands
    start: int  # its index
    topic: ReadBytes  # uint8
    queue_id: int


@known_tuple
class PulledInto(NamedTuple):
    """What `pull_messages` writes; all but the verdicts have a place for each sound message."""

    numbers: Rows  # int64[RUN_COLUMNS, n]
    ends: Int32Rows  # int32[2, n + 1]: of body and id in `bodies` and `ids`
    verdicts: Bytes  # uint8[n]
    ids: Bytes
    bodies: Bytes  # it has room for RUN_BYTES


@kernel_ahead
def measure_run(
    commitlog: SegmentTable, entries: ReadBytes, at: int, count: int, words: Words
) -> None:
    """Find where the messages of `count` queue entries lie. O(count).

    `entries`: uint8, in which the first stands at `at`. `words`: int64[RUN_WORDS], written; if
    no entry points at a message RUN_HIGH is not above RUN_LOW.
    """
    end = observe(commitlog, "end")
    segment_bytes = commitlog.segment_bytes
    low, high, stop, total = end, 0, 0, 0
    for k in range(count):
        entry = at + k * fmt.ENTRY_BYTES
        offset = get_i64(entries, entry + fmt.ENTRY_OFFSET_AT)
        size = get_i32(entries, entry + fmt.ENTRY_SIZE_AT)
        if offset < 0 or offset >= end or size <= 0:
            continue
        size = min(size, segment_bytes)
        low = min(low, offset)
        high = max(high, offset + 1)
        stop = max(stop, offset + size)
        total += size
    words[RUN_LOW] = low
    words[RUN_HIGH] = high
    words[RUN_BYTES] = max(0, min(total, stop - low))  # those that are sound do not overlap


@inlined
def stands_there(buf: Bytes, at: int, found: MessageParts, run: QueueRun, index: int) -> bool:
    """Tell whether a message says that it is entry `index` of a run's queue."""
    topic = run.topic
    if get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT) != index or found.topic_bytes != len(topic):
        return False
    if get_i32(buf, at + fmt.MESSAGE_QUEUE_ID_AT) != run.queue_id:
        return False
    for i in range(len(topic)):
        if get_u8(buf, found.topic_at + i) != topic[i]:
            return False
    return True


@inlined
def _is_usual(buf: Bytes, found: MessageParts, tag_word: int) -> bool:
    """Tell whether a message's properties begin as those of every timer of ours.

    Then its due time and its id are known without looking at the others, which is half of reading.
    """
    at = found.properties_at
    if found.properties_bytes < _OURS_BYTES or get_word(buf, at + _TAG_AT) != tag_word:
        return False
    if get_word(buf, at) != _DUE or get_word(buf, at + 5) != _DUE_END:
        return False
    if get_word(buf, at + _DUE_BYTES) != _KEY or get_u8(buf, at + _KEY_AT - 1) != fmt.NAME_END:
        return False
    return (
        get_u8(buf, at + _DUE_BYTES - 1) == fmt.VALUE_END
        and get_u8(buf, at + _OURS_BYTES - 1) == fmt.VALUE_END
    )


@kernel_ahead
def pull_messages(
    commitlog: SegmentTable,
    run: QueueRun,
    tag: int,
    precision_ms: int,
    found: MessageParts,
    into: PulledInto,
) -> int:
    """Read the messages of a run of queue entries; return how many are sound. O(bytes).

    Or PULL_UNMAPPED, or PULL_NO_ROOM.

    Each message's CRC is checked, and that it says of itself that it stands there: a queue's file
    in another one's place would hand out what is still pending. A message without a due time is
    due when it was stored.
    """
    entries, at, start = run.entries, run.at, run.start
    numbers, ends, verdicts, ids, bodies = into
    count, sound = len(verdicts), 0
    body_end, id_end = 0, 0
    ends[0, 0] = 0
    ends[1, 0] = 0
    log_end = observe(commitlog, "end")
    segment_bytes = commitlog.segment_bytes
    tag_word = hex_8_word(tag)
    base = 0
    buf = segment_at(commitlog, -1)  # the segment that the last one stood in
    for k in range(count):
        if k + _AHEAD < count:
            ahead = (
                get_i64(entries, at + (k + _AHEAD) * fmt.ENTRY_BYTES + fmt.ENTRY_OFFSET_AT) - base
            )
            if ahead >= 0 and ahead < len(buf):
                for line in range(0, _AHEAD_BYTES, 64):
                    prefetch(buf, ahead + line)
        entry = at + k * fmt.ENTRY_BYTES
        offset = get_i64(entries, entry + fmt.ENTRY_OFFSET_AT)
        size = get_i32(entries, entry + fmt.ENTRY_SIZE_AT)
        if offset < 0 or offset >= log_end or size <= 0:
            verdicts[k] = PULL_WILD
            continue
        position = offset - base
        if position < 0 or position >= len(buf):
            buf = segment_at(commitlog, offset)
            if len(buf) == 0:
                return PULL_UNMAPPED
            position = offset % segment_bytes
            base = offset - position
        if read_frame(buf, position, found) != GOOD or not check_crc(buf, found):
            verdicts[k] = PULL_DAMAGED
            continue
        if found.size != size or not stands_there(buf, position, found, run, start + k):
            verdicts[k] = PULL_STRAY
            continue
        verdicts[k] = PULL_SOUND
        fired_ms = get_i64(buf, stored_at(buf, position))
        due_ms = -1
        if _is_usual(buf, found, tag_word):
            properties_at = found.properties_at
            due_ms = get_decimal_13(buf, properties_at + len(fmt.PROPERTY_DUE) + 1)
            found.key_at = properties_at + _KEY_AT
            found.key_bytes = fmt.KEY_DIGITS
        if due_ms < 0:
            read_properties(buf, found)
            due_ms = fired_ms
            if found.due_ms >= 0:
                due_ms = exact_due_ms(buf, found, tag, precision_ms)
        if found.body_bytes > 0:
            copy_bytes(bodies, body_end, buf, found.body_at, found.body_bytes)
            body_end += found.body_bytes
        if found.key_bytes > 0:
            if id_end + found.key_bytes > len(ids):
                return PULL_NO_ROOM
            copy_bytes(ids, id_end, buf, found.key_at, found.key_bytes)
            id_end += found.key_bytes
        numbers[RUN_INDEX, sound] = start + k
        numbers[RUN_OFFSET, sound] = offset
        numbers[RUN_DUE_MS, sound] = due_ms
        numbers[RUN_FIRED_MS, sound] = fired_ms
        numbers[RUN_TAGS, sound] = get_i64(entries, entry + fmt.ENTRY_TAGS_AT)
        sound += 1
        ends[0, sound] = body_end
        ends[1, sound] = id_end
    return sound
