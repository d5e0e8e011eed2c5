"""The cancelled set against its twin: members, counts, what is held, room."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import kernel
from tests.naive_cancelled import LEVEL_MARK, OURS, CancelledTwin, Identity
from tests.wheel_checks import check_cancelled
from timerstore.timelog.bytes import format
from timerstore.timelog.bytes.message import IDENTITY_HELD, IDENTITY_OURS
from timerstore.wheel import cancelled
from timerstore.wheel.cancelled import (
    LENGTH_MIN,
    NO_OFFSET,
    ROOM_WORDS,
    CancelledTimers,
    cancelled_add,
    cancelled_add_held,
    cancelled_contains,
    cancelled_has_room,
    cancelled_pass_delete,
    cancelled_remove,
    copy_cancelled,
    grown,
    is_of_level,
)

ADD, HOLD, PASS, REMOVE, CONTAINS, IS_OF_LEVEL, HAS_ROOM, COPY = range(8)


@kernel
def _act(cancelled: Any, action: int, high: int, low: int, delete: int, into: Any) -> bool:
    if action == 0:
        return cancelled_add(cancelled, high, low)
    if action == 1:
        return cancelled_add_held(cancelled, low, delete)
    if action == 2:
        cancelled_pass_delete(cancelled, high, low, delete)
    elif action == 3:
        return cancelled_remove(cancelled, high, low)
    elif action == 4:
        return cancelled_contains(cancelled, high, low)
    elif action == 5:
        return is_of_level(high, low)
    elif action == 6:
        return cancelled_has_room(cancelled)
    else:
        copy_cancelled(cancelled, into)
    return False


NOWHERE = np.zeros(0, np.uint8)


def act(timers: CancelledTimers, action: int, identity: Identity, delete: int = 0) -> bool:
    return bool(_act(timers.set, action, *identity, delete, NOWHERE))


OF_TIMER = st.tuples(st.just(OURS), st.integers(0, 9))
OF_LEVEL = st.tuples(st.just(OURS), st.integers(LEVEL_MARK, LEVEL_MARK + 9))
OF_BROKER = st.tuples(
    st.integers(-(2**63), 2**63 - 1).filter(lambda high: high not in (-1, -2, 0)),
    st.integers(0, 3) | st.integers(-(2**63), 2**63 - 1) | st.just(LEVEL_MARK),
)
IDENTITIES = OF_TIMER | OF_LEVEL | OF_LEVEL | OF_BROKER
DELETES = st.integers(0, 2**40)
ACTIONS = st.lists(
    st.tuples(st.sampled_from([ADD, ADD, PASS, REMOVE, CONTAINS]), IDENTITIES, DELETES)
    | st.tuples(st.just(HOLD), OF_LEVEL, DELETES),
    max_size=80,
)


def columns(identities: list[Identity]) -> tuple[Any, Any]:
    high, low = np.array(identities, np.int64).reshape(-1, 2).T.copy()
    return high, low


def compare(timers: CancelledTimers, twin: CancelledTwin, asked: list[Identity]) -> None:
    check_cancelled(timers)
    assert timers.set.count == len(twin.held)
    assert timers.set.level_count == twin.level_count()
    assert timers.set.held_count == twin.held_count()
    assert timers.set.held_from == (NO_OFFSET if twin.held_from is None else twin.held_from)
    found = timers.contains(*columns(asked))
    assert found.tolist() == [identity in twin.held for identity in asked]


@given(actions=ACTIONS)
def test_it_is_what_its_twin_is(actions: list[tuple[int, Identity, int]]) -> None:
    timers, twin = CancelledTimers(), CancelledTwin()
    asked = [identity for _, identity, _ in actions]
    for action, identity, delete in actions:
        if action == ADD and twin.held.get(identity) is None:
            assert act(timers, ADD, identity) == twin.add(identity)
        elif action == HOLD:
            assert act(timers, HOLD, identity, delete) == twin.add_held(identity, delete)
        elif action == PASS:
            act(timers, PASS, identity, delete)
            twin.pass_delete(identity, delete)
        elif action == REMOVE:
            assert act(timers, REMOVE, identity) == twin.remove(identity)
        assert act(timers, CONTAINS, identity) == (identity in twin.held)
        assert act(timers, IS_OF_LEVEL, identity) == twin.is_of_level(identity)
        compare(timers, twin, asked)


@given(
    added=st.lists(IDENTITIES, max_size=30),
    held=st.lists(st.tuples(OF_LEVEL, DELETES), max_size=20),
    removed=st.lists(IDENTITIES, max_size=20),
)
def test_many_at_once(
    added: list[Identity], held: list[tuple[Identity, int]], removed: list[Identity]
) -> None:
    timers, twin = CancelledTimers(), CancelledTwin()
    timers.add(*columns(added))
    for identity in added:
        twin.add(identity)
    low, deletes = columns([(identity[1], delete) for identity, delete in held])
    timers.add_held(low, deletes)
    for identity, delete in held:
        twin.add_held(identity, delete)
    asked = [*added, *removed, *(identity for identity, _ in held)]
    compare(timers, twin, asked)
    for identity in removed:
        assert act(timers, REMOVE, identity) == twin.remove(identity)
    compare(timers, twin, asked)
    copy = np.zeros(timers.set.length, np.int64)
    _act(timers.set, COPY, 0, 0, 0, copy.view(np.uint8))
    assert (copy == timers.table).all()


@given(count=st.integers(0, 2 * LENGTH_MIN))
def test_there_is_room_for_as_many_as_were_reserved(count: int) -> None:
    timers = CancelledTimers()
    timers.grow(count)
    timers.set.count = max(0, count - 1)
    assert act(timers, HAS_ROOM, (0, 0))
    timers.set.count = timers.set.length // ROOM_WORDS
    assert not act(timers, HAS_ROOM, (0, 0))


def test_it_grows_with_all_that_it_holds() -> None:
    timers, twin = CancelledTimers(), CancelledTwin()
    for i in range(3 * LENGTH_MIN):
        if not act(timers, HAS_ROOM, (0, 0)):
            assert timers.set.count * ROOM_WORDS == timers.set.length
            timers.grow(1)
        identity = (OURS, i + LEVEL_MARK * (i % 3 == 0))
        assert act(timers, ADD, identity)
        twin.add(identity)
        if i % 2:
            act(timers, PASS, identity, 9_000_000 - i)
            twin.pass_delete(identity, 9_000_000 - i)
    compare(timers, twin, list(twin.held))
    for identity in list(twin.held):
        assert act(timers, REMOVE, identity) and twin.remove(identity)
    compare(timers, twin, [(OURS, 1)])
    assert not timers.table.any()


@pytest.mark.parametrize("word", ["count", "timer_count", "level_count", "held_count", "held_from"])
def test_check_finds_a_count_that_is_wrong(word: str) -> None:
    timers = CancelledTimers()
    timers.add(*columns([(OURS, 5), (OURS, LEVEL_MARK | 5)]))
    check_cancelled(timers)
    setattr(timers.set, word, 7)
    with pytest.raises(AssertionError):
        check_cancelled(timers)


def test_check_finds_an_entry_out_of_its_place() -> None:
    timers = CancelledTimers()
    timers.add(*columns([(OURS, 5)]))
    table = timers.table
    at = int(np.flatnonzero(table)[0]) // 2 * 2
    table[[at + 2, at + 3]] = table[[at, at + 1]]
    table[[at, at + 1]] = 0
    with pytest.raises(AssertionError):
        check_cancelled(timers)


def test_the_twin_means_the_same() -> None:
    assert (OURS, LEVEL_MARK) == (IDENTITY_OURS, format.LEVEL_MARK)
    assert IDENTITY_HELD not in (0, OURS)


@given(
    before=st.lists(IDENTITIES, max_size=20),
    meanwhile=st.lists(st.tuples(st.booleans(), IDENTITIES), max_size=30),
)
def test_it_grows_beside_who_uses_it(
    before: list[Identity], meanwhile: list[tuple[bool, Identity]]
) -> None:
    """What comes and goes while entries are hashed anew has come and gone in the larger table."""
    timers, twin = CancelledTimers(), CancelledTwin()
    for identity in before:
        if twin.held.get(identity) is None:
            assert act(timers, ADD, identity) == twin.add(identity)

    def grow_meanwhile(table: Any, count: int) -> Any:
        larger = grown(table, count)
        for comes, identity in meanwhile:
            if not comes:
                assert act(timers, REMOVE, identity) == twin.remove(identity)
            elif twin.held.get(identity) is None:
                assert act(timers, ADD, identity) == twin.add(identity)
        return larger

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cancelled, "grown", grow_meanwhile)
        timers.grow(LENGTH_MIN)
    assert timers.set.length > LENGTH_MIN and len(timers.table) == timers.set.length
    compare(timers, twin, [*before, *(identity for _, identity in meanwhile)])


def test_it_grows_before_it_is_full() -> None:
    timers = CancelledTimers()
    room = timers.set.length // ROOM_WORDS
    timers.add(*columns([(OURS, low) for low in range(room * 3 // 4)]))
    timers.prepare()
    assert timers.set.length == room * ROOM_WORDS
    timers.add(*columns([(OURS, room)]))
    timers.prepare()
    assert timers.set.length == 2 * room * ROOM_WORDS
    check_cancelled(timers)
