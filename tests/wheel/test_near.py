"""The near wheel against a dict of lists, with `check` after each action."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.kernel import kernel
from timerstore.timelog.record import Words
from timerstore.wheel.near import (
    CHUNK_ENTRIES,
    CHUNK_NEXT,
    CHUNK_WORDS,
    ENTRY_DUE,
    ENTRY_INFO,
    ENTRY_MESSAGE,
    NEAR_COUNT,
    NEAR_FREE,
    NEAR_USED,
    NONE,
    SLOT_COLUMNS,
    SLOT_DELETES,
    SLOT_WAITING,
    SPAN,
    NearWheel,
    check,
    info_size,
    info_slot,
    near_drop_delete,
    near_entries,
    near_first_due,
    near_insert,
    near_insert_delete,
    near_last_delete,
    near_pop,
    near_pop_due,
    near_room,
    new_near_wheel,
)

START_MS = 1_700_000_000_000
PRECISION_MS = 100
Entry = tuple[int, int, int, int, int]  # due, message, size, slot's place, magic


@kernel
def _insert(near: Any, values: Any, in_front: bool) -> None:
    near_insert(near, values[0], values[1], values[2], values[3], values[4], values[5], in_front)


@kernel
def _pop(near: Any, bucket_ms: int) -> bool:
    return near_pop(near, bucket_ms)


@kernel
def _pop_due(near: Any, bucket_ms: int, now_ms: int) -> bool:
    return near_pop_due(near, bucket_ms, now_ms)


@kernel
def _first_due(near: Any, bucket_ms: int, stop_ms: int) -> int:
    return near_first_due(near, bucket_ms, stop_ms)


@kernel
def _insert_delete(near: Any, values: Any) -> None:
    near_insert_delete(near, values[0], values[1], values[2], values[3])


@kernel
def _last_delete(near: Any, slot: int) -> int:
    return near_last_delete(near, slot)


@kernel
def _drop_delete(near: Any, slot: int) -> None:
    near_drop_delete(near, slot)


@kernel
def _info(info: int, out: Any) -> None:
    out[0] = info_size(info)
    out[1] = info_slot(info)


@kernel
def _room(near: Any) -> int:
    return near_room(near)


class Model:
    """A near wheel, and beside it lists that do the same."""

    def __init__(self) -> None:
        self.near: NearWheel = new_near_wheel(PRECISION_MS, 100)
        self.buckets: defaultdict[int, list[Entry]] = defaultdict(list)
        self.deletes: defaultdict[int, list[int]] = defaultdict(list)
        self.next_message = 1

    def columns(self) -> Words:
        return self.near.slots.reshape(SLOT_COLUMNS, SPAN)

    def popped(self) -> Entry:
        popped, out = self.near.popped, np.zeros(2, np.int64)
        _info(int(popped[ENTRY_INFO]), out)
        magic = int(popped[ENTRY_INFO]) & 0xFF
        return int(popped[ENTRY_DUE]), int(popped[ENTRY_MESSAGE]), int(out[0]), int(out[1]), magic

    def insert(self, bucket: int, later_ms: int, in_front: bool) -> None:
        bucket_ms = START_MS + bucket
        slot = bucket_ms // PRECISION_MS
        entry = bucket_ms + later_ms, self.next_message, 91 + bucket, slot % SPAN, 1 + 2 * in_front
        self.next_message += 1
        values = np.array([bucket_ms, *entry[:3], slot, entry[4]], np.int64)
        _insert(self.near, values, in_front)
        self.buckets[bucket].insert(0 if in_front else len(self.buckets[bucket]), entry)

    def pop(self, bucket: int) -> None:
        got = _pop(self.near, START_MS + bucket)
        assert bool(got) == bool(self.buckets[bucket])
        if got:
            assert self.popped() == self.buckets[bucket].pop(0)

    def pop_due(self, bucket: int, later_ms: int) -> None:
        now_ms = START_MS + bucket + later_ms
        got = _pop_due(self.near, START_MS + bucket, now_ms)
        due = [entry for entry in self.buckets[bucket] if entry[0] <= now_ms]
        assert bool(got) == bool(due)
        if due:
            assert self.popped() == due[0]
            self.buckets[bucket].remove(due[0])

    def insert_delete(self, slot: int) -> None:
        _insert_delete(self.near, np.array([self.next_message, 200, slot, 5], np.int64))
        self.deletes[slot].append(self.next_message)
        self.next_message += 1

    def drop_delete(self, slot: int) -> None:
        message = int(_last_delete(self.near, slot))
        assert (message == NONE) == (not self.deletes[slot])
        if message != NONE:
            self.deletes[slot].remove(message)
            _drop_delete(self.near, slot)

    def check(self) -> None:
        check(self.near)
        entries = [entry for bucket in self.buckets.values() for entry in bucket]
        due_ms, messages = near_entries(self.near)
        assert sorted(zip(due_ms.tolist(), messages.tolist(), strict=True)) == sorted(
            entry[:2] for entry in entries
        )
        for bucket, held in self.buckets.items():
            stop_ms = START_MS + bucket + 50
            first = min([entry[0] for entry in held] + [stop_ms])
            assert _first_due(self.near, START_MS + bucket, stop_ms) == first
        remaining = [sum(entry[3] == place for entry in entries) for place in range(SPAN)]
        assert self.columns()[SLOT_WAITING].tolist() == remaining


BUCKETS = st.sampled_from([0, 0, 0, 1, 1, 99, 100, 799])
LATER = st.integers(-3, 3)
ACTIONS = st.lists(
    st.tuples(st.just("insert"), BUCKETS, LATER, st.booleans())
    | st.tuples(st.just("insert"), BUCKETS, LATER, st.booleans())
    | st.tuples(st.just("pop"), BUCKETS)
    | st.tuples(st.just("pop_due"), BUCKETS, LATER)
    | st.tuples(st.just("insert_delete"), st.integers(0, SPAN - 1))
    | st.tuples(st.just("drop_delete"), st.integers(0, SPAN - 1)),
    max_size=70,
)


@given(actions=ACTIONS)
def test_any_actions(actions: list[tuple[Any, ...]]) -> None:
    model = Model()
    for name, *arguments in actions:
        getattr(model, name)(*arguments)
        model.check()
    for bucket in list(model.buckets):
        while model.buckets[bucket]:
            model.pop(bucket)
        model.pop(bucket)
    for slot in range(SPAN):
        while model.deletes[slot]:
            model.drop_delete(slot)
    model.check()
    assert model.near.words[NEAR_COUNT] == 0
    free, chunk = 0, int(model.near.words[NEAR_FREE])
    while chunk != NONE:
        free += 1
        chunk = int(model.near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT])
    assert free == model.near.words[NEAR_USED]


@pytest.mark.parametrize("in_front", [False, True])
def test_long_buckets_keep_their_order(in_front: bool) -> None:
    model = Model()
    for _ in range(3):
        for _ in range(5 * CHUNK_ENTRIES + 3):
            model.insert(7, 0, in_front)
        model.insert(7, 0, not in_front)
        model.check()
        for _ in range(3 * CHUNK_ENTRIES):
            model.pop(7)
        model.check()
    # Chunks are used again: no more than the longest the bucket ever was.
    assert model.near.words[NEAR_USED] < 15


def test_a_bucket_whose_last_chunk_went_is_appended_to_again() -> None:
    model = Model()
    for i in range(2 * CHUNK_ENTRIES):
        model.insert(0, -1 if i >= CHUNK_ENTRIES else 1, False)
    for _ in range(CHUNK_ENTRIES):  # empties the second chunk, which is the tail
        model.pop_due(0, 0)
    model.check()
    model.insert(0, 2, False)
    model.check()
    assert len(model.buckets[0]) == CHUNK_ENTRIES + 1


def test_room_runs_out_and_comes_back() -> None:
    near = new_near_wheel(PRECISION_MS, 0)
    ring = len(near.head)
    for bucket in range(ring):
        assert _room(near) > 0
        _insert(near, np.array([bucket, bucket, 1, 91, 0, 1], np.int64), False)
    while _room(near) > 0:
        _insert_delete(near, np.array([1, 91, 3, 5], np.int64))
    assert near.words[NEAR_USED] == len(near.chunks) // CHUNK_WORDS
    check(near)
    assert _pop(near, 5)
    assert _room(near) == 1


def test_check_notices() -> None:
    """Each damage to the lists, one at a time."""

    def full() -> NearWheel:
        model = Model()
        for i in range(25):
            model.insert(i % 2, 0, False)
            model.insert_delete(4)
        for _ in range(11):
            model.pop(0)
        check(model.near)
        assert model.near.words[NEAR_FREE] != NONE
        return model.near

    def lose(near: NearWheel) -> None:
        near.words[NEAR_FREE] = NONE

    def loop(near: NearWheel) -> None:
        chunk = int(near.head[(START_MS + 1) % len(near.head)])
        near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT] = chunk

    def share(near: NearWheel) -> None:
        near.words[NEAR_FREE] = near.head[START_MS % len(near.head)]

    def share_with_deletes(near: NearWheel) -> None:
        columns = near.slots.reshape(SLOT_COLUMNS, SPAN)
        columns[SLOT_DELETES, 5] = columns[SLOT_DELETES, 4]

    def miscount(near: NearWheel) -> None:
        near.words[NEAR_COUNT] += 1

    def pass_early(near: NearWheel) -> None:
        near.slots.reshape(SLOT_COLUMNS, SPAN)[SLOT_WAITING] = 0

    def mistake_the_tail(near: NearWheel) -> None:
        near.tail[(START_MS + 1) % len(near.head)] = near.head[(START_MS + 1) % len(near.head)]

    def point_outside(near: NearWheel) -> None:
        near.words[NEAR_FREE] = near.words[NEAR_USED]

    damages = (lose, loop, share, share_with_deletes, miscount, pass_early, mistake_the_tail)
    for damage in (*damages, point_outside):
        near = full()
        damage(near)
        with pytest.raises(AssertionError):
            check(near)
