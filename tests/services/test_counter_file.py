"""The counters' file: as it is written, as it is read, torn, damaged, or not to be written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.services.alone import DEQUEUE_PUT, Alone
from timerstore.errors import StoreFullError
from timerstore.jit.record import Words
from timerstore.services.engine import counter_file
from timerstore.services.engine.counter_file import PLACE_BYTES, CounterFile
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.writing.tally import COUNTERS, FIRED_COUNT, PUT_COUNT, TALLY_WORDS

TOPICS = ["orders", "mail", "é" * 120]


class CountingDisk(QuietDisk):
    """Keeps where was written to in the counters' file; `full`: nothing can be."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.full = False

    def write_at(self, fd: int, data: Any, at: int, path: Path) -> None:
        """Keep where."""
        if path.name == "topiccounts":
            if self.full:
                raise StoreFullError("full")
            self.written.append(at // PLACE_BYTES)
        super().write_at(fd, data, at, path)


def counters(alone: Alone, row: int) -> Words:
    """A row's counters, to be changed."""
    return alone.engine.queues.table.tally.words[row * TALLY_WORDS :][:COUNTERS]


def write(alone: Alone, *, durably: bool = False, file: CounterFile | None = None) -> None:
    engine = alone.engine
    file = file or engine.counters
    table, lock = engine.commitlog.shared_table, engine.world.append_lock
    ends = engine.queues.table.next_index
    file.write(table, lock, ends, engine.commitlog.end, durably=durably)


def reread(alone: Alone) -> tuple[dict[str, list[int]], int, list[int], int]:
    """What another opening reads: counters by topic, up to where all, each; how many anew."""
    with Alone(DEQUEUE_PUT) as other:
        other.row("another")
        file = CounterFile(Disk(), alone.engine.counters.path, other.engine.queues)
        all_until, until = file.read()
        names = [name.decode() for name in other.engine.queues.topics]
        found = {name: counters(other, row).tolist() for row, name in enumerate(names)}
        used = {name: each for name, each in found.items() if any(each)}
        ends = [int(until[row]) for row, name in enumerate(names) if name in used]
        return used, all_until, ends, file.damaged_count


@given(
    changes=st.lists(
        st.tuples(st.sampled_from(TOPICS), st.integers(1, 9), st.booleans()), max_size=12
    )
)
def test_what_was_written_is_read(changes: Any) -> None:
    disk = CountingDisk()
    with Alone(DEQUEUE_PUT, disk) as alone:
        for i, (topic, by, writes) in enumerate(changes):
            row = alone.row(topic)
            counters(alone, row)[[PUT_COUNT, COUNTERS - 1]] += by
            counters(alone, row)[FIRED_COUNT] = 1
            alone.engine.commitlog.end = 100 * i
            if writes:
                disk.written.clear()
                write(alone)
                assert disk.written[-1] == 0 and len(set(disk.written)) == len(disk.written)
        write(alone, durably=True)
        disk.written.clear()
        write(alone)
        assert disk.written == []
        rows = {topic: alone.row(topic) for topic, _, _ in changes}
        found, all_until, ends, damaged = reread(alone)
        assert found == {topic: counters(alone, row).tolist() for topic, row in rows.items()}
        assert all_until == alone.engine.commitlog.end and all(e <= all_until for e in ends)
        assert damaged == 0


def test_what_is_damaged_begins_anew_alone() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        for topic in TOPICS:
            counters(alone, alone.row(topic))[PUT_COUNT] = 7
        alone.engine.commitlog.end = 900
        write(alone)
        path = alone.engine.counters.path
        whole = path.read_bytes()
        for at in (2 * PLACE_BYTES, 2 * PLACE_BYTES + 5, 2 * PLACE_BYTES + 1_000):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            found, all_until, _, damaged = reread(alone)
            assert (len(found), all_until, damaged) == (2, 900, 1)
        path.write_bytes(whole[:10] + b"?" + whole[11:])  # the first place: each row still says
        found, all_until, ends, damaged = reread(alone)
        assert (len(found), all_until, ends, damaged) == (3, 0, [900] * 3, 1)
        path.write_bytes(whole[: 3 * PLACE_BYTES + 99])
        assert len(reread(alone)[0]) == 2
        path.write_bytes(b"")
        assert reread(alone) == ({}, 0, [], 0)


def test_a_damaged_place_is_used_again() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        for topic in TOPICS:
            counters(alone, alone.row(topic))[PUT_COUNT] = 7
        write(alone)
        path = alone.engine.counters.path
        path.write_bytes(path.read_bytes()[: 2 * PLACE_BYTES] + b"x" * PLACE_BYTES)
        with Alone(DEQUEUE_PUT) as other:
            file = CounterFile(Disk(), path, other.engine.queues)
            file.read()
            counters(other, other.row("new"))[PUT_COUNT] = 5
            write(other, durably=True, file=file)
        assert path.stat().st_size == 3 * PLACE_BYTES
        assert {name: each[PUT_COUNT] for name, each in reread(alone)[0].items()} == {
            "orders": 7,
            "new": 5,
        }


def test_queues_without_files_do_not_take_all_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_file, "KNOWN_MAX", 4)
    with Alone(DEQUEUE_PUT) as alone:
        for topic in TOPICS:
            counters(alone, alone.row(topic))[PUT_COUNT] = 7
        write(alone)
        found, all_until, _, damaged = reread(alone)
        assert (len(found), all_until, damaged) == (2, 0, 0)  # beside the timer topic and another


def test_a_full_disk_is_tried_again() -> None:
    disk = CountingDisk()
    with Alone(DEQUEUE_PUT, disk) as alone:
        counters(alone, alone.row("orders"))[PUT_COUNT] = 7
        disk.full = True
        write(alone)
        assert reread(alone)[0] == {}
        disk.full = False
        write(alone)
        assert reread(alone)[0].keys() == {"orders"}


def test_what_stands_in_its_place_keeps_nobody_from_opening(tmp_path: Path) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        alone.engine.counters.path.mkdir(parents=True)
        assert alone.engine.counters.read()[0] == 0
        assert alone.engine.counters.damaged_count == 1
        counters(alone, alone.row("orders"))[PUT_COUNT] = 7
        write(alone)


def test_what_an_earlier_store_left_is_removed() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        counters(alone, alone.row("orders"))[PUT_COUNT] = 7
        write(alone)
        alone.engine.counters.forget()
        assert not alone.engine.counters.path.exists()
        alone.engine.counters.forget()


@pytest.mark.parametrize("field", ["log_end", "name_bytes", "counters"])
def test_numbers_that_cannot_be_are_damage(field: str) -> None:
    """Also under a checksum that holds."""
    import zlib

    from timerstore.services.engine.counter_file import _PLACE

    with Alone(DEQUEUE_PUT) as alone:
        counters(alone, alone.row("orders"))[PUT_COUNT] = 7
        write(alone)
        path = alone.engine.counters.path
        places = np.frombuffer(path.read_bytes(), _PLACE).copy()
        places[field][1] = -1
        places["crc"][1] = zlib.crc32(places[1:2].tobytes()[8:])
        path.write_bytes(places.tobytes())
        assert reread(alone)[3] == 1
