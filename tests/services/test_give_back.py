"""Memory of slots that were passed is given back, and never that of a place in use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import kernel
from tests.services.alone import CONFIG, DEQUEUE_PUT, Alone
from timerstore.jit.locks import lock_if_free, lock_release
from timerstore.jit.record import Words
from timerstore.services.durable.flush import give_back
from timerstore.wheel.near import PAGE_PLACES

PLACES = 4 * PAGE_PLACES
BASE_SLOT = 1_000 * PLACES
TUNING = replace(CONFIG.tuning, wheel_slot_count=2 * PLACES)


@kernel
def _take(lock: Words) -> bool:
    return lock_if_free(lock)


@kernel
def _give(lock: Words) -> None:
    lock_release(lock)


@contextmanager
def marked(read: int, claimed: int) -> Iterator[Alone]:
    """An engine each place of which is marked, with the read cursor and the claim cursor."""
    with Alone(DEQUEUE_PUT, tuning=TUNING) as alone:
        near = alone.engine.near
        assert len(near.waiting) == PLACES
        for name in ("settled", "cut"):
            getattr(near, name)[:] = 1
        alone.set_cursors(read=read, claimed=claimed)
        yield alone


def given_places(alone: Alone) -> set[int]:
    """The places whose memory was given back."""
    settled, cut = alone.slot_column("settled"), alone.slot_column("cut")
    assert settled == cut
    return {place for place, mark in enumerate(settled) if not mark}


def naive_given(start: int, stop: int, read: int, claimed: int) -> set[int]:
    """Whole pages of which a slot in the range was the last one, and none is claimed now."""
    used, found = {slot % PLACES for slot in range(read, claimed)}, set[int]()
    for page in range(start // PAGE_PLACES, stop // PAGE_PLACES):
        slots = range(page * PAGE_PLACES, (page + 1) * PAGE_PLACES)
        places = {slot % PLACES for slot in slots}
        if slots[0] >= start and not places & used:
            found |= places
    return found


@given(
    st.integers(0, 3 * PLACES),
    st.integers(0, 3 * PLACES),
    st.integers(0, 3 * PLACES),
    st.integers(0, PLACES),
)
def test_places_of_passed_slots_are_given_back_and_no_other(
    start: int, count: int, leapt: int, claimed: int
) -> None:
    """The read cursor may have leapt since it was made durable."""
    start += BASE_SLOT
    stop = start + count
    read = stop + leapt
    with marked(read, read + claimed) as alone:
        again = give_back(alone.engine.world, start, stop)
        assert start <= again <= max(start + PAGE_PLACES, stop)
        found = given_places(alone)
        assert found <= naive_given(start, stop, read, read + claimed)
        assert not found & {slot % PLACES for slot in range(read, read + claimed)}
        if read + claimed <= start + PLACES:  # the places were not used since
            assert found == naive_given(start, stop, read, read + claimed)


def test_a_clock_that_leaps_within_the_call() -> None:
    """The claim cursor moves while it waits for wheel: what it has reached is in use."""
    start, stop = BASE_SLOT, BASE_SLOT + 2 * PAGE_PLACES
    with marked(stop, stop + 2) as alone:
        world = alone.engine.world
        caller = Thread(target=give_back, args=(world, start, stop))
        assert _take(world.wheel_lock)
        caller.start()
        caller.join(0.05)
        leapt = BASE_SLOT + PLACES + 7
        alone.set_cursors(read=leapt, claimed=leapt + 1)
        _give(world.wheel_lock)
        caller.join()
        assert given_places(alone) == set(range(PAGE_PLACES, 2 * PAGE_PLACES))


def test_few_places_are_kept() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        alone.engine.near.settled[:] = 1
        assert give_back(alone.engine.world, 0, 1_000) == 1_000
        assert alone.engine.near.settled.all()
