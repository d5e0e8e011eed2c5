"""The near wheel against a dict of lists, with `check` after each action."""

import resource
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import kernel
from tests.services.alone import near_entries
from tests.wheel_checks import check_near
from timerstore.wheel.near import (
    CHUNK_ENTRIES,
    CHUNK_NEXT,
    CHUNK_WORDS,
    ENTRY_DUE,
    ENTRY_INFO,
    ENTRY_MESSAGE,
    NO_DELETE,
    NONE,
    NearTimer,
    NearWheel,
    bucket_at,
    info_place,
    info_size,
    list_due,
    near_drop_delete,
    near_first_due,
    near_first_of,
    near_insert,
    near_insert_delete,
    near_last_delete,
    near_pop,
    near_room,
    new_near_wheel,
    overdue_bucket,
)

pytestmark = pytest.mark.long

START_MS = 1_700_000_000_000
PRECISION_MS = 100
SLOTS = 12  # that can be claimed at once
PLACES = 16
SECOND = 1_000  # buckets from here on are the second ring's
OVERDUE = 2 * SECOND  # and from here on, those of what was overdue
Entry = tuple[int, int, int, int, int]  # due, message, size, slot's place, magic


@kernel
def _insert(near: Any, values: Any, in_front: bool) -> None:
    bucket, due_ms, message, size, slot, magic, ring = values
    timer = NearTimer(due_ms, message, size, slot, magic, ring)
    near_insert(near, bucket, timer, in_front)


@kernel
def _bucket(near: Any, ms: int, range_: int) -> int:
    return overdue_bucket(near, range_ - 2) if range_ >= 2 else bucket_at(near, ms, range_)


@kernel
def _pop(near: Any, bucket: int, until_ms: int) -> bool:
    return near_pop(near, bucket, until_ms)


@kernel
def _first_due(near: Any, bucket: int, now_ms: int, stop_ms: int) -> int:
    return near_first_due(near, bucket, now_ms, stop_ms)


@kernel
def _first_of(near: Any, ring: int, stop_ms: int) -> int:
    return near_first_of(near, ring, stop_ms)


@kernel
def _insert_delete(near: Any, values: Any) -> None:
    near_insert_delete(near, values[0], values[1], values[2], values[3])


@kernel
def _last_delete(near: Any, place: int) -> int:
    return near_last_delete(near, place)


@kernel
def _drop_delete(near: Any, place: int) -> None:
    near_drop_delete(near, place)


@kernel
def _info(info: int, out: Any) -> None:
    out[0] = info_size(info)
    out[1] = info_place(info)


@kernel
def _room(near: Any) -> int:
    return near_room(near)


class Model:
    """A near wheel, and beside it lists that do the same."""

    def __init__(self) -> None:
        self.near: NearWheel = new_near_wheel(PRECISION_MS, 100, SLOTS)
        self.buckets: defaultdict[int, list[Entry]] = defaultdict(list)
        self.deletes: defaultdict[int, list[int]] = defaultdict(list)
        self.next_message = 1

    def popped(self) -> Entry:
        popped, out = self.near.popped, np.zeros(2, np.int64)
        _info(int(popped[ENTRY_INFO]), out)
        magic = int(popped[ENTRY_INFO]) & 0xFF
        return int(popped[ENTRY_DUE]), int(popped[ENTRY_MESSAGE]), int(out[0]), int(out[1]), magic

    def at(self, bucket: int) -> int:
        range_, within_ms = divmod(bucket, SECOND)
        return int(_bucket(self.near, START_MS + within_ms, range_))

    def insert(self, bucket: int, later_ms: int, in_front: bool) -> None:
        ring, within_ms = bucket // SECOND % 2, bucket % SECOND
        bucket_ms = START_MS + within_ms
        slot = bucket_ms // PRECISION_MS
        place = slot % PLACES
        entry = bucket_ms + later_ms, self.next_message, 91 + bucket, place, 1 + 2 * in_front
        self.next_message += 1
        values = np.array([self.at(bucket), *entry[:3], slot, entry[4], ring], np.int64)
        _insert(self.near, values, in_front)
        self.buckets[bucket].insert(0 if in_front else len(self.buckets[bucket]), entry)

    def pop(self, bucket: int, later_ms: int = 9) -> None:
        now_ms = START_MS + bucket % SECOND + later_ms
        got = _pop(self.near, self.at(bucket), now_ms)
        due = [entry for entry in self.buckets[bucket] if entry[0] <= now_ms]
        assert bool(got) == bool(due)
        if due:
            assert self.popped() == due[0]
            self.buckets[bucket].remove(due[0])

    def insert_delete(self, place: int) -> None:
        _insert_delete(self.near, np.array([self.next_message, 200, place, 5], np.int64))
        self.deletes[place].append(self.next_message)
        self.next_message += 1

    def drop_delete(self, place: int) -> None:
        message = int(_last_delete(self.near, place))
        assert (message == NO_DELETE) == (not self.deletes[place])
        if message != NO_DELETE:
            self.deletes[place].remove(message)
            _drop_delete(self.near, place)

    def check(self) -> None:
        check_near(self.near)
        entries = [entry for bucket in self.buckets.values() for entry in bucket]
        due_ms, messages = near_entries(self.near)
        assert sorted(zip(due_ms.tolist(), messages.tolist(), strict=True)) == sorted(
            entry[:2] for entry in entries
        )
        self.check_due_listed(entries)
        for bucket, held in self.buckets.items():
            stop_ms = START_MS + bucket % SECOND + 50
            first = min([entry[0] for entry in held] + [stop_ms])
            assert _first_due(self.near, self.at(bucket), 0, stop_ms) == first
            found = _first_due(self.near, self.at(bucket), stop_ms - 50, stop_ms)
            assert found == first or first <= found <= stop_ms - 50
        for ring in range(2):
            held = [b for b in self.buckets if b < OVERDUE and b // SECOND == ring]
            due = [entry[0] for b in held for entry in self.buckets[b]]
            assert _first_of(self.near, ring, 1 << 60) == min(due, default=1 << 60)
            assert _first_of(self.near, ring, 5) == 5
        remaining = [sum(entry[3] == place for entry in entries) for place in range(PLACES)]
        assert self.near.waiting.tolist() == remaining
        second = [bucket for bucket in self.buckets if bucket // SECOND % 2]
        assert self.near.owed_count == sum(len(self.buckets[bucket]) for bucket in second)

    def check_due_listed(self, entries: list[Entry]) -> None:
        """What is due then is listed, with all that was overdue, each once."""
        wanted, first = np.unique([START_MS, *(each[0] for each in entries[::2])]), START_MS // 100
        listed = np.empty((2, self.near.count), np.int64)
        for stop in (first, first + 3):
            times = {*wanted.tolist(), *range(100 * first, 100 * stop, 100)}
            count = list_due(self.near, wanted, first, stop, 100, *listed)
            expected = [
                each[:2]
                for bucket, held in self.buckets.items()
                for each in held
                if bucket >= OVERDUE or (each[0] in times and each[0] == START_MS + bucket % SECOND)
            ]
            assert sorted(zip(*listed[:, :count].tolist(), strict=True)) == sorted(expected)


BUCKETS = [0, 0, 0, 1, 1, 99, 100, 799, SECOND, SECOND, SECOND + 99, OVERDUE, OVERDUE + SECOND]
BUCKETS = st.sampled_from(BUCKETS)
LATER = st.integers(-3, 3)
ACTIONS = st.lists(
    st.tuples(st.just("insert"), BUCKETS, LATER, st.booleans())
    | st.tuples(st.just("insert"), BUCKETS, LATER, st.booleans())
    | st.tuples(st.just("pop"), BUCKETS)
    | st.tuples(st.just("pop"), BUCKETS, LATER)
    | st.tuples(st.just("insert_delete"), st.integers(0, PLACES - 1))
    | st.tuples(st.just("drop_delete"), st.integers(0, PLACES - 1)),
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
    for place in range(PLACES):
        while model.deletes[place]:
            model.drop_delete(place)
    model.check()
    assert model.near.count == 0
    free, chunk = 0, int(model.near.free)
    while chunk != NONE:
        free += 1
        chunk = int(model.near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT])
    assert free == model.near.used - 1


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
    assert model.near.used < 15


def test_a_bucket_whose_last_chunk_went_is_appended_to_again() -> None:
    model = Model()
    for i in range(2 * CHUNK_ENTRIES):
        model.insert(0, -1 if i >= CHUNK_ENTRIES else 1, False)
    for _ in range(CHUNK_ENTRIES):  # empties the second chunk, which is the tail
        model.pop(0, 0)
    model.check()
    model.insert(0, 2, False)
    model.check()
    assert len(model.buckets[0]) == CHUNK_ENTRIES + 1


def test_room_runs_out_and_comes_back() -> None:
    near = new_near_wheel(PRECISION_MS, 0, SLOTS)
    for bucket in range(len(near.head)):
        assert _room(near) > 0
        _insert(near, np.array([bucket, 7, 1, 91, 0, 1, 0], np.int64), False)
    while _room(near) > 0:
        _insert_delete(near, np.array([1, 91, 3, 5], np.int64))
    assert near.used == len(near.chunks) // CHUNK_WORDS
    check_near(near)
    assert _pop(near, 5, 7)
    assert _room(near) == 1


def test_a_limit_of_addresses_leaves_room_for_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    count_max = 1 << 26

    def made_for(near: NearWheel) -> int:
        return (len(near.chunks) // CHUNK_WORDS - len(near.head) - 3) * CHUNK_ENTRIES // 2

    assert count_max - CHUNK_ENTRIES < made_for(new_near_wheel(PRECISION_MS, count_max, SLOTS))
    monkeypatch.setattr("resource.getrlimit", lambda _: (4 << 30, resource.RLIM_INFINITY))
    assert 10_000_000 < made_for(new_near_wheel(PRECISION_MS, count_max, SLOTS)) < 11_000_000
    few = made_for(new_near_wheel(PRECISION_MS, 1_000, SLOTS))
    assert 1_000 - CHUNK_ENTRIES < few <= 1_000


def test_check_notices() -> None:
    """Each damage to the lists, one at a time."""

    def full() -> NearWheel:
        model = Model()
        for i in range(25):
            model.insert(i % 2, 0, False)
            model.insert_delete(4)
        for _ in range(11):
            model.pop(0)
        check_near(model.near)
        assert model.near.free != NONE
        return model.near

    def bucket(near: NearWheel, later_ms: int) -> int:
        return (START_MS + later_ms) % (len(near.head) // 2 - 1)

    def lose(near: NearWheel) -> None:
        near.free = NONE

    def loop(near: NearWheel) -> None:
        chunk = int(near.head[bucket(near, 1)])
        near.chunks[chunk * CHUNK_WORDS + CHUNK_NEXT] = chunk

    def share(near: NearWheel) -> None:
        near.free = near.head[bucket(near, 0)]

    def share_with_deletes(near: NearWheel) -> None:
        near.deletes[5] = near.deletes[4]

    def miscount(near: NearWheel) -> None:
        near.count += 1

    def pass_early(near: NearWheel) -> None:
        near.waiting[:] = 0

    def mistake_the_tail(near: NearWheel) -> None:
        near.tail[bucket(near, 1)] = near.head[bucket(near, 1)]

    def point_outside(near: NearWheel) -> None:
        near.free = near.used

    damages = (lose, loop, share, share_with_deletes, miscount, pass_early, mistake_the_tail)
    for damage in (*damages, point_outside):
        near = full()
        damage(near)
        with pytest.raises(AssertionError):
            check_near(near)
