"""What waits in the delay levels, of one instant."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.services.alone import DELIVER_LEVELS, START_MS, Alone
from timerstore.services.looking.instant import capture_instant
from timerstore.services.looking.read_units import read_timers, reading_of
from timerstore.services.looking.timer_places import level_messages, read_kept, still_wait
from timerstore.timelog.bytes import format as fmt
from timerstore.wheel.judge import PENDING

KINDS = st.sampled_from(["waits", "waits", "brokers", "cancelled", "held", "done", "blank", "bad"])


@given(
    st.lists(st.tuples(st.integers(1, 3), KINDS), max_size=30),
    st.lists(st.integers(0, 6), min_size=3, max_size=3),
    st.sets(st.integers(0, 2)),
)
def test_what_waits(items: list[tuple[int, str]], offsets: list[int], unmapped: set[int]) -> None:
    with Alone(DELIVER_LEVELS) as alone:
        engine, cancelled, done = alone.engine, set[tuple[int, int]](), dict[int, int]()
        expected: list[list[tuple[int, int, str]]] = [[], [], []]
        for number, kind in items:
            row = engine.level_row(number)
            topic = f"t{number}"
            made = naive.new_at_level(topic, b"body", number, 0, START_MS, alone.tag, {})
            made.stored_ms = START_MS
            if kind == "brokers":
                made.properties["UNIQ_KEY"] = "k"
            index = engine.queues.next_index(row)
            if kind == "blank":
                if all(entry == naive.QUEUE_BLANK for entry in alone.entries(row)):
                    alone.write_entry(row, index, naive.QUEUE_BLANK)  # as a queue can begin
                continue
            placed = alone.put(made)
            if kind in ("cancelled", "held"):
                cancelled.add((-1 if kind == "cancelled" else -2, placed.offset | fmt.LEVEL_MARK))
            elif kind == "done":
                done[placed.offset] = 5
            elif kind == "bad":
                alone.spoil(placed.offset + 4)
            elif index >= offsets[number - 1]:
                due_ms = START_MS + int(engine.level_ms[number - 1])
                expected[number - 1].append((placed.offset, due_ms, topic))
        for level, offset in enumerate(offsets):
            row = engine.levels.row[level]
            end = engine.queues.next_index(int(row)) if row >= 0 else 0
            engine.levels.offset[level] = min(offset, end)
        alone.use_sets(cancelled, done)
        alone.unmap(engine.commitlog, *unmapped)
        instant = capture_instant(engine)
        messages, due_ms = level_messages(engine, instant)
        reading = reading_of(engine, instant.cancelled)._replace(needs_rows=True)
        found = read_timers(engine, messages, reading, due_ms)
        found = found[found.verdict == PENDING]
        topics = [engine.queues.topics[row].decode() for row in found.row.tolist()]
        listed = list(zip(found.message.tolist(), found.due_ms.tolist(), topics, strict=True))
        assert listed == [each for level in expected for each in level]


def test_a_message_waits_until_its_loop_has_passed_it() -> None:
    with Alone(DELIVER_LEVELS) as alone:
        made = naive.new_at_level("t", b"body", 2, 0, START_MS, alone.tag, {})
        alone.engine.level_row(2)
        placed = [alone.put(made).offset for _ in range(25)]
        alone.engine.levels.offset[1] = 7
        alone.unmap(alone.engine.commitlog, 0)
        sources = np.array([*placed, -5, 1 << 40], np.int64)
        assert still_wait(alone.engine, sources).tolist() == [i >= 7 for i in range(25)] + [
            False,
            False,
        ]
        alone.set_level(count=1)  # a level that nobody knows
        assert not still_wait(alone.engine, sources).any()


def test_entries_whose_messages_were_removed_are_left_out() -> None:
    with Alone(DELIVER_LEVELS) as alone:
        made = naive.new_at_level("t", b"body", 1, 0, START_MS, alone.tag, {})
        row, log = alone.engine.level_row(1), alone.engine.commitlog
        placed = [alone.put(made).offset for _ in range(45)]
        log.detach_before(log.segment_bytes)
        log.remove_detached()
        found = read_kept(alone.engine, row, 0, 45)
        assert found["offset"].tolist() == [each for each in placed if each >= log.start]
        assert len(read_kept(alone.engine, row, 40, 45)) == 5
