"""Enqueue-get alone: from the timer topic's queue to the enqueue ring, beside its twin."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive, naive_services
from tests.services.alone import (
    ENQUEUE_GET,
    PRECISION_MS,
    RING_COUNT,
    START_MS,
    Alone,
    brokers_timer,
    delete,
    timer,
)
from tests.strategies import SOME_TEXT
from timerstore.wheel.timerwheel import CHECKED, CHECKING

TOPICS = st.sampled_from(["orders", "ünïcode", "t" * 120])
AHEAD = st.integers(-5_000, 500_000)
SOUND = ["ours", "brokers", "delete", "brokers delete", "level's delete"]
WRONG = ["size", "another's", "not there", "behind", "before", "index", "queue", "topic"]
WRONG += ["no due time", "no real topic", "crc"]


def message(alone: Alone, kind: str, topic: str, ahead_ms: int, word: str) -> naive.Message:
    """A message of a kind, before it is put."""
    due_ms = START_MS + ahead_ms
    if kind == "brokers":
        return brokers_timer(topic, due_ms, word, TIMER_DELIVER_MS=str(due_ms + ahead_ms % 150))
    if kind == "brokers delete":
        return brokers_timer(topic, due_ms, "k", TIMER_DEL_UNIQKEY=word)
    if kind in ("delete", "level's delete"):
        place = 4_711 | (naive_services.LEVEL_MARK if kind == "level's delete" else 0)
        key = naive.encode_unique_key(naive.UniqueKey(due_ms, place, alone.tag))
        return delete(alone.tag, topic, due_ms, key)
    made = timer(alone.tag, topic, due_ms, KEYS=word)
    if kind == "no due time":
        del made.properties["TIMER_OUT_MS"]
    if kind == "no real topic":
        del made.properties["REAL_TOPIC"]
    return made


def put(alone: Alone, log: naive_services.Log, made: naive.Message, kind: str) -> naive.Entry:
    """Put a message with its entry, one of them not as it should be; return the entry."""
    index = alone.engine.queues.next_index(0)
    if kind in ("index", "queue", "topic"):
        placed = alone.put(replace(made, topic="rmq_sys_wheel_other"), indexed=False)
        changed = {"index": {"queue_offset": index + 1}, "queue": {"queue_id": 1}, "topic": {}}
        named = {"queue_offset": index, "topic": naive.TIMER_TOPIC} | changed[kind]
        named |= {"topic": "rmq_sys_wheel_timex"} if kind == "topic" else {}
        placed = replace(placed, **named)
        alone._write(alone.engine.commitlog, placed.offset, naive.encode_message(placed))
    else:
        placed = alone.put(made, indexed=False)
        placed = replace(placed, queue_offset=index)
        alone._write(alone.engine.commitlog, placed.offset, naive.encode_message(placed))
    alone.engine.commitlog.end = placed.offset + placed.size_bytes
    log.take(placed)
    if kind == "crc":
        alone.spoil(placed.offset + 85 + 4, 1)
        log.spoilt.add(placed.offset)
    offset, size = placed.offset, placed.size_bytes
    changed_entry = {
        "size": (offset, size + 1),
        "another's": (0, log.messages[0].size_bytes),
        "not there": (offset + 4, size),
        "behind": (log.end + 4_096, size),
        "before": (-4_096, size),
    }
    entry = naive.Entry(*changed_entry.get(kind, (offset, size)), 0)
    alone.write_entry(0, index, entry)
    return entry


def seen(row: list[int]) -> naive_services.Enqueued:
    """An entry of the enqueue ring, without what its kind leaves unsaid."""
    entry = naive_services.Enqueued(*row)
    if entry.kind == naive_services.UNREADABLE:
        return entry._replace(out_ms=0, due_ms=0, topic_hash=0, high=0, low=0)
    return entry if entry.kind == naive_services.DELETE else entry._replace(high=0, low=0)


@given(
    st.lists(st.tuples(st.sampled_from(SOUND * 4 + WRONG), TOPICS, AHEAD, SOME_TEXT), max_size=30),
    st.integers(RING_COUNT, 2 * RING_COUNT),
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.sets(st.integers(0, 3), max_size=2),
    st.booleans(),
)
def test_alone(
    items: list[tuple[str, str, int, str]],
    begin: int,
    rooms: list[int],
    unmapped: set[int],
    recovering: bool,
) -> None:
    with Alone(ENQUEUE_GET) as alone:
        engine = alone.engine
        log = naive_services.Log(alone.tag, PRECISION_MS, engine.commitlog.segment_bytes)
        items = [("ours", "orders", 0, "first"), *items]
        entries = [put(alone, log, message(alone, *item), item[0]) for item in items]
        log.unmapped = alone.unmap(engine.commitlog, *unmapped)
        gone = alone.unmap(engine.queues.files[0], *unmapped)
        twin = naive_services.EnqueueGet(
            log, entries, gone, engine.queues.segment_entries, recovering=recovering
        )
        alone.set_cursors(recovering=int(recovering))
        alone.begin_ring("enqueue", begin)
        handed, lost_count = list[naive_services.Enqueued](), 0
        for turn in range(300):
            twin.room = rooms[turn % len(rooms)]
            alone.leave_room("enqueue", twin.room)
            assert alone.step(START_MS) == twin.step()
            assert (alone.need, alone.lost()) == (twin.need, twin.lost)
            handed = [seen(row) for row in alone.since("enqueue", begin)]
            assert (handed, alone.cursor("got")) == (twin.out, twin.got)
            kind, place = twin.need
            if kind == "lost":
                alone.name_lost()
                lost_count += len(twin.lost)
                twin.lost.clear()
            elif kind == "bad entry":
                twin.pass_index = place
                alone.set_cursors(pass_index=place)
                alone.clear_need()
            elif kind:
                alone.meet()
                if kind == "commitlog read":
                    log.unmapped.discard(place // log.segment_bytes)
                else:
                    gone.discard(place // naive.ENTRY_BYTES // twin.segment_entries)
            twin.need = naive_services.NO_NEED
            if twin.got == len(entries) and not twin.lost:
                break
        else:
            assert not any(rooms), "it stands still"
        assert alone.unreadable_count == lost_count


def test_what_is_another_ones_message_is_not_passed_by() -> None:
    with Alone(ENQUEUE_GET) as alone:
        placed = alone.put(timer(alone.tag, "orders", START_MS))
        entry = alone.entries(0)[0]
        for index in range(1, 600):  # entries of one message: only the first is its own
            alone.write_entry(0, index, entry)
        assert alone.step(START_MS) == 1
        assert alone.need == ("bad entry", 1) and alone.cursor("got") == 1
        assert alone.since("enqueue", 0)[0][2] == placed.offset


def test_nothing_is_asked_for_where_the_queue_is_empty() -> None:
    with Alone(ENQUEUE_GET) as alone:
        assert alone.step(START_MS) == 0
        assert (alone.need, alone.waiting("enqueue")) == (("", 0), 0)


@pytest.mark.parametrize("recovering", [0, CHECKING, CHECKED])
def test_a_checksum_is_looked_at_in_recovery_alone(recovering: int) -> None:
    """What a store puts while it is open was just made; what an earlier life left is checked once.

    If recovery's scan has read the whole log, it was.
    """
    with Alone(ENQUEUE_GET) as alone:
        placed = alone.put(timer(alone.tag, "orders", START_MS))
        alone.spoil(placed.offset + 89, 1)
        alone.set_cursors(recovering=recovering)
        assert alone.step(START_MS) == (recovering != CHECKING)
        assert alone.need == (("bad entry", 0) if recovering == CHECKING else ("", 0))
