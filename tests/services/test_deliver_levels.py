"""Delivering from delay levels: alone, beside its twin; in a store: when, in which order."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.full_disks import FullDisk
from tests.kernels import kernel
from tests.naive_copying import LOST, Appended, DeliverLevels, Level
from tests.naive_services import LEVEL_MARK, NO_NEED, Log
from tests.services import alone as one
from tests.small_store import small
from timerstore import ManualClock, TimerStore
from timerstore.errors import StoreFullError
from timerstore.services.pipeline.deliver_levels import clamped_ms
from timerstore.services.world.state import DELIVER_LEVELS
from timerstore.testing.disk import QuietDisk
from timerstore.testing.ledger import LEVEL_TOPIC

START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
SMALL = small(
    4_096,
    60,
    520,
    precision_ms=100,
    roll_window_slots=60,
    wheel_slot_count=1_024,
    retention_ms=3_600_000,
    delay_levels="1s 5s 1m 2h",
)


# --- alone

KINDS = ["ours"] * 6 + ["brokers", "their queue", "sent back", "longer level", "from the future"]
KINDS += ["done", "cancelled", "held", "size", "crc", "behind", "before", "not there", "blank"]
KINDS += ["too early", "too late"]  # says the entry
ITEMS = st.tuples(
    st.integers(1, 3),
    st.sampled_from(KINDS),
    st.sampled_from([-2_000, -1, 0, 1, 300, 2_000]),  # when it is due
    st.sampled_from(["orders", "orders", "t" * 130]),
)
TURNS = st.lists(
    st.tuples(
        st.integers(0, 12),  # messages that come
        st.sampled_from([0, 1, 299, 2_000, -1_500, -70_000]),  # the clock's step, ms
    ),
    min_size=1,
    max_size=10,
)


def put_alone(
    alone: one.Alone, twin: DeliverLevels, number: int, kind: str, ahead_ms: int, topic: str
) -> None:
    """Put a level's message, one of them not as it should be."""
    level, delay_ms, log = twin.levels[number - 1], twin.levels[number - 1].delay_ms, twin.to.log
    due_ms = one.START_MS + ahead_ms
    delay_ms *= 3 if kind == "longer level" else 1
    if kind == "from the future":
        due_ms += 50_000 + delay_ms
    elif kind in ("behind", "before"):
        due_ms += 10**7  # where its message is, its time is looked up there
    made = naive.new_at_level(topic, b"body", number, 0, due_ms, alone.tag, {"TAGS": "a"})
    made.stored_ms = due_ms - delay_ms
    if kind in ("brokers", "their queue"):
        made.properties |= {"UNIQ_KEY": "k", "REAL_QID": "2" if kind == "their queue" else "0"}
    if kind == "sent back":
        key = naive.UniqueKey(due_ms, 5 | LEVEL_MARK, alone.tag)
        made.properties["UNIQ_KEY"] = naive.encode_unique_key(key)
        twin.cancelled.add((-1, 5 | LEVEL_MARK))
    placed = alone.put(made, indexed=False)
    log.take(placed)
    offset, size = placed.offset, placed.size_bytes
    if kind == "crc":
        alone.spoil(offset + 89, 1)
        log.spoilt.add(offset)
    elif kind == "done":
        twin.done.add(offset)
    elif kind in ("cancelled", "held"):
        twin.cancelled.add((-1 if kind == "cancelled" else -2, offset | LEVEL_MARK))
    places = {"behind": offset + 40 * 4_096, "before": -4_096, "not there": offset + 4}
    entry_ms = due_ms + {"too early": -5_000, "too late": 10**9}.get(kind, 0)
    entry = naive.Entry(places.get(kind, offset), size + (kind == "size"), entry_ms)
    entry = naive.Entry(*naive.QUEUE_BLANK) if kind == "blank" else entry
    alone.write_entry(alone.engine.level_row(number), len(level.entries), entry)
    level.entries.append(entry)


def compare(alone: one.Alone, twin: DeliverLevels) -> None:
    """Whatever deliver-levels appends or counts is what the twin does."""
    copied = [alone.message(each.offset, each.size_bytes) for each in twin.to.copies]
    assert (copied, alone.engine.commitlog.end) == (twin.to.copies, twin.to.log.end)
    for name, count in twin.to.queues.items():
        row = alone.row(*name)
        copies = [each for each in twin.to.copies if (each.topic, each.queue_id) == name]
        found = [(entry.message_offset, entry.message_bytes) for entry in alone.entries(row)]
        assert found == [(each.offset, each.size_bytes) for each in copies] and count == len(found)
        assert alone.pending(row, in_levels=True) == -len(copies)
    assert alone.level_offsets(3) == [level.offset for level in twin.levels]
    words = (alone.get_level("turn") % 3, alone.held_from)
    assert words == (twin.turn, twin.held_from)
    counts, names = twin.counts, {"delivered_count": "fired"}
    names |= {f"{name}_count": name for name in ("clamped", "skipped")}
    assert {n: alone.get_level(n) for n in names} == {n: counts[t] for n, t in names.items()}
    assert alone.cursor("fired") == counts["fired"]
    assert alone.cursor("dropped") == counts["dropped"]
    assert (alone.lost(), alone.unreadable_count) == (twin.lost, twin.counts[LOST])
    assert alone.cancelled() == twin.cancelled
    assert alone.cursor("lateness_sum") == sum(twin.late_ms)


def answer(alone: one.Alone, twin: DeliverLevels) -> None:
    """Give both what they need."""
    kind, place = twin.need
    if kind == "lost":
        alone.name_lost()
        twin.lost.clear()
    elif kind:
        level = twin.levels[place] if "level" in kind else None
        if kind == "level read" and level is not None:
            level.mapped = level.offset // twin.to.segment_entries
        elif level is not None:  # a message that is sound is found, whatever its entry says
            level.said, level.head = level.offset, -1
            levels_ms = [int(each) for each in alone.engine.level_ms]
            found = [
                naive.Entry(each.offset, each.size_bytes, naive.tags_code(each, levels_ms))
                for each in twin.to.log.messages.values()
                if (each.topic, each.queue_id) == (LEVEL_TOPIC, place)
                and each.queue_offset == level.offset
                and each.offset not in twin.to.log.spoilt
            ]
            level.entries[level.offset : level.offset + len(found)] = found
        twin.to.answer(kind, place)
        alone.meet()
        log = twin.to.log
        log.unmapped -= alone.engine.commitlog._mapped.keys()
    twin.need = NO_NEED


@given(
    st.lists(ITEMS, max_size=40), TURNS, st.sets(st.integers(0, 3), max_size=2), st.integers(1, 5)
)
def test_alone(
    items: list[tuple[int, str, int, str]],
    turns: list[tuple[int, int]],
    unmapped: set[int],
    batch_max: int,
) -> None:
    with one.Alone(DELIVER_LEVELS, level_batch_count=batch_max) as alone:
        engine = alone.engine
        log = Log(alone.tag, one.PRECISION_MS, engine.commitlog.segment_bytes)
        to = Appended(log, {}, set(), set(), engine.queues.segment_entries)
        levels = [Level(int(delay_ms)) for delay_ms in engine.level_ms]
        twin = DeliverLevels(to, levels, batch_max)
        now_ms, come = one.START_MS, 0
        for count, step_ms in [*turns, (40, 300), *[(0, 120_000)] * 250]:
            now_ms += step_ms
            for item in items[come : come + count]:
                put_alone(alone, twin, *item)
                come += 1
            if count:
                alone.use_sets(twin.cancelled, dict.fromkeys(twin.done, 5), held_from=7)
                if any(high == -2 for high, _ in twin.cancelled):
                    twin.held_from = 7
            last = engine.commitlog.end // log.segment_bytes
            log.unmapped |= alone.unmap(engine.commitlog, *(unmapped - {last}))
            unmapped = set()
            to.segments = alone.writable()
            assert alone.step(now_ms) == twin.step(now_ms)
            assert alone.need == twin.need
            compare(alone, twin)
            answer(alone, twin)
            rest = [len(level.entries) - level.offset for level in levels]
            if come == len(items) and not any(rest):
                break
        assert not any(rest) and come == len(items)


def test_an_entry_that_leads_nowhere_is_passed_by() -> None:
    """Also where its time lies so far ahead that its message would say whether it can."""
    with one.Alone(DELIVER_LEVELS) as alone:
        row = alone.engine.level_row(1)
        alone.write_entry(row, 0, naive.Entry(-4_096, 300, one.START_MS + 10**9))
        for _ in range(3):
            alone.step(one.START_MS)
            if alone.need[0] == "lost":
                break
            if alone.need[0]:
                alone.meet()
        assert alone.lost() == [-4_096] and alone.level_offsets(1) == [1]


# --- in a store


def open_store(path: Path, clock: ManualClock, **more: Any) -> TimerStore:
    more.setdefault("config", SMALL)
    more.setdefault("disk", QuietDisk())
    return TimerStore(path / "s", clock=clock, **more)


def bodies(store: TimerStore, topic: str = "default") -> list[bytes]:
    return [delivery.body for delivery in store.consume(topic, timeout=0)]


@kernel
def _clamped(due_ms: int, level_ms: int, now_ms: int) -> int:
    return clamped_ms(due_ms, level_ms, now_ms)


@given(st.integers(-5_000, 5_000), st.sampled_from([1_000, 3_000]))
def test_the_twin_of_a_due_time(ahead_ms: int, level_ms: int) -> None:
    due_ms = START_MS + ahead_ms
    is_due = _clamped(due_ms, level_ms, START_MS) <= START_MS
    assert is_due == naive.level_is_due(due_ms, level_ms, START_MS)


@pytest.mark.parametrize("batch_count", [1, 3, 1024])
def test_each_at_its_millisecond_in_order(tmp_path: Path, batch_count: int) -> None:
    clock = ManualClock(START_MS)
    config = replace(SMALL, delay_levels="1s 5s", level_batch_count=batch_count)
    store = open_store(tmp_path, clock, config=config)
    put: list[tuple[int, bytes]] = []
    for i in range(40):
        level = 1 + i % 2
        body = b"%d" % i
        store.put(body, delay_level=level)
        put.append((clock.now_ms + (1_000, 5_000)[level - 1], body))
        clock.advance(timedelta(milliseconds=i % 3))
    clock.advance(6 * SECOND)
    got = [(d.due_ms, d.body) for d in store.consume("default", timeout=0)]
    assert sorted(got) == sorted(put)
    assert all(d.lateness_ms == 0 for d in store.consume("default", group="b", timeout=0))
    in_level = [body for due_ms, body in got if int(body) % 2]
    assert in_level == sorted(in_level, key=int)
    store.close()


def test_what_cannot_be_delivered_stays(tmp_path: Path) -> None:
    clock, disk = ManualClock(START_MS), FullDisk()
    store = open_store(tmp_path, clock, disk=disk)
    wanted = [b"%d" % i + bytes(200) for i in range(40)]
    store.put_many(wanted, delay_level=1)
    disk.full = True
    for _ in range(3):
        with pytest.raises(StoreFullError):
            clock.advance(SECOND)
        offset = store.stats().levels[0].offset
        assert offset < 40
        assert store.count() == 40 - offset
    disk.full = False
    clock.advance(SECOND)
    assert bodies(store) == wanted and store.count() == 0
    store.close()


@pytest.mark.whole
def test_retention_keeps_what_waits(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    config = small(
        4_096,
        200,
        520,
        precision_ms=SMALL.precision_ms,
        roll_window_slots=SMALL.roll_window_slots,
        wheel_slot_count=SMALL.wheel_slot_count,
        retention_ms=1_000,
        delay_levels=SMALL.delay_levels,
    )
    store = open_store(tmp_path, clock, config=config)
    store.put(b"in two hours", topic="slow", delay_level=4)
    cancelled = store.put(b"never", topic="slow", delay_level=4)
    assert store.cancel(cancelled)
    for _ in range(30):
        store.put_many([bytes(100)] * 10, delay_level=1)
        clock.advance(2 * SECOND)
        while len(batch := store.pull("default", timeout=0)):
            batch.ack()
        store.flush()
    assert store.core.engine.commitlog.start == 0
    store.abandon()
    store = open_store(tmp_path, clock, config=config)
    assert store.cancel(cancelled) and store.count() == 1
    clock.advance(timedelta(hours=2))
    (delivery,) = store.consume("slow", timeout=0)
    assert delivery.body == b"in two hours"
    delivery.ack()
    store.put(b"last", delay_level=1)
    clock.advance(10 * SECOND)
    for _ in range(3):
        store.flush()
    assert store.core.engine.commitlog.start > 0
    assert np.all(store.core.engine.levels.offset[:4] == [301, 0, 0, 2])
    store.close()


@pytest.mark.whole
def test_what_was_cancelled_and_is_damaged_keeps_nothing(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    id = store.put(b"never", delay_level=3)
    assert store.cancel(id)
    cancelled, view = store.core.engine.cancelled.set, store.core.engine.commitlog.ensure(0).view
    assert cancelled.level_count == 1
    view[view.tobytes().index(b"never")] ^= 1
    clock.advance(timedelta(minutes=1))
    assert store.count() == 0 and store.stats().unreadable_count == 1
    assert (cancelled.held_count, cancelled.level_count) == (0, 0)
    store.close()


@pytest.mark.whole
@pytest.mark.parametrize("end", ["kill", "close"])
def test_levels_that_were_configured_otherwise(tmp_path: Path, end: str) -> None:
    """What was put at a level of 2 h waits 2 h, also where the level is 1 s now; never early."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    store.put(b"slow", delay_level=4)
    store.put(b"one", delay_level=3)
    store.close() if end == "close" else store.abandon()
    config = replace(SMALL, delay_levels="1s 1s 1s 1s")
    store = open_store(tmp_path, clock, config=config)
    store.put(b"new", delay_level=1)
    clock.advance(59 * SECOND)
    assert bodies(store) == [b"new"]
    clock.advance(SECOND)
    assert bodies(store) == [b"one"]
    clock.advance(timedelta(hours=2) - timedelta(minutes=1, milliseconds=1))
    assert bodies(store) == []
    clock.advance(timedelta(milliseconds=1))
    assert bodies(store) == [b"slow"]
    assert store.core.engine.levels.clamped_count == 0
    store.put(b"back", delay_level=4)  # and a clock that goes back keeps nothing for longer
    clock.advance(-timedelta(hours=1))
    assert bodies(store) == [b"back"]
    store.close()


@pytest.mark.whole
def test_a_shorter_level_delivers_nothing_early_and_in_order(tmp_path: Path) -> None:
    """What waits stays due when its entry says, and what is put behind it waits for it."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    id = store.put(b"an hour and more", delay_level=4)
    store.close()
    store = open_store(tmp_path, clock, config=replace(SMALL, delay_levels="1s 1s 1s 1s"))
    row = store.core.engine.queues.row(LEVEL_TOPIC.encode(), 3)
    due_ms = int(store.core.engine.queues.read(row, 0, 1)[0]["tags_code"])
    timer = store.get(id)
    assert timer is not None and timer.due_ms == due_ms == START_MS + 7_200_000
    store.put(b"a second", delay_level=4)
    clock.advance(timedelta(milliseconds=due_ms - 1 - START_MS))
    assert bodies(store) == []
    clock.advance(timedelta(milliseconds=1))
    assert bodies(store) == [b"an hour and more", b"a second"]
    store.close()
