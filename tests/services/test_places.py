"""Where timers wait in an open store, against what the twins read in its files."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given

import timerstore
from tests import naive
from tests.table_stores import LIVES, live
from timerstore.services.looking.instant import Instant, capture_instant
from timerstore.services.looking.timer_places import (
    level_messages,
    slot_messages,
    unlinked_messages,
)


def segments(folder: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in folder.iterdir()}


def slow_wheel(store: timerstore.TimerStore, instant: Instant) -> list[int]:
    """What was claimed, see `test_instant.py`; by the twins, what has no unit, and the chains."""
    world, path = store.core.engine.world, store.core.path
    units = naive.scan_timer_log(segments(path / "timerlog")).units
    found = list(instant.messages.tolist())
    queue = path / "consumequeue" / naive.TIMER_TOPIC / "0"
    entries = naive.scan_queue(segments(queue)) if queue.is_dir() else {}
    linked = world.enqueue_put.linked_index
    found += [entry.message_offset for index, entry in entries.items() if index >= linked]
    get, passed = world.dequeue_get, world.dequeue_put.passed_slot
    top = passed + 2 * world.settings.slot_count
    for slot in naive.used_slots(store.core.engine.wheel.array.slots.tobytes()).values():
        if get.claimed_slot <= slot.number < top:
            for at in naive.walk_chain(units, slot.last_offset):
                found.append(units[at].message_offset)
    near = store.core.engine.near
    for number in range(get.owed_slot, get.claimed_slot):
        for at in naive.walk_chain(units, int(near.owed[number % len(near.owed)])):
            found.append(units[at].message_offset)
    return sorted(found)


def slow_levels(store: timerstore.TimerStore) -> list[tuple[int, int]]:
    engine, found = store.core.engine, list[tuple[int, int]]()
    for level in range(18):
        folder = store.core.path / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / str(level)
        if folder.is_dir():
            for index, entry in naive.scan_queue(segments(folder)).items():
                if index >= engine.levels.offset[level] and entry != naive.QUEUE_BLANK:
                    found.append((entry.message_offset, entry.tags_code))
    return sorted(found)


@given(life=LIVES)
def test_places_are_what_the_twins_say(life: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = live(Path(folder) / "s", life)
        store.flush()
        engine = store.core.engine
        instant = capture_instant(engine)
        at = instant.snapshot
        in_levels, due_ms = level_messages(engine, instant)
        waiting, levels = slow_wheel(store, instant), slow_levels(store)
        assert sorted(zip(in_levels.tolist(), due_ms.tolist(), strict=True)) == levels
        parts = [instant.messages, unlinked_messages(engine, at)]
        parts += [slot_messages(engine, at, slot) for slot, _ in instant.slots.tolist()]
        assert sorted(np.concatenate(parts).tolist()) == waiting
        store.abandon()
