"""Pulled columns against slowly decoded messages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import table_of
from tests.strategies import TAG, messages
from timerstore.timelog.message import FOUND_WORDS
from timerstore.timelog.pull import PULL_UNMAPPED, pull_messages
from timerstore.timelog.segments import SegmentTable


def pull(
    table: SegmentTable, offsets: list[int], sizes: list[int], precision_ms: int = 1000
) -> tuple[int, list[tuple[bytes, bytes, int, int]], list[bool]]:
    """What a kernel returns, (body, id, due, fired) of each sound message, which those are."""
    count, room = len(offsets), sum(sizes) + 1
    bodies, ids = np.zeros(room, np.uint8), np.zeros(room, np.uint8)
    body_ends, id_ends = np.zeros((2, count + 1), np.int32)
    due_ms, fired_ms = np.zeros((2, count), np.int64)
    good = np.zeros(count, np.bool_)
    got = pull_messages(
        *(table, np.array(offsets, np.int64), np.array(sizes, np.int32), TAG, precision_ms),
        *(np.zeros(FOUND_WORDS, np.int64), bodies, body_ends, ids, id_ends),
        *(due_ms, fired_ms, good),
    )
    rows = [
        (
            bodies[body_ends[i] : body_ends[i + 1]].tobytes(),
            ids[id_ends[i] : id_ends[i + 1]].tobytes(),
            int(due_ms[i]),
            int(fired_ms[i]),
        )
        for i in range(max(0, got))
    ]
    return int(got), rows, good.tolist()


def expected(message: naive.Message, precision_ms: int) -> tuple[bytes, bytes, int, int]:
    properties = message.properties
    due_ms = message.stored_ms
    if naive.number(properties.get("TIMER_OUT_MS")) >= 0:
        due_ms = naive.due_ms(properties, precision_ms, TAG)
    key = properties.get("UNIQ_KEY", "").encode("utf-8", "surrogateescape")
    return message.body, key, due_ms, message.stored_ms


def test_golden_queues(golden_unpacked: Callable[[str], Path]) -> None:
    for name, precision_ms in {"pending": 1000, "fired": 100, "crashed": 100}.items():
        folder = golden_unpacked(name) / "commitlog"
        segments = {int(file.name): file.read_bytes() for file in folder.iterdir()}
        found = naive.scan_commit_log(segments).messages[::7]
        table = table_of(segments, len(segments[0]))
        sizes = [message.size_bytes for message in found]
        got, rows, good = pull(table, [m.offset for m in found], sizes, precision_ms)
        assert got == len(found)
        assert all(good)
        assert rows == [expected(message, precision_ms) for message in found]


@given(found=st.lists(messages(), max_size=5), data=st.data())
def test_what_is_unsound_is_left_out(found: list[naive.Message], data: st.DataObject) -> None:
    end = 0
    for message in found:
        message.has_crc = True
        deliver = message.properties.get("TIMER_DELIVER_MS")
        if deliver is not None and naive.number(deliver) < 0:
            del message.properties["TIMER_DELIVER_MS"]
        message.offset = naive.place_behind(8192, end, message.size_bytes)
        end = message.offset + message.size_bytes
    log = bytearray(naive.lay_out(found, 8192, 2))
    bad = [data.draw(st.sampled_from(["good", "good", "bit", "size"])) for _ in found]
    sizes = [message.size_bytes for message in found]
    for i, message in enumerate(found):
        if bad[i] == "bit":
            log[message.offset + data.draw(st.integers(0, sizes[i] - 21))] ^= 0x20
        if bad[i] == "size":
            sizes[i] += 1
    table = table_of({0: bytes(log[:8192]), 8192: bytes(log[8192:])}, 8192)
    got, rows, good = pull(table, [message.offset for message in found], sizes)
    assert good == [how == "good" for how in bad]
    assert got == sum(good)
    sound = [message for message, how in zip(found, bad, strict=True) if how == "good"]
    assert rows == [expected(message, 1000) for message in sound]


@given(offsets=st.lists(st.integers(0, 1023), max_size=9), log=st.binary(max_size=1024))
def test_offsets_that_lie(offsets: list[int], log: bytes) -> None:
    table = table_of({0: log.ljust(1024, b"\0")}, 1024)
    got, _, good = pull(table, offsets, [100] * len(offsets))
    assert got == sum(good)


def test_an_unmapped_segment_is_told() -> None:
    table: Any = table_of({0: bytes(1024)}, 1024)
    for offset in (1024, 1 << 40, -1):
        assert pull(table, [offset], [100])[0] == PULL_UNMAPPED
