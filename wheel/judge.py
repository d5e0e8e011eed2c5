"""What is pending: the one place that says it, for all but validation.

A timer waits in one of three *places*: a unit that is not superseded, in a slot at or after the
read cursor; an entry of the timer topic's queue at or after the queue cursor, which has no unit
yet; an entry of a delay level's queue at or after that level's offset. The message that stands
there is pending, unless

    a copy of it is in the log: it was fired, or rolled, and is *done*;
    it is a delete;
    a delete names it, so that its identity is in the cancelled set.

Who looks finds the places in his own way: recovery and the open store in the wheel, the tables in
the timer log's order, so that any range of it can be read by itself. What of them is pending is
judged here, message by message.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from timerstore.jit.intrinsics import get_i64
from timerstore.jit.kernel import inlined_always, kernel_ahead, kernel_later
from timerstore.jit.record import Bytes, Table, Words, record
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import (
    GOOD,
    IDENTITY_OURS,
    MessageParts,
    exact_due_ms,
    identify_target,
    identify_timer,
    read_message,
)
from timerstore.timelog.files.segmenttable import (
    MESSAGES_AHEAD,
    SegmentTable,
    prefetch_message,
    segment_at,
)
from timerstore.timelog.reading.scan import (
    LoggedMessages,
    LoggedParts,
    ReadAs,
    fill_message,
    fill_parts,
    is_half_topic,
)
from timerstore.timelog.writing.append import QueueTable
from timerstore.timelog.writing.consumequeue import find_row
from timerstore.wheel.cancelled import map_get, names_timer

# What a message at a place is; below 0: what is wrong with it, −status of `read_message`.
PENDING: Final = 0
DONE: Final = 1
DELETE: Final = 2
CANCELLED: Final = 3
NO_TIMER: Final = 4  # it says no due time, or no topic; or it is half of a transaction
GONE: Final = 5  # its segment is not there

IN_MESSAGE: Final = -(1 << 63)
"""In place of a due time: the message says it, because it waits in no delay level."""


@record
class PendingRead(Table):
    """What is read at timers' places: the verdict; the rest of what is PENDING or a DELETE."""

    message: Words  # the place, a commit log offset; best in their order
    verdict: Words
    due_ms: Words  # exact; −1 if the message says none; what is to be read: see `places_to_read`
    high: Words  # who it is; of a delete its target
    low: Words
    rolls: Words
    row: Words  # the real topic's queue; −1 if it has no row yet
    born_ms: Words
    body_bytes: Words


class Reading(NamedTuple):
    """How a store's messages are read, and what settles that some are not pending any more."""

    how: ReadAs
    done: Words  # a map of `cancelled.py`: sources that have their copy
    done_count: int
    cancelled: Words  # the cancelled set's table; of length 0 if nothing was cancelled
    needs_rows: bool = False  # each pending timer's topic must have a row


@record
class PlacesRead:
    """What `read_places` writes."""

    rows: LoggedMessages  # of what is sound
    parts: LoggedParts  # of what is pending
    verdicts: Words  # int64[n]


def places_to_read(messages: Words, due_ms: Words | int = IN_MESSAGE) -> PendingRead:
    """Return columns for what `read_pending` reads at some places.

    `due_ms`: what a delay level's entry says of each, IN_MESSAGE of what waits in no level.
    """
    columns = PendingRead.room(len(messages))
    columns.message[:], columns.due_ms[:] = messages, due_ms
    return columns


@inlined_always
def _is_done(reading: Reading, message: int) -> bool:
    """Tell whether a message has its copy. O(1)."""
    done: bool = reading.done_count > 0 and map_get(reading.done, message) >= 0
    return done


@inlined_always
def judge_message(
    buf: Bytes, at: int, message: int, in_level: bool, reading: Reading, found: MessageParts
) -> int:
    """Tell what the message at `at` of its segment is, which stands at a timer's place. O(size).

    It is not DONE. `found`: written by `read_message`, with who it is, of a delete its target.
    """
    status = read_message(buf, at, message, found, reading.how.verify)
    if status != GOOD:
        return -status
    if found.deletes_bytes >= 0:
        identify_target(buf, found, reading.how.tag)
        return DELETE
    if found.real_topic_bytes <= 0 or (found.due_ms < 0 and not in_level):
        return NO_TIMER
    if in_level and is_half_topic(buf, found.real_topic_at, found.real_topic_bytes):
        return NO_TIMER
    identify_timer(buf, found, reading.how.tag)
    if len(reading.cancelled) > 0:
        high, low = found.identity_high, found.identity_low
        # What was sent back through a level has the key of its first message, and is not meant.
        meant = not in_level or (high == IDENTITY_OURS and low == message | fmt.LEVEL_MARK)
        if meant and names_timer(reading.cancelled, high, low):
            return CANCELLED
    return PENDING


@kernel_later
def read_places(
    commitlog: SegmentTable,
    messages: Words,
    due_ms: Words,
    reading: Reading,
    into: PlacesRead,
    found: MessageParts,
    state: Words,
) -> int:
    """Read the messages at some places; return the first whose segment is not mapped, or −1.

    `messages`: int64[n], commit log offsets; best in their order. `due_ms`: int64[n], what a delay
    level's entry says, else IN_MESSAGE. `found`: scratch. `state`: int64[1]: the index to begin and
    to go on at. O(bytes).
    """
    segment_bytes = commitlog.segment_bytes
    while state[0] < len(messages):
        i = state[0]
        if i + MESSAGES_AHEAD < len(messages):
            prefetch_message(commitlog, messages[i + MESSAGES_AHEAD])
        message = messages[i]
        at, verdict = message % segment_bytes, DONE
        in_level = due_ms[i] != IN_MESSAGE
        buf = segment_at(commitlog, message)
        if not _is_done(reading, message):
            if len(buf) == 0:
                return message
            verdict = judge_message(buf, at, message, in_level, reading, found)
        into.rows.offset[i] = message
        into.rows.status[i] = -min(verdict, 0)
        into.verdicts[i] = verdict
        if verdict >= 0 and verdict != DONE:
            fill_message(buf, at, message - at, found, reading.how, into.rows, i)
            if in_level:
                into.rows.exact_due_ms[i] = due_ms[i]
        if verdict == PENDING:
            fill_parts(buf, at, message - at, found, into.parts, i)
        state[0] += 1
    return -1


@kernel_ahead
def read_pending(
    commitlog: SegmentTable,
    queues: QueueTable,
    reading: Reading,
    found: MessageParts,
    columns: PendingRead,
    start: int,
) -> int:
    """Read messages from `start` on; return the index of the first that has to wait, or n.

    Its segment is not mapped; or it is PENDING, and its topic's row is missing. `found`: scratch.
    O(bytes).
    """
    segment_bytes, messages = commitlog.segment_bytes, columns.message
    for i in range(start, len(messages)):
        if i + MESSAGES_AHEAD < len(messages):
            prefetch_message(commitlog, messages[i + MESSAGES_AHEAD])
        message = messages[i]
        columns.verdict[i] = DONE
        if _is_done(reading, message):
            continue
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return i
        at, in_level = message % segment_bytes, columns.due_ms[i] != IN_MESSAGE
        verdict = judge_message(buf, at, message, in_level, reading, found)
        columns.verdict[i] = verdict
        if verdict != PENDING and verdict != DELETE:
            continue
        topic_at, topic_bytes = found.real_topic_at, max(0, found.real_topic_bytes)
        row = find_row(queues, buf, topic_at, topic_bytes, max(0, found.real_queue))
        if reading.needs_rows and row < 0 and verdict == PENDING:
            return i
        if not in_level:
            columns.due_ms[i] = -1
            if found.due_ms >= 0:
                how = reading.how
                columns.due_ms[i] = exact_due_ms(buf, found, how.tag, how.precision_ms)
        columns.high[i] = found.identity_high
        columns.low[i] = found.identity_low
        columns.rolls[i] = max(0, found.roll_times)
        columns.row[i] = row
        columns.born_ms[i] = get_i64(buf, at + fmt.MESSAGE_BORN_AT)
        columns.body_bytes[i] = found.body_bytes
    return len(messages)
