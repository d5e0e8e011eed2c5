"""Calls on timers, alone or many at once, down to their messages."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.services.alone import DEQUEUE_PUT, ENQUEUE_GET, START_MS, Alone, delete, timer
from timerstore.jit.objects import NO_PIECES
from timerstore.services.calls.appending import append_all, put_batch
from timerstore.services.calls.first_puts import (
    PUT_GONE,
    PUT_NO_ROW,
    PUT_UNKNOWN,
    find_named,
    look_up,
    new_first_puts,
)
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.writing.append import STAGE_COUNT_MAX, new_stage
from timerstore.timelog.writing.compose import Staged, compose, stage_messages
from timerstore.timelog.writing.frame import Puts, new_template
from timerstore.values.check_arguments import Binaries
from timerstore.values.ids import format_id

# --- what is appended at once, over segments


def test_what_goes_together_is_appended_at_once_or_not_at_all() -> None:
    """Two messages that need two segments which are not there."""
    with Alone(ENQUEUE_GET) as alone:
        stage, large = new_stage(), compose(b"t", bytes(2_500), b"", born_ms=1)
        row = alone.row("t")
        count = stage_messages(stage, [Staged(large, row, 0, -1, 0)] * 2)
        append_all(alone.engine, stage, count, START_MS)
        assert [message.offset for message in alone.messages()] == [0, 4_096]
        assert [int(offset) for offset in stage.offset[:2]] == [0, 4_096]


# --- put batch: many puts in one kernel, beside their messages decoded one by one


PUTS = st.lists(
    st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 99), st.text("abc", min_size=1)),
    max_size=30,
)


@given(puts=PUTS, with_keys=st.booleans())
def test_each_is_in_the_log_where_it_says(puts: Any, with_keys: bool) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        engine, stage = alone.engine, new_stage(STAGE_COUNT_MAX)
        alone.row("rmq_sys_wheel_timer")
        row = alone.row("t")
        template = new_template(b"t", tag=alone.tag, pending_row=row, change=1, tags_code=0)
        bodies = Binaries([body for body, _, _ in puts], "bodies")
        keys = Binaries([key.encode() for _, _, key in puts], "keys")
        due_ms = np.array([START_MS + ms for _, ms, _ in puts], np.int64)
        given = Puts(bodies.pieces, keys.pieces if with_keys else NO_PIECES, due_ms)
        offsets, done = np.zeros(len(puts), np.int64), 0
        while done < len(puts):
            done = put_batch(engine.world, stage, template, given, done, START_MS, offsets)
            if done < len(puts):
                engine.provide_append(stage)
        entries = engine.queues.read(0, 0, len(puts)) if puts else []
        assert engine.queues.next_index(0) == len(puts)
        for i, entry in enumerate(entries):
            offset = int(entry["offset"])
            data = engine.commitlog.read(offset, int(entry["size"]))
            message = naive.decode_message(data, offset)
            body, after_ms, key = puts[i]
            assert (message.body, message.queue_offset, offset) == (body, i, int(offsets[i]))
            assert message.properties["TIMER_OUT_MS"] == str(START_MS + after_ms)
            assert message.properties.get("KEYS") == (key if with_keys else None)
            assert message.properties["REAL_TOPIC"] == "t"


# --- first puts: first puts are found by their ids, beside a look at each message


TOPICS = ("orders", "mail", "new")


def looked_up(alone: Alone, asked: list[tuple[int, int]], start: int) -> tuple[int, list[int], Any]:
    """What the kernel says of (due time, offset) pairs: where it stopped, rows, indexes."""
    engine = alone.engine
    puts = new_first_puts(*np.array(asked, np.int64).reshape(-1, 2).T.copy())
    stopped = look_up(engine.world, puts, start, engine.commitlog.end, MessageParts())
    return stopped, puts.row.tolist(), puts.entry.tolist()


@given(
    put=st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 99), st.booleans()), max_size=9),
    asked=st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 1), st.integers(0, 2)), max_size=9),
    first_kept=st.integers(0, 3),
)
def test_rows_and_indexes(put: Any, asked: Any, first_kept: int) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        alone.row("rmq_sys_wheel_timer")
        rows = {topic: alone.row(topic) for topic in TOPICS[:2]}
        placed = []
        for topic, after_ms, is_delete in put:
            due_ms = START_MS + after_ms
            made = delete(alone.tag, topic, due_ms, "0" * 32) if is_delete else None
            message = alone.put(made or timer(alone.tag, topic, due_ms))
            placed.append((due_ms, message, topic, is_delete))
        start = placed[first_kept % len(placed)][1].offset if placed else 0
        pairs, expected = [], []
        for which, moved, later in asked if placed else []:
            due_ms, message, topic, is_delete = placed[which % len(placed)]
            pairs.append((due_ms + later, message.offset + moved))
            if message.offset + moved < start:
                expected.append((PUT_GONE, 0))
            elif moved or later or is_delete:
                expected.append((PUT_UNKNOWN, 0))
            else:
                row = rows.get(topic, PUT_NO_ROW)
                expected.append((row, message.queue_offset))
        stopped, found_rows, indexes = looked_up(alone, pairs, start)
        for i, (row, index) in enumerate(expected):
            if row == PUT_NO_ROW:
                assert (stopped, found_rows[i]) == (i, PUT_NO_ROW)
                break
            assert found_rows[i] == row and (row < 0 or indexes[i] == index)
        else:
            assert stopped == len(pairs)


# --- find id: messages that name a timer are found beside a look at each


KINDS = ("timer", "delete", "plain key", "retry", "damaged", "nowhere", "moved")


def twin(message: naive.Message, id: str) -> bool:
    """Tell whether a message names a timer."""
    has_it = message.properties.get("UNIQ_KEY") == id
    return has_it or message.properties.get("TIMER_DEL_UNIQKEY", "").endswith(id)


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=30),
    unmapped=st.sets(st.integers(0, 3)),
    which=st.integers(0, 29),
)
def test_alone(kinds: list[str], unmapped: set[int], which: int) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        first = alone.put(timer(alone.tag, "orders", START_MS))
        id = first.properties["UNIQ_KEY"]
        places, wanted = [first.offset], [0]
        for kind in kinds:
            other = format_id(START_MS + 1, first.offset, alone.tag)
            made: Any = timer(alone.tag, "orders", START_MS + 5)
            if kind == "delete":
                made = delete(alone.tag, "orders", START_MS, id if which % 2 else other)
            elif kind == "plain key":
                made.properties["TIMER_DEL_UNIQKEY"] = id
            elif kind in ("retry", "damaged"):
                made.properties["UNIQ_KEY"] = id
            placed = alone.put(made)
            if kind == "damaged":
                alone.spoil(placed.offset + 4, 1)
            offset = {"nowhere": -placed.offset, "moved": placed.offset + 1}.get(
                kind, placed.offset
            )
            if twin(placed, id) and kind not in ("damaged", "nowhere", "moved"):
                wanted.append(len(places))
            places.append(offset)
        engine = alone.engine
        last = engine.commitlog.end // engine.commitlog.segment_bytes
        alone.unmap(engine.commitlog, *(unmapped - {last}))
        found = list(find_named(engine, np.array(places, np.int64), id))
        assert found == wanted


def test_messages_behind_the_end_or_before_the_start() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        first = alone.put(timer(alone.tag, "orders", START_MS))
        id, end = first.properties["UNIQ_KEY"], alone.engine.commitlog.end
        places = np.array([end, 1 << 62, -(1 << 62), first.offset, end - 1], np.int64)
        assert list(find_named(alone.engine, places, id)) == [3]
        assert list(find_named(alone.engine, places[:0], id)) == []
