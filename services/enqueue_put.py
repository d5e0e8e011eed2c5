"""Enqueue-put: links a unit for each timer into its slot.

It moves `LINKED` over the timer topic's queue in order; every message gets exactly one unit. A unit
that is linked into a claimed slot also goes to the near wheel. After RocketMQ's
`TimerMessageStore.TimerEnqueuePutService` and `doEnqueue`.
"""

from __future__ import annotations

from typing import Any, Final

from timerstore.services.world import (
    ENQUEUE_COLUMNS,
    ENQUEUE_DUE_MS,
    ENQUEUE_HASH,
    ENQUEUE_HIGH,
    ENQUEUE_KIND,
    ENQUEUE_LOW,
    ENQUEUE_MESSAGE,
    ENQUEUE_OUT_MS,
    ENQUEUE_RING,
    ENQUEUE_SIZE,
    KIND_DELETE,
    KIND_UNREADABLE,
    RING_COUNT,
    RING_HEAD,
    ring_count,
)
from timerstore.timelog.format import (
    LEVEL_MARK,
    SLOT_TIME_AT,
    UNIT_BYTES,
    UNIT_DELETE,
    UNIT_PLAIN,
    UNIT_ROLL,
)
from timerstore.timelog.intrinsics import get_i64, prefetch, view_words
from timerstore.timelog.kernel import inlined
from timerstore.timelog.message import IDENTITY_OURS
from timerstore.timelog.segments import END, SEGMENT_BYTES, TABLE_LENGTH, segment_at
from timerstore.timelog.unit import next_unit_offset, put_timerlog_blank, put_unit
from timerstore.wheel.near import (
    SLOT_FIRST_COPY,
    near_insert,
    near_insert_delete,
    near_room,
    slot_word,
)
from timerstore.wheel.place import place, ring_top
from timerstore.wheel.sets import ENTRY_WORDS, map_get, set_add
from timerstore.wheel.slots import link_unit, slot_at, slot_last
from timerstore.wheel.state import (
    CANCELLED_ADDRESS,
    CANCELLED_COUNT,
    CANCELLED_LENGTH,
    CANCELLED_ROOM,
    CLAIMED,
    COUNT_COLLISIONS,
    COUNT_LINKED,
    DONE_ADDRESS,
    DONE_COUNT,
    DONE_LENGTH,
    HOP,
    LINKED,
    NEAR_FULL,
    NEED,
    NEED_OFFSET,
    PRECISION,
    READ,
    SCAN,
    TIMERLOG_SEGMENT,
)

BATCH_COUNT: Final = 512
_AHEAD: Final = 8


@inlined
def find_done(words: Any, message: int) -> int:
    """Return the offset of the copy that an earlier life made of a message, or −1."""
    if words[DONE_COUNT] == 0:
        return -1
    return map_get(view_words(words[DONE_ADDRESS], words[DONE_LENGTH]), message)


@inlined
def enqueue_put(world: Any, now_ms: int) -> int:
    """Link up to BATCH_COUNT timers; return how many. Under the step lock. O(1) for each."""
    words, ring = world.words, world.enqueue_ring
    head = world.ring_words[ENQUEUE_RING + RING_HEAD]
    count = min(ring_count(world.ring_words, ENQUEUE_RING), BATCH_COUNT)
    done = 0
    while done < count:
        at = ((head + done) & (RING_COUNT - 1)) * ENQUEUE_COLUMNS
        ahead = ((head + done + _AHEAD) & (RING_COUNT - 1)) * ENQUEUE_COLUMNS
        likely = ring[ahead + ENQUEUE_OUT_MS] // words[PRECISION]
        prefetch(world.wheel.slots, slot_at(world.wheel, likely))
        if ring[at + ENQUEUE_KIND] != KIND_UNREADABLE and not _link(world, at, now_ms):
            break
        words[LINKED] += 1
        done += 1
    world.ring_words[ENQUEUE_RING + RING_HEAD] = head + done
    words[COUNT_LINKED] += done
    return done


@inlined
def _link(world: Any, at: int, now_ms: int) -> bool:
    """Write and link one unit; False, with NEED set, where something must be made first."""
    words, ring = world.words, world.enqueue_ring
    precision = words[PRECISION]
    is_delete = ring[at + ENQUEUE_KIND] == KIND_DELETE
    if is_delete and not _note_delete(words, ring[at + ENQUEUE_HIGH], ring[at + ENQUEUE_LOW]):
        return False
    segment_bytes = world.timerlog.words[SEGMENT_BYTES]
    end = world.timerlog.words[END]
    offset = next_unit_offset(segment_bytes, end)
    buf = segment_at(world.timerlog, offset)
    if len(buf) == 0:
        words[NEED] = TIMERLOG_SEGMENT
        words[NEED_OFFSET] = offset
        return False
    if near_room(world.near) <= 0:
        words[NEED] = NEAR_FULL
        return False

    message, out_ms = ring[at + ENQUEUE_MESSAGE], ring[at + ENQUEUE_OUT_MS]
    copy = find_done(words, message)
    if copy >= 0:
        slot, hops = words[READ], 0  # done in an earlier life: it only has to be counted as linked
    else:
        slot, hops = place(words, out_ms, now_ms)
    magic = UNIT_PLAIN
    unit_ms = out_ms
    if hops > 0:
        magic |= UNIT_ROLL
        unit_ms = out_ms - hops * words[HOP] * precision
    if unit_ms // precision != slot:
        unit_ms = slot * precision  # its own slot was passed, or R's stands in for it
    if is_delete:
        magic |= UNIT_DELETE

    if offset != end:
        last = segment_at(world.timerlog, end)
        if len(last) != 0 and end % segment_bytes != 0:
            put_timerlog_blank(last, end % segment_bytes)
    _count_collision(world, slot)
    size = ring[at + ENQUEUE_SIZE]
    due_ms = ring[at + ENQUEUE_DUE_MS]
    put_unit(
        buf,
        offset % segment_bytes,
        offset,
        slot_last(world.wheel, slot),
        magic,
        now_ms // precision * precision,
        unit_ms,
        slot * precision,
        message,
        size,
        ring[at + ENQUEUE_HASH],
        due_ms,
        world.scratch,
    )
    link_unit(world.wheel, slot, offset, -1 if is_delete else 1)
    world.timerlog.words[END] = offset + UNIT_BYTES
    segment = message // world.commitlog.words[SEGMENT_BYTES] & (TABLE_LENGTH - 1)
    world.latest_slot[segment] = max(world.latest_slot[segment], slot)
    if slot < words[CLAIMED]:
        near_take(world, slot, magic, message, size, due_ms, copy, False)
    return True


@inlined
def near_take(
    world: Any,
    slot: int,
    magic: int,
    message: int,
    size: int,
    due_ms: int,
    copy: int,
    in_front: bool,
) -> None:
    """Take a unit of a claimed slot into the near wheel; `copy`: see `find_done`. O(1)."""
    words, near = world.words, world.near
    if copy >= 0:
        at = slot_word(slot, SLOT_FIRST_COPY)
        near.slots[at] = min(near.slots[at], copy)
        return
    if magic & UNIT_DELETE != 0 and magic & UNIT_ROLL == 0:
        near_insert_delete(near, message, size, slot, magic)
        return
    precision = words[PRECISION]
    bucket_ms = slot * precision
    if magic & UNIT_ROLL == 0:
        # Not before the ring's start, and not behind it: at most one slot later (a broker's).
        bucket_ms = min(max(due_ms, words[READ] * precision), (slot + 2) * precision)
    else:
        due_ms = bucket_ms
    near_insert(near, bucket_ms, due_ms, message, size, slot, magic, in_front)
    words[SCAN] = min(words[SCAN], bucket_ms)


@inlined
def _note_delete(words: Any, high: int, low: int) -> bool:
    """Add a delete's target to the cancelled set; False where the set must grow first.

    Not a delay level's, whose loop may have passed it: it is added where it is cancelled.
    """
    if high == IDENTITY_OURS and low >= LEVEL_MARK:
        return True
    if 2 * ENTRY_WORDS * (words[CANCELLED_COUNT] + 1) > words[CANCELLED_LENGTH]:
        words[NEED] = CANCELLED_ROOM
        return False
    table = view_words(words[CANCELLED_ADDRESS], words[CANCELLED_LENGTH])
    if set_add(table, high, low):
        words[CANCELLED_COUNT] += 1
    return True


@inlined
def _count_collision(world: Any, slot: int) -> None:
    """Count a slot of the ring that still holds another time that is not passed."""
    time = get_i64(world.wheel.slots, slot_at(world.wheel, slot) + SLOT_TIME_AT)
    outside = slot < world.words[READ] or slot >= ring_top(world.words)
    if outside or (time != slot and time >= world.words[READ]):
        world.words[COUNT_COLLISIONS] += 1
