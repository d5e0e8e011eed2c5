"""The files of `index/`: which messages carry a key, as RocketMQ's IndexFile has it.

    header, 40 bytes    begin and end as ms, begin and end as offset, used slots, entries + 1
    slots               int32 each: the newest entry of its chain, 0 for none
    entries             20 bytes each, the first unused: hash, offset, seconds since begin, previous

An entry is found by |h| of Java's `String.hashCode` of topic + `#` + key, in the chain of the slot
|h| mod slots. The topic is the one that a message waits under: the timer topic, or that of the
delay levels. Blanks separate several keys of a message; each has an entry.

A file holds as many slots as entries. Everything here is read and written under the lock of the
index (`services/engine/key_files.py`). What an entry says is never trusted: it only leads to a
message.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.jit.intrinsics import get_i32, get_i64, get_u8, load_acquire, put_i32, put_i64
from timerstore.jit.kernel import inlined, inlined_view, kernel_ahead
from timerstore.jit.mapping import Lent, lent_bytes, new_lent
from timerstore.jit.record import Bytes, ReadBytes, Words, record
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import (
    GOOD,
    MessageParts,
    java_hash_on,
    read_message,
    stored_at,
)
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.timelog.files.segmenttable import SegmentTable, prefetch_message, segment_at
from timerstore.timelog.writing.append import QueueTable

FILE_COUNT_MAX: Final = 1_024
SECONDS_MAX: Final = 0x7FFFFFFF
NO_CODE: Final = 1 << 31  # the one hash whose sign cannot be changed

TIMERS_PREFIX: Final = java_hash_of(fmt.TIMER_TOPIC.decode() + "#") & 0xFFFFFFFF
LEVELS_PREFIX: Final = java_hash_of(fmt.LEVEL_TOPIC.decode() + "#") & 0xFFFFFFFF
_BLANK: Final = 32
_AHEAD: Final = 4


@record
class KeyIndex:
    """All files, the oldest first, with a place for each of FILE_COUNT_MAX."""

    cursor: (
        Words  # int64[1 + LEVEL_COUNT_MAX]: up to which index each queue is done; 0: the timers'
    )
    lent: Lent  # FILE_COUNT_MAX of them
    room: Words  # int64[FILE_COUNT_MAX]: slots, and entries with the first, unused one
    next_entry: Words  # int64[FILE_COUNT_MAX]
    latest_ms: Words  # int64[FILE_COUNT_MAX]: the latest due time of its timers
    last_index: Words  # int64[FILE_COUNT_MAX]: of its last timer in the timer topic's queue; or −1
    last_level: Words  # int64[FILE_COUNT_MAX]: offset of the last message of a level; or −1
    last_message: Words  # int64[FILE_COUNT_MAX]: the largest, as queues are not read in its order
    found: MessageParts  # scratch
    file_count: int = 0
    old_linked: int = 0
    """The queue cursor when the read cursor was not past `old_passed`, see key_search.py."""
    old_passed: int = 0
    new_linked: int = 0
    new_passed: int = 0
    word: int = 0
    """Keys of the message at which `index_entries` stopped that have their entry."""
    unmapped: int = 0
    """That message, if its segment is not mapped; −1: the last file is full."""


def new_key_index() -> KeyIndex:
    """Return an index without a file."""

    def column() -> Words:
        return np.zeros(FILE_COUNT_MAX, np.int64)

    return KeyIndex(
        np.zeros(1 + fmt.LEVEL_COUNT_MAX, np.int64),
        new_lent(FILE_COUNT_MAX),
        *(column(), column(), column(), column(), column(), column()),
        MessageParts(),
    )


def file_bytes(room: int) -> int:
    """Return the length of a file with so many slots and entries."""
    return fmt.KEY_HEADER_BYTES + (fmt.KEY_SLOT_BYTES + fmt.KEY_ENTRY_BYTES) * room


def header_of(view: Bytes) -> Any:
    """Return the header in a file's bytes, to be read and written by name."""
    return view[: fmt.KEY_HEADER_BYTES].view(fmt.KEY_HEADER)[0]


@inlined_view
def view_file(index: KeyIndex, number: int) -> Any:
    """Return a file's bytes."""
    entry_bytes = fmt.KEY_SLOT_BYTES + fmt.KEY_ENTRY_BYTES
    return lent_bytes(index.lent, number, fmt.KEY_HEADER_BYTES + entry_bytes * index.room[number])


@inlined
def slot_at(code: int, room: int) -> int:
    """Return the position of a hash's slot."""
    return fmt.KEY_HEADER_BYTES + fmt.KEY_SLOT_BYTES * (code % room)


@inlined
def entry_at(entry: int, room: int) -> int:
    """Return the position of an entry."""
    return fmt.KEY_HEADER_BYTES + fmt.KEY_SLOT_BYTES * room + fmt.KEY_ENTRY_BYTES * entry


@inlined
def key_code(prefix: int, buf: Bytes, at: int, count: int) -> int:
    """Return the hash that one key in UTF-8 is found by; `prefix`: that of its topic and `#`."""
    code: int = java_hash_on(buf, at, count, prefix)
    if code < 0:
        code = -code
    return 0 if code == NO_CODE else code


@inlined
def word_end(buf: Bytes, at: int, end: int) -> int:
    """Return where the word that begins at `at` ends."""
    while at < end and get_u8(buf, at) != _BLANK:
        at += 1
    return at


@inlined
def word_start(buf: Bytes, at: int, end: int) -> int:
    """Return where the next word begins; `end` if there is none."""
    while at < end and get_u8(buf, at) == _BLANK:
        at += 1
    return at


@inlined
def _put(index: KeyIndex, number: int, code: int, message: int, stored_ms: int) -> None:
    """Add an entry to a file that has room."""
    file, room, entry = view_file(index, number), index.room[number], index.next_entry[number]
    head = slot_at(code, room)
    previous = get_i32(file, head)
    if previous < 0 or previous >= entry:
        previous = 0
    began_ms, seconds = get_i64(file, fmt.KEY_BEGIN_MS_AT), 0
    if began_ms > 0:
        seconds = min(max((stored_ms - began_ms) // 1_000, 0), SECONDS_MAX)
    at = entry_at(entry, room)
    put_i32(file, at + fmt.KEY_HASH_AT, code)
    put_i64(file, at + fmt.KEY_OFFSET_AT, message)
    put_i32(file, at + fmt.KEY_SECONDS_AT, seconds)
    put_i32(file, at + fmt.KEY_PREVIOUS_AT, previous)
    put_i32(file, head, entry)
    if entry == 1:
        put_i64(file, fmt.KEY_BEGIN_MS_AT, stored_ms)
        put_i64(file, fmt.KEY_BEGIN_OFFSET_AT, message)
    put_i64(file, fmt.KEY_END_MS_AT, stored_ms)
    put_i64(file, fmt.KEY_END_OFFSET_AT, message)
    if previous == 0:
        put_i32(file, fmt.KEY_USED_SLOTS_AT, get_i32(file, fmt.KEY_USED_SLOTS_AT) + 1)
    put_i32(file, fmt.KEY_NEXT_ENTRY_AT, entry + 1)
    index.next_entry[number] = entry + 1


@kernel_ahead
def pass_keyless(index: KeyIndex, queues: QueueTable, queue: int, row: int) -> int:
    """Pass the last entries of a queue if none has a key; return how many are to be read. O(1)."""
    end = load_acquire(queues.next_index, row)  # first: what has a key before it is known then
    stop = min(end, load_acquire(queues.keyless_from, row))
    if index.cursor[queue] >= stop:
        index.cursor[queue] = end
    return max(0, stop - index.cursor[queue])


@kernel_ahead
def index_entries(
    index: KeyIndex,
    commitlog: SegmentTable,
    entries: ReadBytes,
    at: int,
    count: int,
    queue: int,
    floor: int,
) -> int:
    """Index what the next `count` entries of a queue point at; return how many it did.

    `entries`: they begin at `at`. `queue`: 0 the timer topic's, else a level. Messages before
    `floor` are passed by, as is what is damaged. If it did fewer, `index.unmapped` says what is
    missing. O(bytes of the properties).
    """
    segment_bytes, end, found = commitlog.segment_bytes, commitlog.end, index.found
    prefix = TIMERS_PREFIX if queue == 0 else LEVELS_PREFIX
    for i in range(count):
        if i + _AHEAD < count:
            ahead = get_i64(entries, at + fmt.ENTRY_BYTES * (i + _AHEAD) + fmt.ENTRY_OFFSET_AT)
            prefetch_message(commitlog, ahead)
        message = get_i64(entries, at + fmt.ENTRY_BYTES * i + fmt.ENTRY_OFFSET_AT)
        if message >= floor and message < end:
            buf = segment_at(commitlog, message)
            if len(buf) == 0:
                index.unmapped = message
                return i
            position = message % segment_bytes
            if not _has_key(buf, position, message, index.cursor[queue], found):
                index.cursor[queue] += 1
                continue
            stored_ms = get_i64(buf, stored_at(buf, position))
            last, skip = index.file_count - 1, index.word
            stop = found.keys_at + found.keys_bytes
            start = word_start(buf, found.keys_at, stop)
            while start < stop:
                behind = word_end(buf, start, stop)
                if skip > 0:
                    skip -= 1
                elif last < 0 or index.next_entry[last] >= index.room[last]:
                    index.unmapped = -1
                    return i
                else:
                    code = key_code(prefix, buf, start, behind - start)
                    _put(index, last, code, message, stored_ms)
                    _note(index, last, queue, message, found.due_ms)
                    index.word += 1
                start = word_start(buf, behind, stop)
            index.word = 0
        index.cursor[queue] += 1
    return count


@inlined
def _has_key(buf: Bytes, position: int, message: int, place: int, found: MessageParts) -> bool:
    """Read the message at an entry's place; tell whether it is to be indexed."""
    if read_message(buf, position, message, found, False) != GOOD or found.deletes_bytes >= 0:
        return False
    return found.keys_bytes > 0 and get_i64(buf, position + fmt.MESSAGE_QUEUE_INDEX_AT) == place


@inlined
def _note(index: KeyIndex, last: int, queue: int, message: int, due_ms: int) -> None:
    """Note of a file when the last of its timers is done with."""
    index.last_message[last] = max(index.last_message[last], message)
    if queue > 0:
        index.last_level[last] = max(index.last_level[last], message)
    else:
        index.last_index[last] = index.cursor[0]
        index.latest_ms[last] = max(index.latest_ms[last], due_ms)
