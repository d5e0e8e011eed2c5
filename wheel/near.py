"""The near wheel: the timers of the claimed slots, in memory, by exact millisecond.

A ring of buckets, one for each millisecond. It spans SPAN slots, and the cursor C stays within
R + SPAN, so a bucket belongs to only one millisecond from R's on. While the clock, set back, is
behind R, what is due before R shares it with that millisecond; each stays there until its own time.
What was overdue when its slot had passed is in a bucket of its own. A plain delete waits, beside
the buckets, in its slot's list until R passes the slot.

There are two such rings, for two ranges of slots: what was put aside when the store was opened has
one of its own (`aside` is 1 for it, else 0), see `services/world/aside.py`.

    R·P                      C·P
     │ slot R │ slot R+1 │ … │ not claimed yet
     ├┬┬┬┬┬┬┬┬┼┬┬┬┬┬┬┬┬┬┬┼┬┬┬┤
      └ bucket: chunk → chunk      (each up to CHUNK_ENTRIES of due, message offset, info)

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

from timerstore.jit.host import MAP_NORESERVE
from timerstore.jit.intrinsics import prefetch
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.record import Words, record

SPAN: Final = 8
"""Slots of a range that can be claimed at once, a power of two; in normal running two are."""
KEPT_PLACE: Final = 2 * SPAN
"""The place of deletes that are kept until nothing is left of what was put aside."""
PLACES: Final = 3 * SPAN  # of slots, of slots that were put aside, and that one
NONE: Final = -1

# A chunk: 256 bytes, four cache lines.
CHUNK_NEXT: Final = 0
CHUNK_RANGE: Final = 1  # its entries are [start, stop): start | stop << 32
CHUNK_HEAD: Final = 2
CHUNK_ENTRIES: Final = 10
ENTRY_DUE: Final = 0  # ms: when it is due; of a roll: its slot's start
ENTRY_MESSAGE: Final = 1  # commit log offset
ENTRY_INFO: Final = 2  # message size << 16 | slot's place << 8 | unit magic
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
    # Of claimed slots, int64[PLACES] each. The three counts are of units that came since the store
    # was opened, and are never cleared: R passes a slot once late + chain = settled.
    waiting: Words  # its entries in buckets. By dequeue-get
    deletes: Words  # first chunk of its plain deletes, or NONE. By dequeue-get
    chain: Words  # units that claiming found in its chain. By dequeue-get
    late: Words  # units linked after it was claimed. By enqueue-put, under wheel
    settled: Words  # units that are done with. By dequeue-put
    first_copy: Words  # offset of the first copy made of one of its messages. By dequeue-put
    first_hop: Words  # timer log offset of the first unit that a hop from it linked. Under wheel
    free: int = NONE
    """First chunk of the free list."""
    used: int = 0
    """Chunks that were ever taken from the pool."""
    count: int = 0
    """Entries in buckets."""


def new_near_wheel(precision_ms: int, count_max: int) -> NearWheel:
    """Return an empty near wheel for some `count_max` timers; at the least a chunk each bucket.

    For fewer where the process may not have any number of addresses.
    """
    ring = 1
    while ring < (SPAN + 2) * precision_ms:
        ring *= 2
    bucket_count = 2 * ring + 2
    least_count, chunk_count = bucket_count + 2, 2 * count_max // CHUNK_ENTRIES
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        chunk_count = min(chunk_count, addresses // _ADDRESSES_SHARE // (CHUNK_WORDS * 8))
    # Anonymous memory without a reservation: pages come as they are touched. With one, the system
    # refuses to fork a process that has a few stores, because each would reserve gigabytes again.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    pool = mmap.mmap(-1, CHUNK_WORDS * 8 * (least_count + chunk_count), flags=flags)
    columns = np.zeros((7, PLACES), np.int64)
    columns[1], columns[5], columns[6] = NONE, NO_COPY, NO_COPY
    return NearWheel(
        np.full(bucket_count, NONE, np.int64),
        np.full(bucket_count, NONE, np.int64),
        np.frombuffer(pool, np.int64),
        np.zeros(ENTRY_WORDS, np.int64),
        *columns,
    )


@inlined
def slot_place(slot: int, aside: int) -> int:
    """Return the place of a claimed slot among those of its range."""
    return (slot & (SPAN - 1)) + SPAN * aside


@inlined
def ring_buckets(near: NearWheel) -> int:
    """Return how many buckets a ring has."""
    return len(near.head) // 2 - 1


@inlined
def bucket_at(near: NearWheel, ms: int, aside: int) -> int:
    """Return the index of a millisecond's bucket in `head` and `tail`."""
    ring = ring_buckets(near)
    return (ms & (ring - 1)) + ring * aside


@inlined
def overdue_bucket(near: NearWheel, aside: int) -> int:
    """Return the index of the bucket of a range's timers that were overdue behind their slots."""
    return len(near.head) - 2 + aside


@inlined
def pack_info(size: int, place: int, magic: int) -> int:
    """Return an entry's info."""
    return (size << 16) | (place << 8) | (magic & INFO_MAGIC_BITS)


@inlined
def info_size(info: int) -> int:
    """Return the message's size."""
    return info >> 16


@inlined
def info_place(info: int) -> int:
    """Return the slot's place."""
    return (info >> 8) & 0xFF


def place_of(info: int) -> int:
    """Return the slot's place, for Python."""
    return (info >> 8) & 0xFF


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
    aside: int  # 1 if its slot was put aside


@inlined
def near_insert(
    near: NearWheel,
    bucket: int,
    timer: NearTimer,
    in_front: bool,
) -> None:
    """Put a timer into a bucket, see `bucket_at`; `near_room` must be positive. O(1).

    `in_front`: before all others of its bucket, as a chain is walked, newest first.
    """
    place = slot_place(timer.slot, timer.aside)
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
    near.waiting[place] += 1


@inlined
def near_pop(near: NearWheel, bucket: int, until_ms: int) -> bool:
    """Take the first entry due by `until_ms` out of a bucket, into `popped`; False if none is.

    O(1), and O(what stands before it) if the clock was set back, see above.
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


# --- deletes


@inlined
def near_insert_delete(near: NearWheel, message: int, size: int, place: int, magic: int) -> None:
    """Keep a plain delete until R passes its slot. O(1)."""
    chunk = near.deletes[place]
    if chunk == NONE or _stop(near, chunk) == CHUNK_ENTRIES:
        chunk = _new_chunk(near, 0, chunk)
        near.deletes[place] = chunk
    stop = _stop(near, chunk)
    _put_entry(near, _entry(chunk, stop), 0, message, pack_info(size, place, magic))
    _set_range(near, chunk, 0, stop + 1)


@inlined
def near_last_delete(near: NearWheel, place: int) -> int:
    """Return the message of one of a slot's deletes, or NONE. O(1)."""
    chunk = near.deletes[place]
    if chunk == NONE:
        return NONE
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
def near_has_room(near: NearWheel, place: int) -> bool:
    """Tell whether a unit of a slot's place fits; one that does not waits. O(1).

    What falls due makes room. If no timer is left, deletes have taken all of it: then a chunk of
    the place's own, or of what is kept, is let go. Their targets stay in the cancelled set.
    """
    for held in (place, KEPT_PLACE):
        while near_room(near) <= 0 and near.count == 0 and near.deletes[held] != NONE:
            near_drop_delete(near, held)
            near.chain[held] -= 1
    return near_room(near) > 0


@inlined
def near_keep_deletes(near: NearWheel, place: int) -> int:
    """Move one chunk of a slot's deletes to KEPT_PLACE; return how many they are. O(1)."""
    chunk = near.deletes[place]
    if chunk == NONE:
        return 0
    near.deletes[place] = near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT]
    near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT] = near.deletes[KEPT_PLACE]
    near.deletes[KEPT_PLACE] = chunk
    for i in range(_stop(near, chunk)):
        info = near.chunks[_entry(chunk, i) + ENTRY_INFO]
        near.chunks[_entry(chunk, i) + ENTRY_INFO] = pack_info(
            info_size(info), KEPT_PLACE, info & INFO_MAGIC_BITS
        )
    return _stop(near, chunk)


# --- looking


@kernel_ahead
def list_entries(near: NearWheel, due_ms: Words, messages: Words) -> int:
    """Write each entry's due time and message; return how many. O(ring + entries).

    `due_ms`, `messages`: int64[n >= near.count], written.
    """
    count = 0
    for bucket in range(len(near.head)):
        chunk = near.head[bucket]
        while chunk != NONE:
            for i in range(_start(near, chunk), _stop(near, chunk)):
                at = _entry(chunk, i)
                due_ms[count] = near.chunks[at + ENTRY_DUE]
                messages[count] = near.chunks[at + ENTRY_MESSAGE]
                count += 1
            chunk = near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT]
    return count


def near_entries(near: NearWheel) -> tuple[Words, Words]:
    """Return the due times and messages of all entries in buckets. Under near."""
    due_ms = np.empty(near.count, np.int64)
    messages = np.empty_like(due_ms)
    list_entries(near, due_ms, messages)
    return due_ms, messages


def check(near: NearWheel) -> None:
    """Assert that every chunk is in only one list, and that the counts agree."""
    used = near.used
    assert 0 <= used <= len(near.chunks) // CHUNK_WORDS
    seen = np.zeros(used, np.int64)
    chunks = near.chunks[: used * CHUNK_WORDS].reshape(used, CHUNK_WORDS)

    def walk(chunk: int) -> list[int]:
        listed = []
        while chunk != NONE:
            assert 0 <= chunk < used, "a chunk that was never taken"
            assert seen[chunk] == 0, "a chunk is in two lists, or twice in one"
            seen[chunk] = 1
            listed.append(chunk)
            chunk = int(chunks[chunk, CHUNK_NEXT])
        return listed

    def places(chunk: int) -> list[int]:
        # Compiled, the helpers above have no wrapper that Python could call.
        stop, start = divmod(int(chunks[chunk, CHUNK_RANGE]), 1 << 32)
        assert 0 <= start < stop <= CHUNK_ENTRIES, "a chunk in a list is never empty"
        entries = chunks[chunk, CHUNK_HEAD:].reshape(CHUNK_ENTRIES, ENTRY_WORDS)[start:stop]
        return (entries[:, ENTRY_INFO] >> 8 & 0xFF).tolist()

    count = 0
    remaining = np.zeros(PLACES, np.int64)
    for bucket in np.flatnonzero(near.head != NONE).tolist():
        listed = walk(int(near.head[bucket]))
        assert listed[-1] == near.tail[bucket], "the tail is not the last"
        for chunk in listed:
            for place in places(chunk):
                remaining[place] += 1
                count += 1
    assert count == near.count
    walk(near.free)
    for place in range(PLACES):
        for chunk in walk(int(near.deletes[place])):
            assert set(places(chunk)) == {place}
    assert (remaining == near.waiting).all(), "a slot counts other timers than wait"
    assert seen.all(), "a chunk is lost"
