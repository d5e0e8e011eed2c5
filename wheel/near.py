"""The near wheel: the timers of the claimed slots, in memory, by exact millisecond.

A ring of buckets, one for each millisecond from the read cursor on; each bucket is a linked list
of nodes in the order of arrival. The ring spans SPAN slots, and the cursor C stays within R + SPAN,
so a bucket belongs to one millisecond alone. A plain delete waits, beside the buckets, in its
slot's list until R passes the slot.

    R·P                      C·P
     │ slot R │ slot R+1 │ … │ not claimed yet
     ├┬┬┬┬┬┬┬┬┼┬┬┬┬┬┬┬┬┬┬┼┬┬┬┤
      └ bucket: node → node → node      (due, message offset, size, info)

Nodes live in a pool whose pages are touched only as they are needed, so its length is a limit and
costs nothing. All calls happen under the step lock.
"""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np

from timerstore.timelog.kernel import inlined, kernel
from timerstore.timelog.record import Words, record

SPAN: Final = 8
"""Slots that can be claimed at once, a power of two; two at a time are in normal running."""
NONE: Final = -1

# A node: four words.
NODE_DUE: Final = 0  # ms: the bucket it waits for
NODE_MESSAGE: Final = 1  # commit log offset
NODE_INFO: Final = 2  # message size << 16 | slot's place in SPAN << 8 | unit magic
NODE_NEXT: Final = 3
NODE_WORDS: Final = 4
INFO_MAGIC_BITS: Final = 0xFF

# Words of a NearWheel.
NEAR_FREE: Final = 0  # first node of the free list, or NONE
NEAR_USED: Final = 1  # nodes that were ever taken from the pool
NEAR_COUNT: Final = 2  # nodes in buckets

# Columns of a claimed slot.
SLOT_REMAINING: Final = 0  # nodes that are neither appended nor dropped yet
SLOT_DELETES: Final = 1  # first node of its plain deletes, or NONE
SLOT_FIRST_COPY: Final = 2  # offset of the first copy made of one of its messages
SLOT_ROLL_INDEX: Final = 3  # timer queue index behind the last roll made from it
SLOT_COLUMNS: Final = 4

NO_COPY: Final = 1 << 62


@record
class NearWheel:
    """The near wheel as kernels see it."""

    words: Words  # int64[8], see NEAR_*
    head: Words  # int64[ring]: first node of each bucket, or NONE
    tail: Words  # int64[ring]
    nodes: Words  # int64[NODE_WORDS * limit]
    slots: Words  # int64[SPAN * SLOT_COLUMNS]


def new_near_wheel(precision_ms: int, count_max: int) -> NearWheel:
    """Return an empty near wheel for `count_max` nodes."""
    ring = 1
    while ring < (SPAN + 2) * precision_ms:
        ring *= 2
    # Anonymous memory without a reservation: pages come as they are touched.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    pool = mmap.mmap(-1, NODE_WORDS * 8 * count_max, flags=flags)
    near = NearWheel(
        np.zeros(8, np.int64),
        np.full(ring, NONE, np.int64),
        np.full(ring, NONE, np.int64),
        np.frombuffer(pool, np.int64),
        np.zeros(SPAN * SLOT_COLUMNS, np.int64),
    )
    near.words[NEAR_FREE] = NONE
    return near


@inlined
def slot_word(slot: int, column: int) -> int:
    """Return the index of a claimed slot's column in `slots`."""
    return (slot & (SPAN - 1)) * SLOT_COLUMNS + column


@inlined
def open_slot(near: Any, slot: int) -> None:
    """Begin a slot that is being claimed."""
    near.slots[slot_word(slot, SLOT_REMAINING)] = 0
    near.slots[slot_word(slot, SLOT_DELETES)] = NONE
    near.slots[slot_word(slot, SLOT_FIRST_COPY)] = NO_COPY
    near.slots[slot_word(slot, SLOT_ROLL_INDEX)] = 0


@inlined
def near_room(near: Any) -> int:
    """Return how many nodes can be taken at least."""
    if near.words[NEAR_FREE] != NONE:
        return 1
    return len(near.nodes) // NODE_WORDS - near.words[NEAR_USED]


@inlined
def _new_node(near: Any, due_ms: int, message: int, info: int) -> int:
    node = near.words[NEAR_FREE]
    if node != NONE:
        near.words[NEAR_FREE] = near.nodes[node * NODE_WORDS + NODE_NEXT]
    else:
        node = near.words[NEAR_USED]
        near.words[NEAR_USED] = node + 1
    at = node * NODE_WORDS
    near.nodes[at + NODE_DUE] = due_ms
    near.nodes[at + NODE_MESSAGE] = message
    near.nodes[at + NODE_INFO] = info
    near.nodes[at + NODE_NEXT] = NONE
    return node


@inlined
def free_node(near: Any, node: int) -> None:
    """Give a node back to the pool."""
    near.nodes[node * NODE_WORDS + NODE_NEXT] = near.words[NEAR_FREE]
    near.words[NEAR_FREE] = node


@inlined
def pack_info(size: int, slot: int, magic: int) -> int:
    """Return a node's info."""
    return (size << 16) | ((slot & (SPAN - 1)) << 8) | (magic & INFO_MAGIC_BITS)


@inlined
def info_size(info: int) -> int:
    """Return the message's size."""
    return info >> 16


@inlined
def info_slot(info: int) -> int:
    """Return the slot's place in SPAN; `slot_word` takes it as a slot."""
    return (info >> 8) & 0xFF


@inlined
def near_insert(
    near: Any, bucket_ms: int, message: int, size: int, slot: int, magic: int, in_front: bool
) -> None:
    """Put a timer or a roll into the bucket of `bucket_ms`; `near_room` must be positive. O(1).

    `in_front`: before all others of its bucket, as a chain is walked, newest first.
    """
    node = _new_node(near, bucket_ms, message, pack_info(size, slot, magic))
    bucket = bucket_ms & (len(near.head) - 1)
    if near.head[bucket] == NONE:
        near.head[bucket] = node
        near.tail[bucket] = node
    elif in_front:
        near.nodes[node * NODE_WORDS + NODE_NEXT] = near.head[bucket]
        near.head[bucket] = node
    else:
        near.nodes[near.tail[bucket] * NODE_WORDS + NODE_NEXT] = node
        near.tail[bucket] = node
    near.words[NEAR_COUNT] += 1
    near.slots[slot_word(slot, SLOT_REMAINING)] += 1


@inlined
def near_insert_delete(near: Any, message: int, size: int, slot: int, magic: int) -> None:
    """Keep a plain delete until R passes its slot. O(1)."""
    node = _new_node(near, 0, message, pack_info(size, slot, magic))
    at = slot_word(slot, SLOT_DELETES)
    near.nodes[node * NODE_WORDS + NODE_NEXT] = near.slots[at]
    near.slots[at] = node


@inlined
def near_pop(near: Any, bucket_ms: int) -> int:
    """Take the first node out of a bucket, or NONE. The caller frees it."""
    bucket = bucket_ms & (len(near.head) - 1)
    node = near.head[bucket]
    if node != NONE:
        near.head[bucket] = near.nodes[node * NODE_WORDS + NODE_NEXT]
        near.words[NEAR_COUNT] -= 1
    return node


@kernel
def next_bucket(near: Any, start_ms: int) -> int:
    """Return the millisecond of the first bucket with a node, from `start_ms` on, or NONE."""
    if near.words[NEAR_COUNT] == 0:
        return NONE
    for ms in range(start_ms, start_ms + len(near.head)):
        if near.head[ms & (len(near.head) - 1)] != NONE:
            return ms
    return NONE


@kernel
def list_nodes(near: Any, nodes: Any) -> int:
    """Write the index of each node in a bucket; return how many. O(ring + nodes).

    `nodes`: int64[n >= NEAR_COUNT], written.
    """
    count = 0
    for bucket in range(len(near.head)):
        node = near.head[bucket]
        while node != NONE:
            nodes[count] = node
            count += 1
            node = near.nodes[node * NODE_WORDS + NODE_NEXT]
    return count


def check(near: NearWheel) -> None:
    """Assert that every node is in one list, and that the counts agree."""
    count = int(near.words[NEAR_COUNT])
    seen = np.zeros(count + 1, np.int64)
    assert list_nodes(near, seen) == count
    used, free = int(near.words[NEAR_USED]), 0
    node = int(near.words[NEAR_FREE])
    while node != NONE:
        free += 1
        assert free <= used, "the free list loops"
        node = int(near.nodes[node * NODE_WORDS + NODE_NEXT])
    deletes = 0
    for place in range(SPAN):
        node = int(near.slots[slot_word(place, SLOT_DELETES)]) if used else NONE
        while node != NONE and near.slots.any():
            deletes += 1
            assert deletes <= used, "a delete list loops"
            node = int(near.nodes[node * NODE_WORDS + NODE_NEXT])
    assert len(np.unique(seen[:count])) == count
    assert count + free + deletes <= used + SPAN * used
