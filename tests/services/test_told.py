"""What a put or a cancel tells of its messages is what enqueue-get would have read in the log."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
from tests.services.alone import step
from tests.small_store import SMALL
from timerstore.jit.record import ALONE, Words, acting_as
from timerstore.services.running.runner import provide
from timerstore.services.world.state import (
    ENQUEUE_GET,
)
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.writing.append import TOLD_COLUMNS

START_MS = 1_700_000_000_000
COMPARED = ("kind", "message", "size", "out_ms", "due_ms", "topic_hash")


def read_all(store: timerstore.TimerStore) -> Words:
    """Have enqueue-get read everything anew; return what it handed on."""
    engine = store.core.engine
    ring = engine.world.enqueue_ring
    with acting_as(ALONE):
        ring.ends.head = ring.ends.tail = 0
        engine.world.enqueue_get.fetched_index = 0
    while step(engine.world, ENQUEUE_GET, START_MS) or engine.needing() >= 0:
        if engine.needing() >= 0:
            provide(engine, engine.needing())
    return np.array([getattr(ring, name)[: ring.ends.tail] for name in COMPARED])


@settings(max_examples=20)
@given(
    puts=st.lists(
        st.tuples(
            st.sampled_from(["t", "%RETRY%a|b", "x" * 120]),
            st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=30),
            st.integers(1, 10**9),
            st.booleans(),
            st.sampled_from(["put_many", "put", "properties", "cancel", "reschedule", "level"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_told_or_read(
    puts: list[tuple[str, list[bytes], int, bool, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("told")
    clock = timerstore.ManualClock(START_MS)
    store = timerstore.TimerStore(path, config=SMALL, clock=clock, disk=QuietDisk())
    for topic, bodies, delay_ms, tagged, way in puts:
        tag = "a tag" if tagged else None
        if way == "put_many":
            keys = ["key"] * len(bodies) if tagged else None
            store.put_many(bodies, topic=topic, delay_ms=delay_ms, keys=keys, tag=tag)
            continue
        for body in bodies[:3]:
            if way == "level":
                store.put(body, topic=topic, delay_level=3, tag=tag)
                continue
            properties = {"a": "b"} if way == "properties" else None
            at_ms = START_MS + delay_ms
            id = store.put(body, topic=topic, at_ms=at_ms, tag=tag, properties=properties)
            if way == "cancel":
                store.cancel(id)
            elif way == "reschedule":
                store.reschedule(id, at_ms=at_ms + 5)
    told, table = read_all(store), store.core.engine.queues.table.told
    index, *_, size_hash = table.reshape(-1, TOLD_COLUMNS).T
    assert (index >= 0).any() or all(way != "put_many" for *_, way in puts)
    are_deletes = (index >= 0) & (size_hash < 0)
    assert are_deletes.any() or all(way != "cancel" for *_, way in puts)
    table[:] = -1
    assert told.tolist() == read_all(store).tolist()
    store.abandon()
