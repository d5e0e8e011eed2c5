"""What is pending: the one place that says it, for everybody but validation.

A timer waits in one of three *places*: a unit that is not superseded, in a slot at or after R; an
entry of the timer topic's queue at or after Q, which has no unit yet; an entry of a delay level's
queue at or after that level's offset. The message that stands there is pending, unless

    a copy of it is in the log: it was fired, or rolled, and is *done*;
    it is a delete;
    a delete names it, so that its identity is in the cancelled set.

Who looks finds the places in his own way: recovery and the open store in the wheel, the tables in
the timer log's order, so that any range of it can be read by itself. What of them is pending is
judged here, message by message.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from timerstore.timelog.columns import fill_parts
from timerstore.timelog.format import LEVEL_MARK, MESSAGE_OFFSET_AT
from timerstore.timelog.jit.intrinsics import get_i64, prefetch
from timerstore.timelog.jit.kernel import inlined_always, kernel_later
from timerstore.timelog.jit.record import Rows, Words
from timerstore.timelog.message import (
    BAD_PARTS,
    DELETES_BYTES,
    DUE_MS,
    GOOD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    IDENTITY_OURS,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    identify_timer,
    read_message,
)
from timerstore.timelog.scan import (
    ROW_EXACT_DUE_MS,
    ROW_OFFSET,
    ROW_STATUS,
    fill_row,
    is_half_topic,
)
from timerstore.timelog.segmenttable import SEGMENT_BYTES, SegmentTable, segment_at
from timerstore.wheel.cancelled import names_timer
from timerstore.wheel.sets import map_get

# What a message at a place is; below 0: what is wrong with it, −status of `read_message`.
PENDING: Final = 0
DONE: Final = 1
DELETE: Final = 2
CANCELLED: Final = 3
NO_TIMER: Final = 4  # it says no due time, or no topic; or it is half of a transaction
GONE: Final = 5  # its segment is not there

IN_MESSAGE: Final = -(1 << 63)
"""In place of a due time: the message says it, for it waits in no delay level."""
_AHEAD: Final = 8
_LINES: Final = 6


class Reading(NamedTuple):
    """How a store's messages are read, and what settles that some are pending no more."""

    tag: int
    precision_ms: int
    level_ms: Words  # int64, delay of each level
    verify: bool  # check CRCs as well
    done: Words  # a map of `sets.py`: sources that have their copy
    done_count: int
    cancelled: Words  # the cancelled set's table; of length 0 where nothing was cancelled


@inlined_always
def judge_message(
    buf: Any, at: int, message: int, in_level: bool, reading: Reading, found: Words
) -> int:
    """Tell what the message at `at` of its segment, which stands at a timer's place, is. O(size).

    `found`: written by `read_message`, but where it is DONE.
    """
    if reading.done_count > 0 and map_get(reading.done, message) >= 0:
        return DONE
    status = read_message(buf, at, found, reading.verify)
    if status != GOOD:
        return -status
    if get_i64(buf, at + MESSAGE_OFFSET_AT) != message:
        return -BAD_PARTS  # an old message in a segment that is used again
    if found[DELETES_BYTES] >= 0:
        return DELETE
    if found[REAL_TOPIC_BYTES] <= 0 or (found[DUE_MS] < 0 and not in_level):
        return NO_TIMER
    if in_level and is_half_topic(buf, found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES]):
        return NO_TIMER
    if len(reading.cancelled) > 0:
        identify_timer(buf, found, reading.tag)
        high, low = found[IDENTITY_HIGH], found[IDENTITY_LOW]
        # What was sent back through a level has the key of its first message, and is not meant.
        meant = not in_level or (high == IDENTITY_OURS and low == message | LEVEL_MARK)
        if meant and names_timer(reading.cancelled, high, low):
            return CANCELLED
    return PENDING


@kernel_later
def read_places(
    commitlog: SegmentTable,
    messages: Words,
    due_ms: Words,
    reading: Reading,
    rows: Rows,
    parts: Rows,
    verdicts: Words,
    found: Words,
    state: Words,
) -> int:
    """Read the messages at some places; return the first whose segment is not mapped, or −1.

    `messages`: int64[n], commit log offsets; best in their order. `due_ms`: int64[n], what a delay
    level's entry says, else IN_MESSAGE. `verdicts`: int64[n], written. `rows`: int64[n,
    ROW_COLUMNS], of what is sound written; `parts`: int64[n, PART_COLUMNS], of what is pending.
    `found`: int64[FOUND_WORDS], scratch. `state`: int64[1]: the index to begin and to go on at.
    O(bytes).
    """
    segment_bytes = commitlog.words[SEGMENT_BYTES]
    while state[0] < len(messages):
        i = state[0]
        if i + _AHEAD < len(messages):
            ahead = segment_at(commitlog, messages[i + _AHEAD])
            for line in range(_LINES):
                prefetch(ahead, messages[i + _AHEAD] % segment_bytes + 64 * line)
        message, row = messages[i], rows[i]
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return message
        at = message % segment_bytes
        in_level = due_ms[i] != IN_MESSAGE
        verdict = judge_message(buf, at, message, in_level, reading, found)
        row[ROW_OFFSET] = message
        row[ROW_STATUS] = -min(verdict, 0)
        verdicts[i] = verdict
        if verdict >= 0 and verdict != DONE:
            tag, precision_ms = reading.tag, reading.precision_ms
            fill_row(buf, at, message - at, found, tag, precision_ms, reading.level_ms, row)
            if in_level:
                row[ROW_EXACT_DUE_MS] = due_ms[i]
        if verdict == PENDING:
            fill_parts(buf, at, message - at, found, parts[i])
        state[0] += 1
    return -1
