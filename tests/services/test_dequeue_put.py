"""Dequeue-put: from the dequeue ring to the log, beside its twin; with a need in its midst."""

from datetime import timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests import naive
from tests.naive_copying import LOST, Appended, DequeuePut
from tests.naive_services import (
    FAR,
    LEVEL_MARK,
    MARKS_DELETE,
    NO_NEED,
    PLACES,
    PLAIN,
    Log,
    Taken,
)
from tests.services.alone import (
    DEQUEUE_GET,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    ENQUEUE_PUT,
    PRECISION_MS,
    RING_COUNT,
    START_MS,
    START_SLOT,
    Alone,
    brokers_timer,
    delete,
    step,
    timer,
)
from tests.small_store import SMALL
from timerstore.services.world import needs

KINDS = ["ours"] * 5 + ["brokers", "their queue", "rolled once"]
KINDS += ["delete", "delete", "delete beside a roll", "delete not there"]
KINDS += ["level's delete", "cancelled", "cancelled"]
KINDS += ["size", "crc", "not there", "behind", "before"]
TOPICS = st.sampled_from(["orders", "orders", "t" * 120, "late"])
ITEMS = st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.integers(0, 99), TOPICS)
TURNS = st.lists(
    st.tuples(
        st.integers(0, 12),  # entries that dequeue-get hands on
        st.sampled_from([0, 1, 60, 100, 250, -300]),  # the clock's step, ms
        st.integers(0, 3),  # slots that dequeue-get walks
    ),
    min_size=1,
    max_size=10,
)


def put(alone: Alone, log: Log, kind: str, slot: int, within_ms: int, topic: str) -> Taken:
    """Put a message, spoil it where its kind says so; return its entry of the dequeue ring."""
    at = slot * PRECISION_MS + within_ms
    own = naive.encode_unique_key(naive.UniqueKey(at, 4_711 + within_ms % 2, alone.tag))
    made, magic = timer(alone.tag, topic, at, TAGS="red" if within_ms % 2 else "ä"), PLAIN
    if kind == "brokers":
        made = brokers_timer(topic, at - PRECISION_MS, f"k{within_ms % 3}")
    elif kind == "their queue":
        made = brokers_timer(topic, at, "k", REAL_QID=str(within_ms % 3))
    elif kind == "rolled once":
        made = timer(alone.tag, topic, at, TIMER_ROLL_TIMES="3")
    elif kind.startswith("delete"):
        far_ms = 20 * PRECISION_MS * (kind == "delete beside a roll")
        made, magic = delete(alone.tag, topic, at + far_ms, own), PLAIN | MARKS_DELETE
    elif kind == "level's delete":
        place = 4_711 + within_ms % 2 | LEVEL_MARK
        own = naive.encode_unique_key(naive.UniqueKey(at, place, alone.tag))
        made, magic = delete(alone.tag, topic, at, own), PLAIN | MARKS_DELETE
    placed = alone.put(made, indexed=False)
    log.take(placed)
    offset, size = placed.offset, placed.size_bytes
    if kind == "crc":
        alone.spoil(offset + 89, 1)
        log.spoilt.add(offset)
    places = {"behind": offset + 40 * 4_096, "before": -9, "not there": offset + 4}
    offset = places.get(kind.removeprefix("delete "), offset)
    if magic == PLAIN | MARKS_DELETE:
        return Taken(offset, 0, slot % PLACES, MARKS_DELETE, slot)
    return Taken(offset, size + (kind == "size"), slot % PLACES, magic, at)


def compare(alone: Alone, twin: DequeuePut, start: int) -> None:
    """Whatever dequeue-put appends or counts is what the twin does."""
    assert alone.messages(start) == twin.to.copies
    for name, count in twin.to.queues.items():
        row = alone.row(*name)
        copies = [each for each in twin.to.copies if (each.topic, each.queue_id) == name]
        assert count == len(copies)
        assert alone.entries(row) == [
            naive.Entry(each.offset, each.size_bytes, naive.tags_code(each, [])) for each in copies
        ]
    for topic in {name for name, _ in twin.to.queues}:
        rows = [alone.row(*name) for name in twin.to.queues if name[0] == topic]
        assert sum(map(alone.pending, rows)) == twin.pending[topic]
    found = {name: alone.cursor(name) for name in ("read", "frontier")}
    assert found == {name: getattr(twin, name) for name in found}
    counts = {name: alone.cursor(name) for name in ("fired", "dropped")}
    assert counts == {name: twin.counts[name] for name in counts}
    assert (alone.lost(), alone.unreadable_count) == (twin.lost, twin.counts[LOST])
    columns = {
        "settled": [twin.settled[place] for place in range(PLACES)],
        "first_copy": [twin.first_copy.get(place, FAR) for place in range(PLACES)],
    }
    assert {name: alone.slot_column(name) for name in columns} == columns
    assert alone.cancelled() == twin.cancelled
    assert alone.held_from == twin.held_from
    assert alone.cursor("lateness_sum") == sum(twin.late_ms)
    assert alone.cursor("lateness_max") == max(twin.late_ms, default=0)


def answer(alone: Alone, twin: DequeuePut) -> None:
    """Give both what they need."""
    kind, message = twin.need
    if kind == "lost":
        alone.name_lost()
        twin.lost.clear()
    elif kind:
        twin.to.answer(kind, message)
        alone.meet()
    twin.need = NO_NEED


@given(
    st.lists(ITEMS, max_size=40),
    TURNS,
    st.integers(0, 2 * RING_COUNT),
    st.sets(st.integers(0, 3), max_size=2),
    st.integers(0, 15),
)
def test_alone(
    items: list[tuple[str, int, int, str]],
    turns: list[tuple[int, int, int]],
    begin: int,
    unmapped: set[int],
    cancelled: int,
) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        engine = alone.engine
        items = sorted(items, key=lambda item: item[1])
        log = Log(alone.tag, PRECISION_MS, engine.commitlog.segment_bytes)
        entries = [put(alone, log, k, START_SLOT + s, ms, topic) for k, s, ms, topic in items]
        last = engine.commitlog.end // log.segment_bytes
        log.unmapped = alone.unmap(engine.commitlog, *(unmapped - {last}))
        mapped = alone.writable()
        topic_rows = {(naive.TIMER_TOPIC, 0): 0, ("orders", 0): 0}
        alone.row("orders")
        to = Appended(log, topic_rows, mapped, set(), engine.queues.segment_entries)
        twin = DequeuePut(to, START_SLOT, START_SLOT, START_MS - 1)
        gone = [log.identity(e.message) for e, item in zip(entries, items, strict=True)
                if item[0] == "cancelled"]  # fmt: skip
        targets = [(-1, 4_711), (-1, 4_712), (-1, 4_711 | LEVEL_MARK), (-1, 4_712 | LEVEL_MARK)]
        twin.cancelled = {*gone, *(t for i, t in enumerate(targets) if cancelled >> i & 1)}
        alone.use_sets(twin.cancelled)
        for each in entries:
            twin.came[each.place] += 1
        for place in range(PLACES):
            late = twin.came[place] // 2
            alone.set_place("late", place, late)
            alone.set_place("chain", place, twin.came[place] - late)
        alone.begin_slots(0, PLACES)
        alone.begin_ring("dequeue", begin)
        start, now_ms, ready, done = log.end, START_MS, 0, 0
        to_the_end = [(40, 200, 5)] * 60
        for count, step_ms, walks in [*turns, *to_the_end]:
            now_ms += step_ms
            more = entries[ready : ready + count]
            rows = [[e.message, e.info, e.at] for e in more]
            alone.push("dequeue", rows)
            ready += len(more)
            twin.walked = max(twin.walked, min(twin.read + walks, START_SLOT + 5))
            alone.set_cursors(walked=twin.walked, claimed=twin.walked)
            settled = sum(twin.settled.values())
            assert alone.step(now_ms) == twin.step(entries[done:ready], now_ms)
            assert alone.need == twin.need
            compare(alone, twin, start)
            done += sum(twin.settled.values()) - settled
            assert alone.waiting("dequeue") == ready - done
            answer(alone, twin)
            if done == len(entries) and twin.read == START_SLOT + 5:
                break
        assert done == len(entries) and twin.read == START_SLOT + 5


def test_a_cancel_counts_once_while_a_slot_is_half_passed(tmp_path: Path) -> None:
    """A slot whose deletes are forgotten in part is not passed: one of them is not mapped."""
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(tmp_path, config=SMALL, clock=clock) as store:
        engine = store.core.engine
        rolled = store.put(b"a", topic="t", at_ms=START_MS + 60_900)  # beyond the roll window
        assert store.cancel(rolled)
        clock.advance(timedelta(seconds=50))  # it was dropped on the way, its delete went on
        store.put_many([b"x" * 1_000] * 200, topic="other", delay_ms=0)
        clock.advance(timedelta(seconds=1))
        taken = store.put(b"b", topic="t", at_ms=START_MS + 60_100)
        assert store.cancel(taken)
        segment = engine.commitlog.end // engine.commitlog.segment_bytes
        store.put_many([b"x" * 1_000] * 200, topic="other", delay_ms=0)
        clock.advance(timedelta(seconds=9, milliseconds=999))
        assert store.count("t") == 0

        now_ms = START_MS + 61_000
        for service in (ENQUEUE_GET, ENQUEUE_PUT, DEQUEUE_GET):
            step(engine.world, service, now_ms)
        engine.commitlog._unmap(segment)
        slot = engine.read_slot
        step(engine.world, DEQUEUE_PUT, now_ms)
        assert engine.need(DEQUEUE_PUT) == needs.COMMITLOG_READ
        assert engine.read_slot == slot
        assert store.cancel_many([rolled, taken]).tolist() == [False, False]
        assert store.count("t") == 0
