"""Consume queues: rows by name, segments, blanks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import as_array
from tests.kernels import kernel
from timerstore.errors import CorruptStoreError, InvalidArgumentError, NotAStoreError
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.writing.append import STAGE_COUNT_MAX, new_queue_table
from timerstore.timelog.writing.consumequeue import ConsumeQueues, enter_queue, find_row

pytestmark = pytest.mark.on_disk


@kernel
def _find(queues: Any, buf: Any, at: int, count: int, queue_id: int) -> int:
    return find_row(queues, buf, at, count, queue_id)


def opened(folder: Path, segment_bytes: int = 60) -> ConsumeQueues:
    return ConsumeQueues(Disk(), folder, segment_bytes)


def segments_of(folder: Path) -> dict[int, bytes]:
    return {int(file.name): file.read_bytes() for file in folder.iterdir()}


NAMES = st.binary(min_size=1, max_size=12) | st.sampled_from([b"a", b"b", b"ab", b"ba", b"x" * 255])


@given(
    keys=st.lists(st.tuples(NAMES, st.integers(0, 3)), unique=True, max_size=30),
    others=st.lists(st.tuples(NAMES, st.integers(0, 4)), max_size=10),
)
def test_rows_by_name(keys: list[tuple[bytes, int]], others: list[tuple[bytes, int]]) -> None:
    table = new_queue_table(3)
    for row, (topic, queue_id) in enumerate(keys):
        enter_queue(table, row, topic, queue_id)
    rows = {key: row for row, key in enumerate(keys)}
    for topic, queue_id in keys + others:
        buf = as_array(b"##" + topic)
        assert _find(table, buf, 2, len(topic), queue_id) == rows.get((topic, queue_id), -1)


def test_names_whose_hashes_are_equal() -> None:
    # "Aa" and "BB" have the same hash in Java, hence all their combinations.
    names = [b"AaAa", b"AaBB", b"BBAa", b"BBBB"]
    table = new_queue_table(3)
    for row, name in enumerate(names):
        enter_queue(table, row, name, 0)
    for row, name in enumerate(names):
        assert _find(table, as_array(name), 0, 4, 0) == row
    assert _find(table, as_array(b"AaAb"), 0, 4, 0) == -1


def test_rows_stay_over_reopening(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue"
    queues = opened(folder)
    assert queues.row(b"rmq_sys_wheel_timer", 0) == 0
    raw = b"caf\xc3\xa9 \xff"
    for topic, queue_id in ((b"orders", 0), (b"orders", 7), (raw, 0)):
        row = queues.row(topic, queue_id)
        assert queues.row(topic, queue_id) == row
        queues.prepare(row)
    assert len(queues.rows(b"orders")) == 2
    queues.close()
    again = opened(folder)
    assert set(again.topics) == {b"rmq_sys_wheel_timer", b"orders", raw}
    assert len(again.rows(b"orders")) == 2


@pytest.mark.parametrize("topic", [b"", b".", b"..", b"a/b", b"a\0b", b"x" * 256])
def test_what_can_be_no_topic(tmp_path: Path, topic: bytes) -> None:
    queues = opened(tmp_path / "consumequeue")
    with pytest.raises(NotAStoreError, match="cannot be the name of a topic"):
        queues.row(topic)
    assert len(queues.files) == 1


def test_what_is_no_queue_is_refused(tmp_path: Path) -> None:
    (tmp_path / "orders" / "x").mkdir(parents=True)
    with pytest.raises(NotAStoreError, match="Move it out"):
        opened(tmp_path)
    with pytest.raises(InvalidArgumentError, match="multiple of 20"):
        opened(tmp_path / "other", 50)


def places(queues: ConsumeQueues, row: int) -> list[int]:
    """The segments of a queue that kernels may write to."""
    count = int(queues.table.places)
    mine = slice(row * count, (row + 1) * count)
    is_used = queues.table.allocated[mine] > 0
    assert (queues.table.number[mine] % count == np.arange(count))[is_used].all()
    return sorted(queues.table.number[mine][is_used].tolist())


def test_preparing_maps_what_comes_next(tmp_path: Path) -> None:
    queues = opened(tmp_path / "consumequeue")  # three entries in a segment
    row = queues.row(b"orders")
    queues.set_end(row, 4)
    queues.prepare(row)
    assert places(queues, row) == [1]
    queues.prepare(row, ahead=True)  # not yet half full
    assert places(queues, row) == [1]
    queues.prepare(row, index=5)
    assert places(queues, row) == [1]
    queues.prepare(row, index=6)
    assert places(queues, row) == [1, 2]
    queues.set_end(row, 8)
    assert places(queues, row) == []
    queues.prepare(row, ahead=True)
    assert places(queues, row) == [2, 3]
    queues.prepare(row, index=8 + STAGE_COUNT_MAX - 1)
    assert places(queues, row) == list(range(2, 2 + 342))
    queues.table.next_index[row] = 340 * 3
    queues.prepare(row)
    assert places(queues, row) == [340, 341, 342, 343], "nobody writes to the others any more"
    assert queues.files[row].numbers == list(range(1, 344))
    assert queues.first_index(row) == 3


def test_preparing_makes_room(tmp_path: Path) -> None:
    """The kernels' table says up to which entry there are blocks; an idle queue is left alone."""
    queues = opened(tmp_path / "consumequeue", 50_000 * 20)
    row, other = queues.row(b"orders"), queues.row(b"other")
    table = queues.table

    def allocated(row: int, number: int) -> int:
        blocks = queues.files[row].path(number).stat().st_blocks * 512
        index = int(table.allocated[2 * row + (number & 1)])  # of so large ones there are two
        assert (index - number * 50_000) * 20 <= blocks
        return index

    queues.prepare(row)
    assert allocated(row, 0) == 0
    for index, entries in ((0, 819), (100, 819), (819, 2_457), (2_457, 5_529), (49_999, 50_000)):
        table.next_index[row] = index
        queues.prepare(row, index=index)  # each time twice as much more, in whole pages
        assert allocated(row, 0) >= entries > index
    queues.set_end(row, 49_999)
    queues.prepare(row, index=50_001)
    assert allocated(row, 0) == 50_000 and allocated(row, 1) >= 50_002
    queues.prepare_ahead()
    assert not queues.files[other].numbers
    assert queues.files[0].numbers == []
    queues.files[row].close()  # nothing was written since: it is not even looked at
    queues.prepare_ahead()
    assert not queues.files[row]._mapped


def test_reading_crosses_segments(tmp_path: Path) -> None:
    queues = opened(tmp_path / "consumequeue")
    row = queues.row(b"orders")
    data = b"".join(naive.encode_entry(naive.Entry(i, i + 1, -i)) for i in range(9))
    for number in range(3):
        queues.files[row].ensure(number).view[:] = as_array(data[60 * number :][:60])
    assert queues.read(row, 1, 7).tolist() == [(i, i + 1, -i) for i in range(1, 8)]
    assert len(queues.read(row, 1, 0)) == 0
    with pytest.raises(CorruptStoreError, match="missing"):
        queues.read(row, 8, 2)
    queues.set_end(row, 9)
    assert queues.read(row, 0, 9).tolist() == [(i, i + 1, -i) for i in range(9)]


def test_maps_are_bounded_over_all_queues(tmp_path: Path) -> None:
    queues = opened(tmp_path / "consumequeue")
    queues.maps.count_max = 3
    rows = [queues.row(b"t%d" % i) for i in range(4)]
    for row in rows:
        for index in range(0, 12, 3):  # as the appender goes on from segment to segment
            queues.prepare(row)
            queues.table.next_index[row] = index + 3
            queues.maps.keep()

    def mapped(row: int) -> set[int]:
        return {number for number in range(4) if number in queues.files[row]._mapped}

    for row in rows:
        assert 3 in mapped(row), "what was prepared last stays"
    assert sum(len(mapped(row)) for row in rows) <= 2 * len(rows) + 3
    for _ in range(2):
        for row in rows:
            for index in range(12):
                assert queues.read(row, index, 1).tolist() == [(0, 0, 0)]
                queues.maps.keep()
            assert len(queues.existing(row, 0).view) == 60
            assert 3 in mapped(row)
        assert sum(len(mapped(row)) for row in rows) <= 2 * len(rows) + 3


def test_a_queue_that_begins_with_blanks(tmp_path: Path) -> None:
    queues = opened(tmp_path / "consumequeue")
    row = queues.row(b"orders")
    queues.fill_blanks(row, 4)
    view = queues.files[row].ensure(1).view
    assert view[:20].tobytes() == naive.encode_entry(naive.QUEUE_BLANK)
    entry = naive.Entry(500, 91, 0)
    view[20:40] = as_array(naive.encode_entry(entry))
    queues.set_end(row, 5)
    assert naive.scan_queue(segments_of(queues.files[row].folder)) == {4: entry}
    assert queues.first_kept(row, 0) == 4
    assert queues.first_kept(row, 501) == 5


def test_what_goes_while_it_is_looked_at_is_left_out(tmp_path: Path) -> None:
    queues = opened(tmp_path / "consumequeue")
    row, count = queues.row(b"orders"), 12
    file = queues.files[row]
    for index in range(count):
        entry = as_array(naive.encode_entry(naive.Entry(100 * index, 91, 0)))
        number, position = divmod(index, queues.segment_entries)
        file.ensure(number).view[20 * position :][:20] = entry
    queues.set_end(row, count)
    read, looked = queues.read, []

    def read_late(row: int, index: int, count: int) -> Any:
        looked.append(index)
        if len(looked) == 1:  # retention comes in between
            file.detach_before(20 * index + 20 + file.segment_bytes)
            file.remove_detached()
        return read(row, index, count)

    queues.read = read_late  # type: ignore[method-assign]
    first = queues.first_kept(row, 0)
    assert 0 < looked[0] < first == queues.first_index(row) < count

    def read_damaged(row: int, index: int, count: int) -> Any:
        raise CorruptStoreError("consumequeue", 20 * index, "it is damaged")

    queues.read = read_damaged  # type: ignore[method-assign]
    with pytest.raises(CorruptStoreError):
        queues.first_kept(row, 0)
