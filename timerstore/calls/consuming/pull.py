"""Pulling: kernels that turn a run of queue entries into columns."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from timerstore.jit.intrinsics import (
    as_word,
    copy_bytes,
    get_i32,
    get_i64,
    get_u8,
    get_word,
    prefetch,
    put_half_word,
    put_u8,
    put_word,
)
from timerstore.jit.kernel import caller_on, inlined, kernel_ahead
from timerstore.jit.mapping import Lent, lend, lent_bytes, new_lent
from timerstore.jit.record import Bytes, Rows, Words, observe, record, record_at
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import NEVER, read_expires_ms
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
from timerstore.timelog.reading.scan import stands_there

_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
_AHEAD: Final = 12
_AHEAD_BYTES: Final = 448
PULL_UNMAPPED: Final = -1
PULL_NO_ROOM: Final = -2
"""There is no room for bodies or ids: a producer may make each as long as a message."""

# What an entry of a queue turned out to stand for.
PULL_SOUND: Final = 0
PULL_DAMAGED: Final = 1  # a message that cannot be read
PULL_STRAY: Final = 2  # a message of another queue, of another place in this one, or size
PULL_EXPIRED: Final = 4  # a message that expired
PULL_WILD: Final = 3  # nothing: it points past the log's end, or says less than nothing

# Rows of the numbers of a run, a column each.
RUN_INDEX: Final = 0
RUN_OFFSET: Final = 1
RUN_DUE_MS: Final = 2
RUN_FIRED_MS: Final = 3
RUN_TAGS: Final = 4
RUN_COLUMNS: Final = 5

# A timer that we fired begins its properties with these two, each with a value of one length.
_DUE = as_word(fmt.PROPERTY_DUE)
_DUE_END = as_word((fmt.PROPERTY_DUE + b"\x01")[-8:])
_KEY = as_word(fmt.PROPERTY_UNIQUE_KEY)
_DUE_BYTES: Final = len(fmt.PROPERTY_DUE) + 1 + 13 + 1
_KEY_AT: Final = _DUE_BYTES + len(fmt.PROPERTY_UNIQUE_KEY) + 1
_TAG_AT: Final = _KEY_AT + fmt.KEY_DIGITS - 8
_OURS_BYTES: Final = _KEY_AT + fmt.KEY_DIGITS + 1
assert len(fmt.PROPERTY_DUE) == 12 and len(fmt.PROPERTY_UNIQUE_KEY) == 8


# Places of what is lent to a pull.
_ENTRIES: Final = 0
_TOPIC: Final = 1
_BLOCK: Final = 2
READY_BLOCK: Final = 3  # the puller's own
READY_BYTES: Final = 64 << 10
"""Of that block."""
# What is told of where the messages of a run lie.
READY_LOW: Final = 0
READY_HIGH: Final = 1
READY_MESSAGE_BYTES: Final = 2
# And of what the ready way of a pull did (`timerstore/calls/consuming/ready.py`).
READY_QUEUE: Final = 3
READY_START: Final = 4
READY_PULLED_US: Final = 5
READY_COUNT: Final = 6  # of what was handed out; its caller takes it back to 0
READY_SEGMENT: Final = 7
READY_EXPIRES_MS: Final = 8  # when the first of a run expires; NEVER: none does
_READY_WORDS: Final = 9


@record
class PullPlace:
    """What one pull at a time works on."""

    commitlog: SegmentTable
    found: MessageParts  # scratch
    lent: Lent  # 4 of them
    told: Words  # int64[_READY_WORDS], out
    tag: int = 0
    precision_ms: int = 0
    now_ms: int = 0  # what expires before is passed by


_place_at = record_at(PullPlace)


def columns_bytes(count: int, id_bytes: int, body_bytes: int) -> int:
    """Return how long a block is for `count` messages with so many bytes of ids and bodies."""
    return 8 * RUN_COLUMNS * count + 8 * (count + 1) + count + id_bytes + body_bytes


class Columns:
    """What a pull fills: columns, side by side in one block of memory.

    All but the verdicts have a place for each sound message. The bodies stand last: what is asked
    for bounds them from above, and what is not written to takes no memory.
    """

    __slots__ = ("block", "bodies_at", "count", "ends_at", "ids_at", "verdicts_at")

    def __init__(self, block: Bytes, count: int, id_bytes: int) -> None:
        """Lay out columns for `count` messages with so many bytes of ids; the rest is for bodies.

        `block`: aligned to 8, see `columns_bytes`.
        """
        self.count = count
        self.ends_at = ends_at = 8 * RUN_COLUMNS * count
        self.verdicts_at = verdicts_at = ends_at + 8 * (count + 1)
        self.ids_at = ids_at = verdicts_at + count
        self.bodies_at = ids_at + id_bytes
        self.block = block

    def pieces(self, count: int) -> tuple[list[bytes], list[int], list[int]]:
        """Return bodies, due times and times of firing of the first `count` messages.

        Each body is copied. For few messages that costs a tenth of what Arrow would cost. O(bytes).
        """
        block, at = self.block.data, self.bodies_at
        ends = block[self.ends_at : self.ends_at + 4 * (count + 1)].cast("i").tolist()
        whole = block[at : at + ends[count]].tobytes()
        numbers = block[: self.verdicts_at].cast("q")
        due_at, fired_at = RUN_DUE_MS * self.count, RUN_FIRED_MS * self.count
        return (
            [whole[start:stop] for start, stop in pairwise(ends)],
            numbers[due_at : due_at + count].tolist(),
            numbers[fired_at : fired_at + count].tolist(),
        )

    @property
    def numbers(self) -> Rows:
        """int64[RUN_COLUMNS, n]."""
        return np.ndarray((RUN_COLUMNS, self.count), np.int64, self.block)

    def arrow_bodies(self, count: int) -> Any:
        """Return the first `count` bodies, an Arrow array; no byte is copied."""
        block = pa.py_buffer(self.block)  # one, cut by Arrow: a slice of NumPy's costs more
        ends = block.slice(self.ends_at, 4 * (self.count + 1))
        return pa.Array.from_buffers(_BINARY, count, [None, ends, block.slice(self.bodies_at)])

    def arrow_ids(self, count: int) -> Any:
        """Return the first `count` ids, the same way."""
        block, ends_bytes = pa.py_buffer(self.block), 4 * (self.count + 1)
        ends = block.slice(self.ends_at + ends_bytes, ends_bytes)
        ids = block.slice(self.ids_at, self.bodies_at - self.ids_at)
        return pa.Array.from_buffers(_STRING, count, [None, ends, ids])

    @property
    def verdicts(self) -> Bytes:
        """uint8[n]: what each entry turned out to stand for."""
        return self.block[self.verdicts_at : self.ids_at]


@inlined
def _measure(place: PullPlace, entries: Bytes, at: int, count: int) -> None:
    """Find where the messages of `count` entries lie; the first stands at `at`. O(count)."""
    end, segment_bytes = observe(place.commitlog, "end"), place.commitlog.segment_bytes
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
    told = place.told
    told[READY_LOW] = low
    told[READY_HIGH] = high
    told[READY_MESSAGE_BYTES] = max(
        0, min(total, stop - low)
    )  # those that are sound do not overlap


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
    if get_u8(buf, at + _DUE_BYTES - 1) != fmt.VALUE_END:
        return False
    ends: int = get_u8(buf, at + _OURS_BYTES - 1)
    return ends == fmt.VALUE_END


@inlined
def _put_ends(block: Bytes, at: int, count: int, i: int, body_end: int, id_end: int) -> None:
    put_half_word(block, at + 4 * i, body_end)
    put_half_word(block, at + 4 * (count + 1 + i), id_end)


class QueueRun(NamedTuple):
    """A run of queue entries."""

    entries: Bytes
    at: int  # where in `entries` the first stands
    start: int  # its index
    entry_count: int
    topic: Bytes
    queue_id: int


class Room(NamedTuple):
    """Where columns are, see `Columns`."""

    block: Bytes
    ends_at: int
    ids_at: int
    bodies_at: int


@inlined
def pull_run(place: PullPlace, run: QueueRun, room: Room) -> int:
    """Read the messages of a run of queue entries; return how many are sound. O(bytes).

    Or PULL_UNMAPPED, or PULL_NO_ROOM. In any case it is told where they lie.

    Each message's CRC is checked, and that it says of itself that it stands there: a queue's file
    in another one's place would hand out what is still pending. A message without a due time is
    due when it was stored.
    """
    entries, at, start, count, topic, queue_id = run
    block, ends_at, ids_at, bodies_at = room
    commitlog, found, tag = place.commitlog, place.found, place.tag
    verdicts_at = ids_at - count
    _measure(place, entries, at, count)
    if place.told[READY_MESSAGE_BYTES] > len(block) - bodies_at:
        return PULL_NO_ROOM
    sound, body_end, id_end, first_ms = 0, 0, 0, NEVER
    _put_ends(block, ends_at, count, 0, 0, 0)
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
            put_u8(block, verdicts_at + k, PULL_WILD)
            continue
        position = offset - base
        if position < 0 or position >= len(buf):
            buf = segment_at(commitlog, offset)
            if len(buf) == 0:
                return PULL_UNMAPPED
            position = offset % segment_bytes
            base = offset - position
        is_sound = read_frame(buf, position, found) == GOOD and check_crc(buf, found)
        if not is_sound or get_i64(buf, position + fmt.MESSAGE_OFFSET_AT) != offset:
            put_u8(block, verdicts_at + k, PULL_DAMAGED)
            continue
        if found.size != size or not stands_there(buf, position, found, topic, queue_id, start + k):
            put_u8(block, verdicts_at + k, PULL_STRAY)
            continue
        expires_ms = read_expires_ms(buf, found)
        if expires_ms < place.now_ms:
            put_u8(block, verdicts_at + k, PULL_EXPIRED)
            continue
        first_ms = min(first_ms, expires_ms)
        put_u8(block, verdicts_at + k, PULL_SOUND)
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
                due_ms = exact_due_ms(buf, found, tag, place.precision_ms)
        if found.body_bytes > 0:
            copy_bytes(block, bodies_at + body_end, buf, found.body_at, found.body_bytes)
            body_end += found.body_bytes
        if found.key_bytes > 0:
            if ids_at + id_end + found.key_bytes > bodies_at:
                return PULL_NO_ROOM
            copy_bytes(block, ids_at + id_end, buf, found.key_at, found.key_bytes)
            id_end += found.key_bytes
        put_word(block, 8 * (RUN_INDEX * count + sound), start + k)
        put_word(block, 8 * (RUN_OFFSET * count + sound), offset)
        put_word(block, 8 * (RUN_DUE_MS * count + sound), due_ms)
        put_word(block, 8 * (RUN_FIRED_MS * count + sound), fired_ms)
        tags = get_i64(entries, entry + fmt.ENTRY_TAGS_AT)
        put_word(block, 8 * (RUN_TAGS * count + sound), tags)
        sound += 1
        _put_ends(block, ends_at, count, sound, body_end, id_end)
    place.told[READY_EXPIRES_MS] = first_ms
    return sound


@kernel_ahead
def _pull(
    address: int,
    at: int,
    start: int,
    count: int,
    topic_bytes: int,
    queue_id: int,
    ends_at: int,
    ids_at: int,
    bodies_at: int,
    block_bytes: int,
) -> int:
    place = _place_at(address)
    entries = lent_bytes(place.lent, _ENTRIES, at + count * fmt.ENTRY_BYTES)
    topic = lent_bytes(place.lent, _TOPIC, topic_bytes)
    block = lent_bytes(place.lent, _BLOCK, block_bytes)
    run = QueueRun(entries, at, start, count, topic, queue_id)
    return pull_run(place, run, Room(block, ends_at, ids_at, bodies_at))


@inlined
def durable_count(entries: Bytes, at: int, count: int, durable_end: int) -> int:
    """Return before which of some entries all messages are durable. O(log count).

    `at`: where the first stands. They point ever further on.
    """
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        entry = at + middle * fmt.ENTRY_BYTES
        offset = get_i64(entries, entry + fmt.ENTRY_OFFSET_AT)
        if offset + get_i32(entries, entry + fmt.ENTRY_SIZE_AT) <= durable_end:
            low = middle + 1
        else:
            high = middle
    return low


@kernel_ahead
def _durable_count(address: int, at: int, count: int, durable_end: int) -> int:
    entries = lent_bytes(_place_at(address).lent, _ENTRIES, at + count * fmt.ENTRY_BYTES)
    return durable_count(entries, at, count, durable_end)


class Puller:
    """Pulls runs of one log; one at a time."""

    def __init__(self, commitlog: SegmentTable, tag: int, precision_ms: int) -> None:
        """`tag`: of the store. Each call is inside a block that borrows the table."""
        told = np.zeros(_READY_WORDS, np.int64)
        self.place = PullPlace(
            *(commitlog, MessageParts(), new_lent(4), told), tag=tag, precision_ms=precision_ms
        )
        self.number = -1
        """In the ready way of a group; −1: it is not for that."""
        self.told = told.data  # Python reads it faster
        self.renew_block()
        self._call = caller_on(_pull, self.place)
        self._durable_count = caller_on(_durable_count, self.place)
        self._topic: Bytes | None = None  # that is lent

    def pull(
        self,
        entries: Bytes,
        at: int,
        start: int,
        topic: Bytes,
        queue_id: int,
        into: Columns,
        now_ms: int = 0,
    ) -> int:
        """Read the messages of entries of a topic's queue into columns, as many as these are for.

        `at`: where the first stands in `entries`; `start`: its index. Return how many are sound, or
        PULL_UNMAPPED, or PULL_NO_ROOM. The caller holds what it reads. O(bytes).

        What expired before `now_ms` is not sound.
        """
        lent, block = self.place.lent, into.block
        self.place.now_ms = now_ms
        lend(lent, _ENTRIES, entries)
        if topic is not self._topic:
            lend(lent, _TOPIC, topic)
            self._topic = topic
        lend(lent, _BLOCK, block)
        return self._call(
            *(at, start, into.count, len(topic), queue_id),
            *(into.ends_at, into.ids_at, into.bodies_at, len(block)),
        )

    def durable_count(self, entries: Bytes, at: int, count: int, durable_end: int) -> int:
        """Return before which of `count` entries all messages are durable; 0: the first is not.

        The commit log is durable up to `durable_end`. O(log count).
        """
        lend(self.place.lent, _ENTRIES, entries)
        return self._durable_count(at, count, durable_end)

    def renew_block(self) -> None:
        """Take another block for the ready way: somebody still refers to the one before."""
        self.kept = [np.empty(READY_BYTES, np.uint8)]
        lend(self.place.lent, READY_BLOCK, self.kept[0])

    def found(self) -> tuple[int, int, int]:
        """Return where the messages of the last run lie, and how many bytes they have at most.

        The lowest offset, and one more than the highest, which is not above it if there is no
        message.
        """
        told = self.told
        return told[READY_LOW], told[READY_HIGH], told[READY_MESSAGE_BYTES]
