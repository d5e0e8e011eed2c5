"""Where a consume queue ends, what of it is no message's, what is written anew."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.rigs.tablerows import table_from
from tests.services.alone import ENQUEUE_GET, START_MS, Alone, timer
from timerstore.errors import CorruptStoreError
from timerstore.services.damage.pass_by import is_sound
from timerstore.services.opening.recover_log import (
    check_entries,
    check_queue_end,
    find_queue_end,
    index_part,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.reading.scan import LoggedMessages


def rows_of(messages: list[naive.Message]) -> LoggedMessages:
    """Scanned messages, as far as an index needs them."""
    return table_from(
        LoggedMessages,
        [
            {
                "offset": message.offset,
                "size": message.size_bytes,
                "queue_index": message.queue_offset,
                "tags_code": naive.tags_code(message, []),
            }
            for message in messages
        ],
    )


@given(st.integers(1, 45), st.data())
def test_a_queue_ends_behind_its_last_entry_before_what_is_durable(
    count: int, data: st.DataObject
) -> None:
    with Alone(ENQUEUE_GET) as alone:
        placed = [alone.put(timer(alone.tag, "t", START_MS)) for _ in range(count)]
        durable = data.draw(st.sampled_from([*(m.offset for m in placed), placed[-1].offset + 1]))
        find_queue_end(alone.engine, 0, durable)
        expected = sum(message.offset < durable for message in placed)
        assert alone.engine.queues.next_index(0) == expected


@pytest.mark.parametrize("spoilt", ["last", "behind", "hole"])
def test_a_search_that_was_led_astray_is_noticed(spoilt: str) -> None:
    with Alone(ENQUEUE_GET) as alone:
        placed = [alone.put(timer(alone.tag, "t", START_MS)) for _ in range(25)]
        engine, durable = alone.engine, alone.engine.commitlog.end
        find_queue_end(engine, 0, durable)
        check_queue_end(engine, 0, durable)
        if spoilt == "last":
            alone.write_entry(0, 24, naive.Entry(placed[24].offset + 1, 300, 0))
        elif spoilt == "behind":
            engine.queues.set_end(0, 12)
        else:
            engine.queues.files[0].numbers.remove(1)
        with pytest.raises(CorruptStoreError, match="consumequeue"):
            check_queue_end(engine, 0, durable)


@given(st.integers(1, 25), st.data())
def test_an_entry_is_missed_if_its_message_was_flushed(count: int, data: st.DataObject) -> None:
    with Alone(ENQUEUE_GET) as alone:
        placed = [alone.put(timer(alone.tag, "t", START_MS)) for _ in range(count)]
        flushed = data.draw(st.sampled_from([*(m.offset for m in placed), placed[-1].offset + 1]))
        gone = data.draw(st.integers(0, count - 1))
        alone.write_entry(0, gone, naive.Entry(0, 0, 0))
        missed = pytest.raises(CorruptStoreError, match="consumequeue")
        with missed if placed[gone].offset < flushed else nullcontext():
            check_entries(alone.engine, rows_of(placed), np.zeros(count, np.int64), flushed)


def test_an_entry_is_sound_where_it_is_its_messages() -> None:
    with Alone(ENQUEUE_GET) as alone:
        placed = [alone.put(timer(alone.tag, "t", START_MS)) for _ in range(3)]

        def sound(index: int, entry: naive.Entry) -> bool:
            alone.write_entry(0, 2, entry)
            return is_sound(alone.engine, 0, index, alone.engine.queues.read(0, 2, 1))

        third = alone.entries(0)[2]
        assert sound(2, third) and not sound(1, third)
        assert not sound(2, third._replace(message_bytes=third.message_bytes + 1))
        assert not sound(2, third._replace(message_offset=placed[1].offset))
        assert not sound(2, third._replace(message_offset=-1))
        assert not sound(2, third._replace(message_offset=1 << 40))
        assert sound(2, naive.Entry(placed[1].offset, fmt.QUEUE_LOST_SIZE, 0))  # it is lost


@given(st.integers(1, 30), st.integers(0, 29), st.integers(0, 3))
def test_what_is_missing_is_written_from_the_log(count: int, kept: int, lost: int) -> None:
    """Messages that are lost in their midst leave entries that lead to none."""
    with Alone(ENQUEUE_GET) as alone:
        engine, kept = alone.engine, min(kept, count)
        placed = [alone.put(timer(alone.tag, "t", START_MS)) for _ in range(count)]
        before, offset = alone.entries(0), engine.commitlog.end
        engine.queues.set_end(0, kept)
        gone = {message.queue_offset for message in placed[kept + 1 :][:lost]}
        rest = [m for m in placed if m.queue_offset not in gone]
        index_from = placed[kept].offset if kept < count else offset
        rows = rows_of(rest)
        index_part(engine, rows, np.zeros(len(rest), np.int64), index_from, lost * 400)
        end = max((m.queue_offset + 1 for m in rest), default=0)
        found = alone.entries(0)
        assert len(found) == max(end, kept)
        for index, entry in enumerate(found):
            assert (entry.message_bytes == fmt.QUEUE_LOST_SIZE) == (index in gone)
            assert index in gone or entry == before[index]
        offsets = [entry.message_offset for entry in found]
        assert offsets == sorted(offsets)


def test_a_hole_that_nothing_explains_is_an_error() -> None:
    with Alone(ENQUEUE_GET) as alone:
        placed = [alone.put(timer(alone.tag, "t", START_MS)) for _ in range(5)]
        alone.engine.queues.set_end(0, 2)
        rows = rows_of(placed[3:])
        with pytest.raises(CorruptStoreError, match="entries are missing"):
            index_part(alone.engine, rows, np.zeros(2, np.int64), 0, 0)
