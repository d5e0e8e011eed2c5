"""What must hold of the near wheel and of the cancelled set at any time, asserted."""

from __future__ import annotations

import numpy as np

from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_HELD, IDENTITY_OURS
from timerstore.wheel.cancelled import NO_OFFSET, ROOM_WORDS, SET_ENTRY_WORDS, CancelledTimers
from timerstore.wheel.near import (
    CHUNK_ENTRIES,
    CHUNK_HEAD,
    CHUNK_NEXT,
    CHUNK_RANGE,
    CHUNK_WORDS,
    ENTRY_INFO,
    ENTRY_WORDS,
    NONE,
    SLOT_PLACES_MAX,
    NearWheel,
)


def check_near(near: NearWheel) -> None:
    """Assert that every chunk is in only one list, and that the counts agree."""
    used = near.used
    assert 1 <= used <= len(near.chunks) // CHUNK_WORDS
    seen = np.zeros(used, np.int64)
    seen[NONE] = 1
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
        return (entries[:, ENTRY_INFO] >> 8 & (SLOT_PLACES_MAX - 1)).tolist()

    count = 0
    remaining = np.zeros(len(near.waiting), np.int64)
    for bucket in np.flatnonzero(near.head != NONE).tolist():
        listed = walk(int(near.head[bucket]))
        assert listed[-1] == near.tail[bucket], "the tail is not the last"
        for chunk in listed:
            for place in places(chunk):
                remaining[place] += 1
                count += 1
    assert count == near.count
    walk(near.free)
    for place in np.flatnonzero(near.deletes != NONE).tolist():
        for chunk in walk(int(near.deletes[place])):
            assert set(places(chunk)) == {place}
    assert (remaining == near.waiting).all(), "a slot counts other timers than wait"
    assert seen.all(), "a chunk is lost"


def check_cancelled(timers: CancelledTimers) -> None:
    """Assert that counts, entries and places agree. O(length)."""
    entries = timers.table.reshape(-1, SET_ENTRY_WORDS)
    high, low = entries[(entries != 0).any(axis=1)].T.copy()
    held = high == IDENTITY_HELD
    of_level = held | ((high == IDENTITY_OURS) & (low >= fmt.LEVEL_MARK))
    assert timers.set.count == len(low), (timers.set.count, len(low))
    assert timers.set.level_count == of_level.sum(), (timers.set.level_count, of_level.sum())
    ours = (high == IDENTITY_OURS) & ~of_level
    assert timers.set.timer_count == ours.sum(), (timers.set.timer_count, ours.sum())
    assert timers.set.held_count == held.sum(), (timers.set.held_count, held.sum())
    assert (timers.set.held_from == NO_OFFSET) == (not held.any()), timers.set.held_from
    assert ROOM_WORDS * len(low) <= timers.set.length == len(timers.table)
    assert (low[held] >= fmt.LEVEL_MARK).all()
    assert len(np.unique(low[of_level])) == of_level.sum(), "one is held, and not held as well"
    assert timers.contains(np.where(held, IDENTITY_OURS, high), low).all()
