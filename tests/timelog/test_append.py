"""The appender against a log that is laid out slowly: bytes, queues, counts, what it asks for."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import Bytes, table_over
from tests.kernels import kernel
from tests.strategies import TAG
from timerstore.jit.locks import LOCK_WORDS
from timerstore.jit.mapping import lend
from timerstore.timelog.files.segmenttable import apron_bytes, enter_segment
from timerstore.timelog.writing.append import (
    NEED_COMMITLOG,
    NEED_NOTHING,
    NEED_QUEUE,
    NEED_SMALLER,
    STAGE_COUNT_MAX,
    Stage,
    append,
    new_queue_table,
    new_stage,
)
from timerstore.timelog.writing.compose import Staged, stage_messages

SEGMENT_BYTES = 700
HOLE = 0xEE
ENTRIES = 3
QUEUES = [("rmq_sys_wheel_timer", 0), ("orders", 0), ("orders", 5)]


@kernel
def _append(
    commitlog: Any, queues: Any, lock: Any, stage: Any, count: int, now_ms: int, together: bool
) -> int:
    return append(commitlog, queues, lock, stage, count, now_ms, together)


class Log:
    """A commit log and three queues in memory, and beside it what they should hold.

    `step_bytes`: what is allocated more than was asked for; of queues a 20th of it, in entries.
    """

    def __init__(self, segment_bytes: int = SEGMENT_BYTES, step_bytes: int = 1 << 20) -> None:
        self.step_bytes = step_bytes
        self.arrays: dict[int, Bytes] = {}
        self.segment_bytes = segment_bytes
        self.table = table_over({}, segment_bytes)
        self.queues = new_queue_table(ENTRIES)
        self.queue_arrays: dict[tuple[int, int], Bytes] = {}
        self.filled: list[tuple[Bytes, int]] = []
        self.lock = np.zeros(LOCK_WORDS, np.int64)
        self.stage: Stage = new_stage(64, 1 << 16)
        self.messages: list[naive.Message] = []
        self.rows: list[int] = []
        self.pending = [0] * len(QUEUES)
        self.stored_ms = 0

    def meet(self) -> int:
        """Map or allocate what was missing."""
        need, at = self.stage.need, self.stage.need_at
        if need == NEED_COMMITLOG:
            number = at // self.segment_bytes
            first, size = number * self.segment_bytes, self.segment_bytes
            if number not in self.arrays:
                self.table.allocated[number] = first
                self.arrays[number] = self.new_segment(number)
                enter_segment(self.table, number, self.arrays[number])
            else:
                assert self.table.allocated[number] <= at, "it was allocated"
            start = int(self.table.allocated[number])
            stop = max(start, min(first + size, at + 1 + self.step_bytes))
            self.allocate(self.arrays[number], start - first, stop - first)
            self.table.allocated[number] = stop
        elif need == NEED_QUEUE:
            row = self.stage.need_row
            number, slot = at // ENTRIES, self.place(row, at // ENTRIES)
            if (row, number) not in self.queue_arrays:
                self.queue_arrays[row, number] = array = np.full(ENTRIES * 20, HOLE, np.uint8)
                self.queues.allocated[slot] = number * ENTRIES
                lend(self.queues.lent, slot, array)
                self.queues.number[slot] = number
            first = number * ENTRIES
            start, stop = int(self.queues.allocated[slot]), at + 1 + self.step_bytes // 20
            assert start <= at, "it was allocated"
            stop = min(first + ENTRIES, stop)
            array = self.queue_arrays[row, number]
            self.allocate(array, 20 * (start - first), 20 * (stop - first))
            self.queues.allocated[slot] = stop
        return need

    def place(self, row: int, number: int) -> int:
        places = int(self.queues.places)
        return row * places + number % places

    def new_segment(self, number: int) -> Bytes:
        return np.full(self.segment_bytes, HOLE, np.uint8)

    def allocate(self, array: Bytes, start: int, stop: int) -> None:
        assert (array[start:stop] == HOLE).all(), "somebody wrote into a hole"
        array[start:stop] = 0

    def put(self, batch: list[tuple[int, int, bool]], now_ms: int, together: bool) -> None:
        """Append a batch of (row, bytes of body, with a key of ours), as often as it takes."""
        left = []
        for row, body_bytes, keyed in batch:
            key = naive.encode_unique_key(naive.UniqueKey(now_ms, 0, TAG))
            pairs = {"a": "b"} | ({"UNIQ_KEY": key} if keyed else {})
            if body_bytes % 5 == 0:
                pairs["KEYS"] = "k"
            topic, queue_id = QUEUES[row]
            message = naive.Message(topic, bytes(body_bytes), pairs, queue_id, born_ms=now_ms)
            if body_bytes % 3 == 0:  # a copy of a message that came over IPv6
                message.system_flag, message.born_host = naive.BORN_HOST_IPV6, ("fe80::1", 9)
            left.append((row, message))
        tries = 0
        while left:
            tries += 1
            assert tries < 200
            entries = [
                Staged(
                    *(naive.unsealed(message), row, naive.java_hash(f"tag {row}")),
                    *((row + 1) % 3, 1 - 2 * (row == 2)),
                )
                for row, message in left
            ]
            count = stage_messages(self.stage, entries)
            done = int(
                _append(self.table, self.queues, self.lock, self.stage, count, now_ms, together)
            )
            assert done == count or self.stage.need != NEED_NOTHING
            assert not together or done in (0, count)
            self.note(left[:done], now_ms)
            left = left[done:]
            assert (self.queues.next_index[:3] == self.queues.planned[:3]).all()
            self.meet()

    def note(self, done: list[tuple[int, naive.Message]], now_ms: int) -> None:
        """Give each message the place that it should have; the stage must say the same."""
        if done:
            self.stored_ms = max(self.stored_ms, now_ms)
        for i, (row, message) in enumerate(done):
            end = self.end
            message.offset = naive.place_behind(self.segment_bytes, end, message.size_bytes)
            message.queue_offset = self.rows.count(row)
            message.stored_ms = self.stored_ms
            if "UNIQ_KEY" in message.properties:
                key = message.properties["UNIQ_KEY"]
                message.properties["UNIQ_KEY"] = f"{key[:12]}{message.offset:012X}{key[24:]}"
            assert self.stage.offset[i] == message.offset
            assert self.stage.index[i] == message.queue_offset
            self.messages.append(message)
            self.rows.append(row)
            self.pending[(row + 1) % 3] += 1 - 2 * (row == 2)

    @property
    def end(self) -> int:
        if not self.messages:
            return 0
        return self.messages[-1].offset + self.messages[-1].size_bytes

    def check(self) -> None:
        """Every byte is what the slow twins say; nothing was written into a hole."""
        assert self.table.end == self.end
        for number, array in self.arrays.items():
            self.fill(array, int(self.table.allocated[number]) - number * self.segment_bytes)
        for (row, number), array in self.queue_arrays.items():
            slot = self.place(row, number)
            if self.queues.allocated[slot] > 0 and self.queues.number[slot] == number:
                self.fill(array, 20 * (int(self.queues.allocated[slot]) - number * ENTRIES))
        self.check_whole()
        for array, start in self.filled:
            array[start:] = HOLE
        self.filled.clear()

    def fill(self, array: Bytes, start: int) -> None:
        """Read a hole as zeros."""
        assert (array[start:] == HOLE).all(), "somebody wrote into a hole"
        array[start:] = 0
        self.filled.append((array, start))

    def check_whole(self) -> None:
        log = b"".join(self.arrays[number].tobytes() for number in sorted(self.arrays))
        self.check_bytes(log, naive.lay_out(self.messages, self.segment_bytes, len(self.arrays)))
        assert naive.scan_commit_log(self.split(log)).messages == self.messages
        assert self.queues.pending[:3].tolist() == self.pending
        for row in range(3):
            mine = [m for m, r in zip(self.messages, self.rows, strict=True) if r == row]
            assert self.queues.next_index[row] == len(mine)
            with_key = [i for i, m in enumerate(mine, 1) if "KEYS" in m.properties]
            assert self.queues.keyless_from[row] == max(with_key, default=0)
            code = naive.java_hash(f"tag {row}")
            data = b"".join(
                naive.encode_entry(naive.Entry(m.offset, m.size_bytes, code)) for m in mine
            )
            numbers = sorted(number for r, number in self.queue_arrays if r == row)
            held = b"".join(self.queue_arrays[row, number].tobytes() for number in numbers)
            assert held == data.ljust(len(held), b"\0")
        assert self.lock[0] == self.lock[8]  # let go again

    def check_bytes(self, log: bytes, expected: bytes) -> None:
        assert log == expected

    def split(self, log: bytes) -> dict[int, bytes]:
        size = self.segment_bytes
        return {at: log[at : at + size] for at in range(0, len(log), size)} or {0: bytes(size)}


class UsedLog(Log):
    """Each segment was used before: but for its head it holds bytes that look like messages."""

    def __init__(self) -> None:
        super().__init__(1 << 18)
        self.apron_bytes = apron_bytes(1 << 18)
        self.stage = new_stage(64, 1 << 20)

    def new_segment(self, number: int) -> Bytes:
        array = np.full(self.segment_bytes, 0xDA, np.uint8)
        array[: self.apron_bytes] = 0
        self.table.allocated[number] = (number + 1) * self.segment_bytes
        self.table.zeroed[number] = number * self.segment_bytes + self.apron_bytes
        return array

    def check_bytes(self, log: bytes, expected: bytes) -> None:
        """What is behind the apron is of the earlier use; nothing else is."""
        size = self.segment_bytes
        for number in sorted(self.arrays):
            stop = (number + 1) * size
            if number == self.end // size:
                stop = min(stop, max(self.end, number * size) + self.apron_bytes)
            elif number > self.end // size:
                stop = number * size + self.apron_bytes
            assert log[number * size : stop] == expected[number * size : stop]
            zeroed = int(self.table.zeroed[number])
            assert stop <= zeroed <= (number + 1) * size
            assert set(log[zeroed : (number + 1) * size]) <= {0xDA}


BATCHES = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 400), st.booleans()), min_size=1, max_size=9
        ),
        st.integers(0, 10**13),
        st.booleans(),
    ),
    max_size=6,
)


@given(batches=BATCHES, step_bytes=st.sampled_from([0, 1, 40, 130, 1 << 20]))
def test_what_is_appended(
    batches: list[tuple[list[tuple[int, int, bool]], int, bool]], step_bytes: int
) -> None:
    log = Log(step_bytes=step_bytes)
    for batch, now_ms, together in batches:
        log.put(batch, now_ms, together)
        log.check()


USED_BATCHES = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.one_of(st.integers(0, 400), st.integers(0, 150_000)),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
    max_size=6,
)


@given(batches=USED_BATCHES)
def test_segments_that_are_used_again(batches: list[list[tuple[int, int, bool]]]) -> None:
    log = UsedLog()
    for batch in batches:
        log.put(batch, 1_000, False)
        log.check()


@pytest.mark.parametrize("entries", [1, 2, 100, 341, 342, 1_022, 1_023, 65_536])
def test_a_stage_of_one_queue_has_its_places(entries: int) -> None:
    """Wherever its first entry falls, no two segments that it touches have the same place."""
    places = new_queue_table(entries).places
    touched = (entries - 1 + STAGE_COUNT_MAX - 1) // entries + 1
    assert touched <= places < 2 * touched


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("beyond", [1, 7, 8, 9, 5_000])
def test_what_is_larger_than_a_segment_is_refused(together: bool, beyond: int) -> None:
    """Whoever staged it: what stands before it goes, itself does not, and no byte of it."""
    log, code = Log(), naive.java_hash("tag 1")
    fits = SEGMENT_BYTES - 24 - naive.Message("orders", b"").size_bytes
    for lengths, needed, more in (
        ([10, fits], NEED_NOTHING, 2),
        ([10, fits + beyond, 10], NEED_SMALLER, 0 if together else 1),
        ([fits + beyond], NEED_SMALLER, 0),
    ):
        messages = [naive.Message("orders", bytes(length)) for length in lengths]
        before = len(log.messages)
        for _ in range(9):
            entries = [Staged(naive.unsealed(message), 1, code, 2, 1) for message in messages]
            count = stage_messages(log.stage, entries)
            done = int(_append(log.table, log.queues, log.lock, log.stage, count, 0, together))
            log.note([(1, message) for message in messages[:done]], 0)
            messages, need = messages[done:], log.meet()
            if need == needed:
                break
        assert need == needed and len(log.messages) == before + more
        assert (log.queues.next_index[:3] == log.queues.planned[:3]).all()
        log.check()
