"""What is captured of an instant, against the same words read one by one."""

import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.small_store import SMALL
from timerstore.services.looking.instant import capture_instant
from timerstore.services.world.rings import waiting_places
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX
from timerstore.wheel.near import near_entries

START_MS = 1_700_000_000_000


def slow_slots(store: timerstore.TimerStore) -> list[tuple[int, int]]:
    world = store.core.engine.world
    start = world.dequeue_get.claimed_slot
    stop = world.flush.checkpointed_slot + 2 * world.settings.slot_count
    slots, get = store.core.engine.wheel.slots, world.dequeue_get
    owed = [(slot, int(world.near.owed[slot % len(world.near.owed)]))
            for slot in range(get.owed_slot, get.claimed_slot)]  # fmt: skip
    found = [(int(s["time"]), int(s["last"])) for s in slots if start <= s["time"] < stop]
    return sorted([each for each in owed if each[1] >= 0] + found)


def slow_messages(store: timerstore.TimerStore) -> list[int]:
    world = store.core.engine.world
    ring = world.dequeue_ring
    taken = ring.message[waiting_places(ring.ends)]
    return sorted(near_entries(world.near)[1].tolist() + taken.tolist())


def pairs(table: np.ndarray) -> set[tuple[int, int]]:
    return {(high, low) for high, low in table.reshape(-1, 2).tolist() if high or low}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 90_000)),
        st.tuples(st.just("level"), st.integers(1, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("pass"), st.integers(1, 20_000)),
    ),
    max_size=30,
)


@given(steps)
def test_an_instant_is_what_the_words_say(steps: list[tuple[str, int]]) -> None:
    clock = timerstore.ManualClock(START_MS)
    with (
        tempfile.TemporaryDirectory() as folder,
        timerstore.open(Path(folder) / "store", config=SMALL, clock=clock) as store,
    ):
        ids: list[str] = []
        for what, value in steps:
            if what == "put":
                ids.append(store.put(b"b", at_ms=clock.now_ms + value))
            elif what == "level":
                ids.append(store.put(b"b", delay_level=value))
            elif what == "cancel" and ids:
                store.cancel(ids[value % len(ids)])
            elif what == "pass":
                clock.advance(timedelta(milliseconds=value))
        world, levels = store.core.engine.world, 18
        found = capture_instant(store.core.engine)
        assert sorted(found.messages.tolist()) == slow_messages(store)
        assert [tuple(row) for row in found.slots.tolist()] == slow_slots(store)
        assert pairs(found.cancelled) == pairs(store.core.engine.cancelled.table)
        assert len(pairs(found.cancelled)) == store.core.engine.cancelled.set.count
        assert found.pending_count == store.count() == len(list(store.pending()))
        snapshot = found.snapshot
        assert snapshot.claimed == world.dequeue_get.claimed_slot
        assert snapshot.read == store.core.engine.read_slot
        assert snapshot.timerlog_end == store.core.engine.timerlog.end
        assert snapshot.queue_start == world.enqueue_put.linked_index
        assert snapshot.queue_end == store.core.engine.queues.next_index(0)
        assert found.level_start.tolist() == store.core.engine.levels.offset[:levels].tolist()
        waiting = int((found.level_stop - found.level_start).sum())
        assert waiting >= store.core.engine.queues.table.pending[QUEUE_COUNT_MAX:].sum()
        assert snapshot.top == world.flush.checkpointed_slot + 2 * world.settings.slot_count
        assert snapshot.floor.offset == world.cleaning.floor
        light = capture_instant(store.core.engine, whole=False)
        assert sorted(light.messages.tolist()) == slow_messages(store)
        assert len(light.cancelled) == len(light.slots) == 0
