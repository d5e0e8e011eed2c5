"""The one appender: what writes the commit log with its consume queues.

A caller first frames messages in a *stage*, each complete except for what depends on its place.
Then `append` takes the append lock, stamps queue index, own offset, stored time, the offset digits
of our `UNIQ_KEY` and both ends of the CRC, copies the messages into the mapped segment and writes
their consume queue entries. Ground rules:

- only `append` writes `end` of the commit log and `next_index`, under the append lock;
- both are stored with release order after the bytes, so a reader that loads them with acquire
  order finds what stands before them;
- only kernels take the lock: threads wait for it while they hold the GIL, so it is only ever held
  inside a kernel, never across a return to Python. If a segment is missing, `append` returns
  what it has done, with the reason in the caller's own `stage.need`;
- what is larger than a segment is refused there as well. Callers see to it that none is staged:
  calls by `limits.py`, services by leaving out a copy that does not fit.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import numpy as np

from timerstore.jit.crc import crc32
from timerstore.jit.intrinsics import (
    copy_bytes,
    load_acquire,
    put_i32,
    put_i64,
    store_release,
    touch,
    view_bytes,
    zero_bytes,
)
from timerstore.jit.kernel import inlined
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.mapping import PAGE_BYTES, Lent, lazy_zeros, lent_bytes, new_lent
from timerstore.jit.record import LINE, Bytes, Int32s, Words, observe, publish, record
from timerstore.jit.system import open_pages
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import put_blank
from timerstore.timelog.bytes.limits import fits_segment
from timerstore.timelog.bytes.message import stored_at
from timerstore.timelog.bytes.text import put_crc_digits, put_hex_12
from timerstore.timelog.files.segmenttable import (
    TABLE_LENGTH,
    SegmentTable,
    can_close,
    can_write,
    segment_at,
    write_stop,
)
from timerstore.timelog.writing.tally import Counted, Tally, count_change, new_tally

BATCH_BYTES: Final = 64 << 10
"""One append at most, unless a single message is larger: it fits the second-level cache, and holds
the append lock for some 50 µs."""
STAGE_BYTES: Final = fmt.MESSAGE_BYTES_MAX + BATCH_BYTES + 1024
STAGE_COUNT_MAX: Final = 1_024
QUEUE_COUNT_MAX: Final = 1 << 14
"""Consume queues that one store can have; a row of `QueueTable` each."""

# Columns of `QueueTable.told`.
TOLD_INDEX: Final = 0  # in the timer topic's queue, −1 while the others are written
TOLD_MESSAGE: Final = 1
TOLD_DUE_MS: Final = 2
TOLD_SIZE_HASH: Final = 3  # size << 32 | hash; of a delete with the size below 0
TOLD_COLUMNS: Final = 4
TOLD_COUNT: Final = 1 << 15
"""A megabyte: of what was framed last stays in the cache what enqueue-get wants next. What was
overwritten before it came is read from the log."""
NOT_TOLD: Final = -1

NEED_NOTHING: Final = 0
NEED_COMMITLOG: Final = 1
NEED_QUEUE: Final = 2
NEED_SMALLER: Final = 3
"""The message after those that were done is larger than a segment; nothing can be made for it."""


@record
class QueueTable:
    """All consume queues, a row each. Row 0 is the timer topic's."""

    next_index: Words  # int64[QUEUE_COUNT_MAX]: index behind the last whole entry
    planned: Words  # int64[QUEUE_COUNT_MAX]: the same, ahead while the appender works
    keyless_from: Words  # int64[QUEUE_COUNT_MAX]: no entry from this index on has a key
    lent: Lent  # the segments being written, see `queue_place`
    number: Words  # int64[places]: which segment that is
    allocated: Words  # int64[places]: up to this index it has its blocks; 0 for no segment
    opened: Words  # int64[places]: up to this index its pages were opened lately
    pending: Words  # int64[2 * QUEUE_COUNT_MAX]: timers pending for this queue, then in levels
    tally: Tally  # a row for each queue, with what is in levels for it
    name: Bytes  # uint8[QUEUE_COUNT_MAX * 256]: topic
    name_bytes: Int32s  # int32[QUEUE_COUNT_MAX]
    queue_id: Int32s  # int32[QUEUE_COUNT_MAX]
    lookup: Int32s  # int32[2 * QUEUE_COUNT_MAX]: open addressing by (topic, queue id), −1 free
    told: Words  # int64[TOLD_COUNT * TOLD_COLUMNS]: the newest timers, deletes, for enqueue-get
    segment_entries: int = 0
    places: int = 0
    """Of a row: how many of its segments may be mapped to be written, see `queue_place`."""
    count: int = 0
    stored_ms: Annotated[int, LINE] = 0
    """The stored time of the last message; it never falls."""


@record
class Stage:
    """Messages on their way into the log."""

    buffer: Bytes  # uint8[STAGE_BYTES]: the messages, one behind the other
    size: Int32s  # int32[STAGE_COUNT_MAX]
    row: Int32s  # int32[STAGE_COUNT_MAX]: queue of each
    tags_code: Words  # int64[STAGE_COUNT_MAX]
    key_at: Int32s  # int32[STAGE_COUNT_MAX]: where in the message the offset digits stand, or −1
    pending_row: Int32s  # int32[STAGE_COUNT_MAX]: whose pending count changes
    pending_change: Int32s  # int32[STAGE_COUNT_MAX]: by how much
    counted_ms: Words  # int64[STAGE_COUNT_MAX]: when the timer is due that is counted there
    born_ms: Words  # int64[STAGE_COUNT_MAX]: of that timer
    body_bytes: Int32s  # int32[STAGE_COUNT_MAX]: of that timer
    due_ms: Words  # int64[STAGE_COUNT_MAX]: of what enqueue-get need not read; or NOT_TOLD
    hash: Int32s  # int32[STAGE_COUNT_MAX]: Java's of its real topic
    keyed: Int32s  # int32[STAGE_COUNT_MAX]: 0 if it has no entry in the key index
    offset: Words  # int64[STAGE_COUNT_MAX]: out: commit log offset
    index: Words  # int64[STAGE_COUNT_MAX]: out: index in its queue
    need: int = 0
    """Out: why not all of it was appended, a NEED_ constant."""
    need_row: int = 0
    need_at: int = 0
    """Out: what there is no room for: a message's last byte in the log, or an index of that row."""


NAME_STRIDE: Final = 256
assert fmt.TOPIC_BYTES_READ_MAX < NAME_STRIDE


def new_queue_table(segment_entries: int) -> QueueTable:
    """Return an empty table; its pages are touched only as queues come.

    All that one append writes must be mapped at the same time. So a row has as many places as a
    stage of one queue's messages may touch segments: two, if a segment has 1,023 entries or more.
    """
    touched = 1 - -(STAGE_COUNT_MAX - 1) // segment_entries
    places = 1 << (touched - 1).bit_length()
    return QueueTable(
        lazy_zeros(QUEUE_COUNT_MAX),
        lazy_zeros(QUEUE_COUNT_MAX),
        lazy_zeros(QUEUE_COUNT_MAX),
        new_lent(places * QUEUE_COUNT_MAX),
        lazy_zeros(places * QUEUE_COUNT_MAX),
        lazy_zeros(places * QUEUE_COUNT_MAX),
        lazy_zeros(places * QUEUE_COUNT_MAX),
        lazy_zeros(2 * QUEUE_COUNT_MAX),
        new_tally(QUEUE_COUNT_MAX),
        lazy_zeros(NAME_STRIDE * QUEUE_COUNT_MAX, np.uint8),
        lazy_zeros(QUEUE_COUNT_MAX, np.int32),
        lazy_zeros(QUEUE_COUNT_MAX, np.int32),
        np.full(2 * QUEUE_COUNT_MAX, -1, np.int32),
        np.full(TOLD_COUNT * TOLD_COLUMNS, -1, np.int64),
        segment_entries=segment_entries,
        places=places,
    )


@inlined
def queue_place(queues: QueueTable, row: int, number: int) -> int:
    """Return the place of a queue's segment."""
    places = queues.places
    return row * places + (number & (places - 1))


def new_stage(count: int = STAGE_COUNT_MAX, length: int = STAGE_BYTES) -> Stage:
    """Return an empty stage."""
    return Stage(
        lazy_zeros(length + 64, np.uint8),
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
        np.zeros(count, np.int64),
        np.full(count, -1, np.int32),
        np.full(count, -1, np.int32),
        np.zeros(count, np.int32),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int32),
        np.full(count, NOT_TOLD, np.int64),
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )


@inlined
def _index_stop(queues: QueueTable, row: int, index: int) -> int:
    """Return the index up to which entries can be written from `index` on; `index` for none.

    Pages are opened as `can_write` does it for the logs.
    """
    entries = queues.segment_entries
    number = index // entries
    slot, first = queue_place(queues, row, number), number * entries
    allocated: int = load_acquire(queues.allocated, slot)  # before what it vouches for
    if queues.number[slot] != number or index >= allocated:
        return index
    if allocated == first + entries:
        return allocated
    opened: int = load_acquire(queues.opened, slot)
    if index >= opened:
        at = (index - first) * fmt.ENTRY_BYTES
        segment = lent_bytes(queues.lent, slot, entries * fmt.ENTRY_BYTES)
        if not open_pages(segment, at, fmt.ENTRY_BYTES):
            return index
        pages = (at + fmt.ENTRY_BYTES + PAGE_BYTES - 1) // PAGE_BYTES
        opened = first + pages * PAGE_BYTES // fmt.ENTRY_BYTES
        queues.opened[slot] = opened
    return min(allocated, opened)


@inlined
def _tell_need(stage: Stage, need: int, row: int, at: int) -> None:
    """Say why not all of a stage was appended."""
    stage.need, stage.need_row, stage.need_at = need, row, at


@inlined
def append(
    commitlog: SegmentTable,
    queues: QueueTable,
    lock: Words,
    stage: Stage,
    count: int,
    now_ms: int,
    together: bool,
) -> int:
    """Append `count` staged messages; return how many it did, from the first.

    Fewer than `count` were done if a segment, or its blocks, are missing, see `stage.need`; with
    `together` then none. O(bytes). `stage.offset` and `stage.index` say where the messages went.
    """
    _touch_ahead(commitlog, stage, count)
    lock_acquire(lock)
    stage.need = NEED_NOTHING
    segment_bytes = commitlog.segment_bytes
    if now_ms > queues.stored_ms:
        queues.stored_ms = now_ms
    stored_ms = queues.stored_ms
    end = commitlog.end

    # First find how many fit, and give each its place. A division costs as much as all the rest, so
    # the segment and the queue of the message before are remembered.
    done = 0
    at = end
    left = segment_bytes - end % segment_bytes
    stop = 0  # up to here the segment that the message before went to can be written to
    last_row, index_stop = -1, 0
    for i in range(count):
        row, size = stage.row[i], stage.size[i]
        start = at
        if size + fmt.SEALED_BLANK_BYTES > left:
            if not can_close(commitlog, at, fmt.SEALED_BLANK_BYTES):
                _tell_need(stage, NEED_COMMITLOG, row, at + min(fmt.SEALED_BLANK_BYTES, left) - 1)
                break
            start, left, stop = at + left, segment_bytes, 0
        last_byte = start + size + fmt.SEALED_BLANK_BYTES - 1
        if last_byte >= stop:
            if not fits_segment(segment_bytes, size):
                _tell_need(stage, NEED_SMALLER, row, last_byte)
                break  # all that is written lies inside a mapping, with anything that was staged
            if not can_write(commitlog, start, last_byte + 1):
                _tell_need(stage, NEED_COMMITLOG, row, last_byte)
                break
            stop = write_stop(commitlog, start)
        index = queues.planned[row]
        if row != last_row or index >= index_stop:
            last_row, index_stop = row, _index_stop(queues, row, index)
            if index >= index_stop:
                _tell_need(stage, NEED_QUEUE, row, index)
                break
        stage.offset[i] = start
        stage.index[i] = index
        queues.planned[row] = index + 1
        at = start + size
        left -= size
        done += 1
    if together and done < count:
        for i in range(done):
            queues.planned[stage.row[i]] -= 1
        done = 0
    if done == 0:
        lock_release(lock)
        return 0

    _clear_ahead(commitlog, end, at)
    _stamp(stage, done, stored_ms, now_ms)
    _write(commitlog, stage, done, end)
    _index(queues, stage, done)
    _tell(queues.told, stage, done)
    publish(commitlog, "end", stage.offset[done - 1] + stage.size[done - 1])
    for i in range(done):
        if stage.keyed[i] != 0:  # before who reads the index can come to it
            store_release(queues.keyless_from, stage.row[i], stage.index[i] + 1)
        store_release(queues.next_index, stage.row[i], stage.index[i] + 1)
        if stage.pending_row[i] >= 0:
            queues.pending[stage.pending_row[i]] += stage.pending_change[i]
    _count(queues, stage, done, stored_ms, now_ms)
    lock_release(lock)
    return done


@inlined
def _count(queues: QueueTable, stage: Stage, count: int, stored_ms: int, now_ms: int) -> None:
    """Count what messages do to the timers of their topics."""
    for i in range(count):
        row = stage.pending_row[i]
        if row >= 0:
            in_level = row >= QUEUE_COUNT_MAX and stage.pending_change[i] > 0
            count_change(
                queues.tally,
                row & (QUEUE_COUNT_MAX - 1),
                stage.pending_change[i],
                stage.row[i] == 0,
                Counted(stage.counted_ms[i], stage.born_ms[i], stage.body_bytes[i]),
                now_ms if in_level else stored_ms,
            )


@inlined
def _touch_page(commitlog: SegmentTable, at: int) -> None:
    """Fault in a page that can be written to; its segment may be dropped just now."""
    segment = segment_at(commitlog, at)
    if len(segment) > 0 and at < write_stop(commitlog, at):
        touch(segment, at % commitlog.segment_bytes)


@inlined
def _touch_ahead(commitlog: SegmentTable, stage: Stage, count: int) -> None:
    """Fault in the pages that the messages will likely go to, before the lock is taken.

    A fresh page costs a microsecond or more; under the lock, all who append would wait for it.
    """
    length = 0
    for i in range(count):
        length += stage.size[i]
    offset = observe(commitlog, "end")
    for at in range(offset + PAGE_BYTES, offset + length + PAGE_BYTES, PAGE_BYTES):
        _touch_page(commitlog, at)
    segment_bytes = commitlog.segment_bytes
    number = offset // segment_bytes
    zeroed = load_acquire(commitlog.zeroed, number & (TABLE_LENGTH - 1))
    if offset + length + commitlog.apron > zeroed:  # what `_clear_ahead` will zero
        stop = min(zeroed + commitlog.apron, (number + 1) * segment_bytes)
        for at in range(zeroed, stop, PAGE_BYTES):
            _touch_page(commitlog, at)


@inlined
def _clear_ahead(commitlog: SegmentTable, start: int, stop: int) -> None:
    """Zero the apron of messages that go from `start` to `stop`, if old bytes may lie there.

    That is so in a segment that is used again, which has all its blocks. An apron is zeroed at
    once: it stays in the cache until the messages come. What of the apron falls into the next
    segment was zeroed before that one was mapped; of a segment that is closed here all the rest is
    zeroed.
    """
    segment_bytes = commitlog.segment_bytes
    last = stop // segment_bytes
    for number in range(start // segment_bytes, last + 1):
        slot = number & (TABLE_LENGTH - 1)
        zeroed = commitlog.zeroed[slot]
        end = (number + 1) * segment_bytes
        wanted = min(end, stop + commitlog.apron) if number == last else end
        if zeroed < wanted:
            wanted = min(end, max(wanted, zeroed + commitlog.apron))
            segment = segment_at(commitlog, number * segment_bytes)
            zero_bytes(segment, segment_bytes - (end - zeroed), wanted - zeroed)
            store_release(commitlog.zeroed, slot, wanted)


@inlined
def _stamp(stage: Stage, count: int, stored_ms: int, now_ms: int) -> None:
    """Fill in what depends on the message's place.

    A delay level's message is due a level after it was stored; so that this is a level after the
    clock's now, it is stored at the clock's now, also if that went back.
    """
    at = 0
    for i in range(count):
        put_i64(stage.buffer, at + fmt.MESSAGE_QUEUE_INDEX_AT, stage.index[i])
        put_i64(stage.buffer, at + fmt.MESSAGE_OFFSET_AT, stage.offset[i])
        place, when_ms = stage.offset[i], stored_ms
        if stage.tags_code[i] > fmt.TAGS_HASH_MAX:
            place, when_ms = place | fmt.LEVEL_MARK, now_ms
        put_i64(stage.buffer, stored_at(stage.buffer, at), when_ms)
        if stage.key_at[i] >= 0:
            put_hex_12(stage.buffer, at + stage.key_at[i], place)
        at += stage.size[i]


@inlined
def _write(commitlog: SegmentTable, stage: Stage, count: int, end: int) -> None:
    """Seal each message with its CRC and copy it to its place.

    This is a pass of its own: a CRC's wide loads right behind `_stamp`'s narrow stores would wait
    for the store buffer (92 against 77 ns for each message).
    """
    at = 0
    segment_bytes = commitlog.segment_bytes
    base, segment = 0, segment_at(commitlog, -1)  # that of the message before
    for i in range(count):
        size = stage.size[i]
        offset = stage.offset[i]
        covered = size - fmt.CRC_PROPERTY_BYTES
        code = crc32(stage.buffer, at, covered) & fmt.BODY_CRC_MASK
        put_crc_digits(stage.buffer, at + size - 11, code)
        if offset != end:  # the one before did not reach up to here: close its segment
            last = segment_at(commitlog, end)
            position = end % segment_bytes
            if position != 0 and len(last) != 0:
                put_blank(last, position, end)
        position = offset - base
        if position >= len(segment):
            segment = segment_at(commitlog, offset)
            position = offset % segment_bytes
            base = offset - position
        copy_bytes(segment, position, stage.buffer, at, size)
        end = offset + size
        at += size


@inlined
def _index(queues: QueueTable, stage: Stage, count: int) -> None:
    """Write the consume queue entries."""
    entries = queues.segment_entries
    last_row, first = -1, 0
    segment = view_bytes(0, 0)
    for i in range(count):
        row, index = stage.row[i], stage.index[i]
        if row != last_row or index >= first + entries:
            number = index // entries
            last_row, first = row, number * entries
            place = queue_place(queues, row, number)
            segment = lent_bytes(queues.lent, place, entries * fmt.ENTRY_BYTES)
        at = (index - first) * fmt.ENTRY_BYTES
        put_i64(segment, at + fmt.ENTRY_OFFSET_AT, stage.offset[i])
        put_i32(segment, at + fmt.ENTRY_SIZE_AT, stage.size[i])
        put_i64(segment, at + fmt.ENTRY_TAGS_AT, stage.tags_code[i])


@inlined
def _tell(told: Words, stage: Stage, count: int) -> None:
    """Say of new timers, and of deletes, what enqueue-get would have to read in the log."""
    for i in range(count):
        if stage.row[i] != 0 or stage.due_ms[i] == NOT_TOLD:
            continue
        index = stage.index[i]
        at = (index & (TOLD_COUNT - 1)) * TOLD_COLUMNS
        store_release(told, at + TOLD_INDEX, -1)
        store_release(told, at + TOLD_MESSAGE, stage.offset[i])
        store_release(told, at + TOLD_DUE_MS, stage.due_ms[i])
        size, code = np.int64(stage.size[i]), np.int64(stage.hash[i])
        if stage.pending_change[i] < 0:
            size = -size
        packed: Any = size << 32 | code & 0xFFFFFFFF
        store_release(told, at + TOLD_SIZE_HASH, packed)
        store_release(told, at + TOLD_INDEX, index)
