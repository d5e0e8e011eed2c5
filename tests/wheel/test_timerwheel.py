"""Slots against a dict, then the file: which pages are written, when, what is refused."""

import doctest
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import as_array
from tests.kernels import kernel
from tests.watched import Watched
from timerstore.errors import NotAStoreError
from timerstore.jit.kernel import INTERPRETED
from timerstore.timelog.bytes.unit import NO_UNIT
from timerstore.timelog.files.disk import Disk
from timerstore.wheel import timerwheel
from timerstore.wheel.timerwheel import (
    PAGE_BYTES,
    Slot,
    SlotArray,
    TimerWheel,
    link_unit,
    new_slot_array,
    next_used_slot,
    set_slot,
    slot_last,
)

pytestmark = pytest.mark.on_disk

SLOT_COUNT = 64
RING = 2 * SLOT_COUNT
PAGES_RING = 7 * 64


@kernel
def _link(wheel: Any, slot: int, offset: int, change: int) -> None:
    link_unit(wheel, slot, offset, change)


@kernel
def _set(wheel: Any, slot: int, first: int, last: int, count: int) -> None:
    set_slot(wheel, slot, first, last, count)


@kernel
def _last(wheel: Any, slot: int) -> int:
    return slot_last(wheel, slot)


def new_array(data: bytes = bytes(RING * 32)) -> SlotArray:
    return new_slot_array(as_array(data), [(0, len(data))])


@kernel
def _next_used(wheel: Any, slot: int, stop: int) -> int:
    return next_used_slot(wheel, slot, stop)


SLOTS = st.integers(1, 3 * RING)
ACTIONS = st.lists(
    st.tuples(st.just("link"), SLOTS, st.sampled_from([1, 1, -1]))
    | st.tuples(st.just("set"), SLOTS, st.integers(-5, 5))
    | st.tuples(st.just("empty"), SLOTS, st.just(0)),
    max_size=40,
)


@given(actions=ACTIONS)
def test_slots(actions: list[tuple[str, int, int]]) -> None:
    array = new_array()
    held: dict[int, naive.Slot] = {}  # by index in the ring
    dirty = set()
    for i, (action, slot, count) in enumerate(actions):
        offset, index = 52 * i, naive.slot_index(slot, SLOT_COUNT)
        dirty.add(index * naive.SLOT_BYTES // PAGE_BYTES)
        before = held.get(index)
        if action == "link":
            _link(array, slot, offset, count)
            if before is not None and before.number == slot:
                held[index] = naive.Slot(
                    slot, before.first_offset, offset, before.net_count + count
                )
            else:
                held[index] = naive.Slot(slot, offset, offset, count)
        elif action == "set":
            _set(array, slot, 7, offset, count)
            held[index] = naive.Slot(slot, 7, offset, count)
        else:
            _set(array, slot, NO_UNIT, NO_UNIT, 0)
            held[index] = naive.Slot(-1, NO_UNIT, NO_UNIT, 0)
    assert naive.used_slots(array.slots.tobytes()) == held
    assert set(np.flatnonzero(array.dirty).tolist()) == dirty
    by_number = {slot.number: slot.last_offset for slot in held.values() if slot.number > 0}
    for slot in range(1, 3 * RING + 1):
        assert _last(array, slot) == by_number.get(slot, NO_UNIT)


@given(
    before=st.sets(st.integers(1, 3 * PAGES_RING), max_size=3),
    then=st.lists(st.tuples(st.integers(1, 3 * PAGES_RING), st.booleans()), max_size=6),
    begin=st.integers(1, 3 * PAGES_RING),
    count=st.sampled_from([0, 1, 7, 128, 200, PAGES_RING, PAGES_RING + 1, 9 * PAGES_RING]),
)
def test_next_used_slot(
    before: set[int], then: list[tuple[int, bool]], begin: int, count: int
) -> None:
    """Over a ring of three pages and a half, with slots of several rounds."""
    data = bytearray(PAGES_RING * naive.SLOT_BYTES)
    held: dict[int, int] = {}
    for slot in before:
        held[slot % PAGES_RING] = slot
        at = slot % PAGES_RING * naive.SLOT_BYTES
        data[at : at + naive.SLOT_BYTES] = naive.encode_slot(naive.Slot(slot, 5, 5, 1))
    array = new_array(bytes(data))
    for slot, is_emptied in then:
        _set(array, slot, 7, NO_UNIT if is_emptied else 7, 1)
        held[slot % PAGES_RING] = -1 if is_emptied else slot
    stop = min(begin + count, begin + PAGES_RING)
    used = min((slot for slot in held.values() if begin <= slot < stop), default=-1)
    found = _next_used(array, begin, begin + count)
    assert found == used if used >= 0 else found >= begin + count


@pytest.mark.skipif(not INTERPRETED, reason="it counts what the kernel looks at")
def test_slots_of_pages_in_which_none_is_later_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = 2 * 604_800
    array, looked = new_array(bytes(ring * naive.SLOT_BYTES)), list[int]()
    begin = 1_800_000_000
    for slot in (begin - 300_000, begin - 1, begin + 172_799):
        _link(array, slot, 52, 1)

    def look(wheel: SlotArray, slot: int) -> int:
        looked.append(slot)
        return slot_last(wheel, slot)

    monkeypatch.setattr(timerwheel, "slot_last", look)
    assert _next_used(array, begin, begin + ring) == begin + 172_799
    assert len(looked) <= 128


# --- the file


def test_a_new_wheel_is_empty_and_a_hole(tmp_path: Path) -> None:
    disk = Watched()
    wheel = TimerWheel(disk, tmp_path / "timerwheel", 604_800)
    assert ("sync_folder", tmp_path.name) in disk.events
    status = (tmp_path / "timerwheel").stat()
    assert (status.st_size, status.st_blocks) == (38_707_200, 0)
    assert {_last(wheel.array, slot) for slot in range(1, 2_000)} == {NO_UNIT}
    wheel.close()
    wheel.close()


def test_the_file_gets_the_pages_that_it_does_not_have(tmp_path: Path) -> None:
    disk, path = Watched(), tmp_path / "timerwheel"
    wheel = TimerWheel(disk, path, 64 * SLOT_COUNT)
    length = 64 * RING * naive.SLOT_BYTES
    disk.events.clear()
    wheel.write()
    assert disk.events == [] and wheel.disk_bytes == 0
    slots = [3, 4, 200, 300, 64 * RING - 1]  # in pages 0, 0, 1, 2, the last
    for slot in slots:
        wheel.put(Slot(slot, 52 * slot, 52 * slot, 1))
    assert path.read_bytes() == bytes(length) and wheel.disk_bytes == 4 * 4096
    wheel.write()
    own = [("write", "timerwheel")] * 2 + [("sync", "timerwheel")]
    assert disk.events == own and wheel.disk_bytes == 4 * 4096
    expected = {slot: naive.Slot(slot, 52 * slot, 52 * slot, 1) for slot in slots}
    assert naive.used_slots(path.read_bytes()) == expected
    wheel.put(Slot(3, 156, 5200, 2))
    assert naive.used_slots(path.read_bytes()) == expected
    wheel.write()
    assert disk.events == [*own, *own[1:]]
    wheel.close()
    expected[3] = naive.Slot(3, 156, 5200, 2)
    reopened = TimerWheel(disk, path, 64 * SLOT_COUNT)
    assert naive.used_slots(reopened.array.slots.tobytes()) == expected
    array = reopened.array
    reopened.close()
    del reopened
    gc.collect()
    assert _last(array, 200) == 52 * 200


def test_a_wheel_of_another_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    TimerWheel(Disk(), path, 128).close()
    with pytest.raises(NotAStoreError, match="wheel_slot_count=128"):
        TimerWheel(Disk(), path, 64)


def test_a_wheel_that_was_about_to_be_made_is_new(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    path.write_bytes(b"")
    wheel = TimerWheel(Disk(), path, 64)
    assert path.stat().st_size == 128 * 32
    wheel.close()


def test_the_example(tmp_path: Path) -> None:
    done = doctest.testmod(timerwheel, extraglobs={"folder": tmp_path})
    assert done.attempted > 5 and not done.failed
