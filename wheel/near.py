"""The near wheel: the timers of the claimed slots, in memory, by exact millisecond.

Two rings of buckets, one bucket for each millisecond. What falls due, and what was put a moment
ago, is in the first; what was owed by a slot, see `services/pipeline/dequeue_get.py`, is in the
second, so that the one does not wait for the other. A ring spans SPAN slots; timers that are due
further from each other may share a bucket, and each stays there until its own time. What was
overdue behind its slot is in a bucket of its own. A plain delete waits, beside the buckets, in its
slot's list until the read cursor comes to the slot.

    ├┬┬┬┬┬┬┬┬┼┬┬┬┬┬┬┬┬┬┬┼┬┬┬┤
      └ bucket: chunk → chunk      (each up to CHUNK_ENTRIES of due, message offset, info)

Each claimed slot, from the read cursor to before the claim cursor, has a place in the columns: its
number modulo their length.

A bucket is a linked list of chunks, in the order of arrival. Single nodes would be a cache miss
each, because a slot's timers come in no order of due time (174 ns to take one). Chunks live
in a pool whose pages are touched only as they are needed, so its length is a limit and costs only
addresses: an eighth of those that `ulimit -v` allows, at most. It belongs to dequeue-get; all calls
happen under the near lock.
"""

from __future__ import annotations

import mmap
import resource
from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.intrinsics import prefetch
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.mapping import lazy_zeros
from timerstore.jit.record import Words, record
from timerstore.jit.system import release_words
from timerstore.wheel.cancelled import place_among

SPAN: Final = 8
"""Slots of which a ring holds timers at once, mostly."""
SLOT_PLACES_MAX: Final = 1 << 24
FRONT: Final = 0
"""The ring of what falls due, and of what was put a moment ago."""
OWED: Final = 1
"""The ring of what was owed."""
NONE: Final = 0
"""No chunk: the first one is never used."""
NO_DELETE: Final = -1
ANY_TIME: Final = -1

# A chunk: 256 bytes, four cache lines.
CHUNK_NEXT: Final = 0
CHUNK_RANGE: Final = 1  # its entries are [start, stop): start | stop << 32
CHUNK_HEAD: Final = 2
CHUNK_ENTRIES: Final = 10
ENTRY_DUE: Final = 0  # ms: when it is due; of a roll: its slot's start
ENTRY_MESSAGE: Final = 1  # commit log offset
ENTRY_INFO: Final = 2  # message size << 32 | slot's place << 8 | unit magic
ENTRY_WORDS: Final = 3
CHUNK_WORDS: Final = CHUNK_HEAD + CHUNK_ENTRIES * ENTRY_WORDS
assert CHUNK_WORDS == 32
INFO_MAGIC_BITS: Final = 0xFF

NO_COPY: Final = 1 << 62
_ADDRESSES_SHARE: Final = 8


@record
class NearWheel:
    """The near wheel as kernels see it."""

    head: Words  # int64[2 * ring + 2]: first chunk of each bucket, or NONE
    tail: Words  # int64[2 * ring + 2]
    chunks: Words  # int64[CHUNK_WORDS * limit]
    popped: Words  # int64[ENTRY_WORDS]: the entry that was taken out last
    # Of claimed slots, int64[places] each. The three counts are of units that came since the store
    # was opened, and are never cleared: the read cursor passes a slot once late + chain = settled.
    # What is marked * is set by `near_begin_slot`, and means nothing of other slots.
    waiting: Words  # its entries in buckets. By dequeue-get
    deletes: Words  # first chunk of its plain deletes, or NONE. By dequeue-get
    chain: Words  # units that claiming found in its chain. By dequeue-get
    late: Words  # units linked after it was claimed. By enqueue-put, under wheel
    settled: Words  # units that are done with. By dequeue-put
    first_copy: Words  # * offset of the first copy made of one of its messages. By dequeue-put
    first_hop: Words  # * timer log offset of the first unit that a hop from it linked. Under wheel
    owed: Words  # * the unit at which its claim goes on; NO_UNIT: its chain was walked, or is cut
    below: Words  # * units of it before this offset were not met yet. By dequeue-get
    cut: Words  # like `below`, if damage cuts its chain; else 0. By dequeue-get
    free: int = NONE
    """First chunk of the free list."""
    used: int = 1
    """Chunks that were ever taken from the pool, and the one that never is."""
    count: int = 0
    """Entries in buckets."""
    owed_count: int = 0
    """Of these, in the second ring."""
    let_go_place: int = 0
    """The place whose deletes were let go last, because there was no room."""


def new_near_wheel(precision_ms: int, count_max: int, slot_count: int) -> NearWheel:
    """Return an empty near wheel for some `count_max` timers; at the least a chunk each bucket.

    For fewer where the process may not have any number of addresses. `slot_count`: so many slots
    can be claimed at once. Of places that are not used no page is touched.
    """
    ring = 1
    while ring < (SPAN + 2) * precision_ms:
        ring *= 2
    bucket_count = 2 * (ring + 1)
    least_count, chunk_count = bucket_count + 3, 2 * count_max // CHUNK_ENTRIES
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        chunk_count = min(chunk_count, addresses // _ADDRESSES_SHARE // (CHUNK_WORDS * 8))
    place_count = SPAN
    while place_count < slot_count:
        place_count *= 2
    return NearWheel(
        lazy_zeros(bucket_count),
        lazy_zeros(bucket_count),
        lazy_zeros(CHUNK_WORDS * (least_count + chunk_count)),
        np.zeros(ENTRY_WORDS, np.int64),
        *lazy_zeros(10 * place_count).reshape(10, -1),
    )


PAGE_PLACES: Final = mmap.PAGESIZE // 8
"""Places of which a column has a page."""


@inlined
def give_back_page(near: NearWheel, place: int) -> None:
    """Give back the memory of PAGE_PLACES places from `place` on, of which none is in use."""
    for column in (near.waiting, near.deletes, near.chain, near.late, near.settled):
        release_words(column, place, PAGE_PLACES)
    for column in (near.first_copy, near.first_hop, near.owed, near.below, near.cut):
        release_words(column, place, PAGE_PLACES)


@inlined
def slot_place(near: NearWheel, slot: int) -> int:
    """Return the place of a claimed slot."""
    return slot & (len(near.waiting) - 1)


@inlined
def near_begin_slot(near: NearWheel, slot: int, last: int, end: int) -> None:
    """Begin with a slot that is claimed: its last unit, the timer log's end. Under wheel."""
    place = slot_place(near, slot)
    near.first_copy[place] = near.first_hop[place] = NO_COPY
    near.owed[place] = last
    near.below[place] = end


@inlined
def ring_buckets(near: NearWheel) -> int:
    """Return how many buckets a ring has, beside that of what was overdue."""
    return len(near.head) // 2 - 1


@inlined
def ring_count(near: NearWheel, ring: int) -> int:
    """Return how many entries a ring has."""
    return near.owed_count if ring == OWED else near.count - near.owed_count


@inlined
def bucket_at(near: NearWheel, ms: int, ring: int) -> int:
    """Return the index of a millisecond's bucket in `head` and `tail`."""
    count = ring_buckets(near)
    return (ms & (count - 1)) + (count + 1) * ring


@inlined
def overdue_bucket(near: NearWheel, ring: int) -> int:
    """Return the index of the bucket of a ring's timers that were overdue behind their slots."""
    count = ring_buckets(near)
    return count + (count + 1) * ring


@inlined
def pack_info(size: int, place: int, magic: int) -> int:
    """Return an entry's info."""
    return (size << 32) | (place << 8) | (magic & INFO_MAGIC_BITS)


@inlined
def info_size(info: int) -> int:
    """Return the message's size."""
    return info >> 32


@inlined
def info_place(info: int) -> int:
    """Return the slot's place."""
    return (info >> 8) & (SLOT_PLACES_MAX - 1)


def place_of(info: int) -> int:
    """Return the slot's place, for Python."""
    return (info >> 8) & (SLOT_PLACES_MAX - 1)


# --- chunks


@inlined
def near_room(near: NearWheel) -> int:
    """Return how many chunks can be taken at least; one holds an entry or more."""
    if near.free != NONE:
        return 1
    return len(near.chunks) // CHUNK_WORDS - near.used


def is_full(near: NearWheel) -> bool:
    """Tell whether no chunk can be taken, for Python."""
    return near.free == NONE and near.used == len(near.chunks) // CHUNK_WORDS


@inlined
def _new_chunk(near: NearWheel, start: int, following: int) -> int:
    """Take a chunk from the pool, with no entries, to be filled from `start` on."""
    chunk = near.free
    if chunk != NONE:
        near.free = near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT]
    else:
        chunk = near.used
        near.used = chunk + 1
    near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT] = following
    _set_range(near, chunk, start, start)
    return chunk


@inlined
def _free_chunk(near: NearWheel, chunk: int) -> None:
    near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT] = near.free
    near.free = chunk


@inlined
def _start(near: NearWheel, chunk: int) -> int:
    return near.chunks[chunk * CHUNK_WORDS + CHUNK_RANGE] & 0xFFFFFFFF


@inlined
def _stop(near: NearWheel, chunk: int) -> int:
    return near.chunks[chunk * CHUNK_WORDS + CHUNK_RANGE] >> 32


@inlined
def _set_range(near: NearWheel, chunk: int, start: int, stop: int) -> None:
    near.chunks[chunk * CHUNK_WORDS + CHUNK_RANGE] = start | (stop << 32)


@inlined
def _entry(chunk: int, i: int) -> int:
    """Return the index of a chunk's entry in `chunks`."""
    return chunk * CHUNK_WORDS + CHUNK_HEAD + i * ENTRY_WORDS


@inlined
def _put_entry(near: NearWheel, at: int, due_ms: int, message: int, info: int) -> None:
    near.chunks[at + ENTRY_DUE] = due_ms
    near.chunks[at + ENTRY_MESSAGE] = message
    near.chunks[at + ENTRY_INFO] = info


@inlined
def _pop_entry(near: NearWheel, at: int) -> None:
    near.popped[ENTRY_DUE] = near.chunks[at + ENTRY_DUE]
    near.popped[ENTRY_MESSAGE] = near.chunks[at + ENTRY_MESSAGE]
    near.popped[ENTRY_INFO] = near.chunks[at + ENTRY_INFO]


# --- buckets


class NearTimer(NamedTuple):
    """A timer, as its unit says it."""

    due_ms: int
    message: int
    size: int
    slot: int
    magic: int
    ring: int


@inlined
def near_insert(
    near: NearWheel,
    bucket: int,
    timer: NearTimer,
    in_front: bool,
) -> None:
    """Put a timer into a bucket of its ring, see `bucket_at`; `near_room` must be positive. O(1).

    `in_front`: before all others of its bucket, as a chain is walked, newest first.
    """
    place = slot_place(near, timer.slot)
    info = pack_info(timer.size, place, timer.magic)
    chunk = near.head[bucket] if in_front else near.tail[bucket]
    if near.head[bucket] == NONE:
        chunk = _new_chunk(near, CHUNK_ENTRIES if in_front else 0, NONE)
        near.head[bucket] = chunk
        near.tail[bucket] = chunk
    if in_front:
        if _start(near, chunk) == 0:
            chunk = _new_chunk(near, CHUNK_ENTRIES, chunk)
            near.head[bucket] = chunk
        i = _start(near, chunk) - 1
        _set_range(near, chunk, i, _stop(near, chunk))
    else:
        if _stop(near, chunk) == CHUNK_ENTRIES:
            behind = _new_chunk(near, 0, NONE)
            near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT] = behind
            near.tail[bucket] = behind
            chunk = behind
        i = _stop(near, chunk)
        _set_range(near, chunk, _start(near, chunk), i + 1)
    _put_entry(near, _entry(chunk, i), timer.due_ms, timer.message, info)
    near.count += 1
    near.owed_count += timer.ring
    near.waiting[place] += 1


@inlined
def near_pop(near: NearWheel, bucket: int, until_ms: int) -> bool:
    """Take the first entry due by `until_ms` out of a bucket, into `popped`; False if none is.

    O(1), and O(what stands before it) if timers that are due later share the bucket.
    """
    before = NONE
    chunk = near.head[bucket]
    while chunk != NONE:
        start, stop = _start(near, chunk), _stop(near, chunk)
        behind = near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT]
        for i in range(start, stop):
            if near.chunks[_entry(chunk, i) + ENTRY_DUE] > until_ms:
                continue
            _pop_entry(near, _entry(chunk, i))
            if start + 1 == stop:
                if before == NONE:
                    near.head[bucket] = behind
                else:
                    near.chunks[before * CHUNK_WORDS + CHUNK_NEXT] = behind
                    if behind == NONE:
                        near.tail[bucket] = before
                _free_chunk(near, chunk)
            else:
                if i == 0:  # just begun: the chunk behind it will be wanted soon
                    for line in range(0, 8 * CHUNK_WORDS, 64):
                        prefetch(near.chunks, 8 * CHUNK_WORDS * behind + line)
                for at in range(_entry(chunk, i) - 1, _entry(chunk, start) - 1, -1):
                    near.chunks[at + ENTRY_WORDS] = near.chunks[at]
                _set_range(near, chunk, start + 1, stop)
            near.count -= 1
            if bucket > ring_buckets(near):
                near.owed_count -= 1
            near.waiting[info_place(near.popped[ENTRY_INFO])] -= 1
            return True
        before = chunk
        chunk = behind
    return False


@inlined
def near_first_due(near: NearWheel, bucket: int, now_ms: int, stop_ms: int) -> int:
    """Return the smallest due time in a bucket, or any up to now, `stop_ms` at most. O(bucket)."""
    chunk = near.head[bucket]
    while chunk != NONE and stop_ms > now_ms:
        for i in range(_start(near, chunk), _stop(near, chunk)):
            stop_ms = min(stop_ms, near.chunks[_entry(chunk, i) + ENTRY_DUE])
        chunk = near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT]
    return stop_ms


@inlined
def near_first_of(near: NearWheel, ring: int, stop_ms: int) -> int:
    """Return the smallest due time in a ring's buckets, `stop_ms` at most. O(buckets + entries)."""
    for ms in range(ring_buckets(near)):
        stop_ms = near_first_due(near, bucket_at(near, ms, ring), -1, stop_ms)
    return stop_ms


# --- deletes


@inlined
def near_insert_delete(near: NearWheel, message: int, size: int, place: int, magic: int) -> None:
    """Keep a plain delete until the read cursor passes its slot. O(1)."""
    chunk = near.deletes[place]
    if chunk == NONE or _stop(near, chunk) == CHUNK_ENTRIES:
        chunk = _new_chunk(near, 0, chunk)
        near.deletes[place] = chunk
    stop = _stop(near, chunk)
    _put_entry(near, _entry(chunk, stop), 0, message, pack_info(size, place, magic))
    _set_range(near, chunk, 0, stop + 1)


@inlined
def near_last_delete(near: NearWheel, place: int) -> int:
    """Return the message of one of a slot's deletes, or NO_DELETE. O(1)."""
    chunk = near.deletes[place]
    if chunk == NONE:
        return NO_DELETE
    return near.chunks[_entry(chunk, _stop(near, chunk) - 1) + ENTRY_MESSAGE]


@inlined
def near_drop_delete(near: NearWheel, place: int) -> None:
    """Forget the delete that `near_last_delete` returned. O(1)."""
    chunk = near.deletes[place]
    stop = _stop(near, chunk) - 1
    _set_range(near, chunk, 0, stop)
    if stop == 0:
        near.deletes[place] = near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT]
        _free_chunk(near, chunk)


@inlined
def near_has_room(near: NearWheel) -> bool:
    """Tell whether a unit fits; one that does not waits. O(1), O(places) if it is full of deletes.

    What falls due makes room. If no timer is left, deletes have taken all of it: then a chunk of
    any slot's is let go. Their targets stay in the cancelled set.
    """
    while near_room(near) <= 0 and near.count == 0:
        place, looked = near.let_go_place, 0
        while near.deletes[place] == NONE and looked < len(near.deletes):
            place = slot_place(near, place + 1)
            looked += 1
        near.let_go_place = place
        if near.deletes[place] == NONE:
            break
        near_drop_delete(near, place)
        near.chain[place] -= 1
    return near_room(near) > 0


# --- looking


@kernel_ahead
def list_entries(near: NearWheel, due_ms: Words, messages: Words) -> int:
    """Write each entry's due time and message; return how many. O(ring + entries).

    `due_ms`, `messages`: int64[n >= near.count], written.
    """
    count = 0
    for bucket in range(len(near.head)):
        count = _list_bucket(near, bucket, ANY_TIME, due_ms, messages, count)
    return count


@kernel_ahead
def list_due(
    near: NearWheel,
    wanted: Words,
    start: int,
    stop: int,
    precision_ms: int,
    due_ms: Words,
    messages: Words,
) -> int:
    """Write the entries that are due at some times, or where a slot starts; return how many.

    `wanted`: the times, in order, each once. `start`, `stop`: the slots. What was overdue behind
    its slot is written whatever its time is. `due_ms`, `messages`: int64[n >= near.count], written.
    O(times + slots + what shares their buckets); all entries are written if that is less work.
    """
    if len(wanted) + stop - start > ring_buckets(near):
        return list_entries(near, due_ms, messages)
    count = 0
    for ring in range(2):
        for i in range(len(wanted)):
            bucket = bucket_at(near, wanted[i], ring)
            count = _list_bucket(near, bucket, wanted[i], due_ms, messages, count)
        for slot in range(start, stop):
            slot_ms = slot * precision_ms
            place = place_among(wanted, slot_ms)
            if place == len(wanted) or wanted[place] != slot_ms:
                bucket = bucket_at(near, slot_ms, ring)
                count = _list_bucket(near, bucket, slot_ms, due_ms, messages, count)
        bucket = overdue_bucket(near, ring)
        count = _list_bucket(near, bucket, ANY_TIME, due_ms, messages, count)
    return count


@inlined
def _list_bucket(
    near: NearWheel, bucket: int, wanted_ms: int, due_ms: Words, messages: Words, count: int
) -> int:
    """Write those of a bucket that are due then, behind `count` others; return how many by now."""
    chunk = near.head[bucket]
    while chunk != NONE:
        for i in range(_start(near, chunk), _stop(near, chunk)):
            at = _entry(chunk, i)
            if wanted_ms == ANY_TIME or near.chunks[at + ENTRY_DUE] == wanted_ms:
                due_ms[count] = near.chunks[at + ENTRY_DUE]
                messages[count] = near.chunks[at + ENTRY_MESSAGE]
                count += 1
        chunk = near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT]
    return count
