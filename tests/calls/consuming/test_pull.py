"""Pulled columns against slowly decoded messages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import table_of
from tests.strategies import TAG, messages
from timerstore.calls.consuming.pull import (
    PULL_DAMAGED,
    PULL_NO_ROOM,
    PULL_SOUND,
    PULL_STRAY,
    PULL_UNMAPPED,
    PULL_WILD,
    RUN_DUE_MS,
    RUN_FIRED_MS,
    RUN_INDEX,
    RUN_OFFSET,
    RUN_TAGS,
    Columns,
    Puller,
    columns_bytes,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.segmenttable import SegmentTable


def _block(length: int) -> Any:
    return np.full(length + 8, 255, np.uint8)[:length]


@given(
    sizes=st.lists(st.integers(1, 400), max_size=40),
    begin=st.integers(0, 1 << 40),
    at=st.integers(0, 3),
    data=st.data(),
)
def test_durable_entries_are_counted(
    sizes: list[int], begin: int, at: int, data: st.DataObject
) -> None:
    entries = np.zeros(at + len(sizes), fmt.QUEUE_ENTRY)
    entries["offset"][at:], entries["size"][at:] = begin + np.cumsum([0, *sizes])[:-1], sizes
    durable_end = data.draw(st.integers(max(0, begin - 5), begin + sum(sizes) + 5))
    run = np.frombuffer(entries.tobytes(), np.uint8)
    puller = Puller(table_of({}, 4096), TAG, 1000)
    found = puller.durable_count(run, at * fmt.ENTRY_BYTES, len(sizes), durable_end)
    given = [naive.decode_entry(each.tobytes()) for each in entries[at:]]
    assert found == naive.durable_count(given, durable_end)


def pull(
    table: SegmentTable,
    offsets: list[int],
    sizes: list[int],
    precision_ms: int = 1000,
    *,
    start: int = 0,
    queue: tuple[str, int] = ("t", 0),
    ids_bytes: int | None = None,
) -> tuple[int, list[tuple[bytes, bytes, int, int]], list[int]]:
    """What a kernel returns, (body, id, due, fired) of each sound message, what became of all."""
    count = len(offsets)
    entries = np.zeros(count + 1, fmt.QUEUE_ENTRY)
    entries["offset"][1:], entries["size"][1:] = offsets, sizes
    entries["tags_code"][1:] = range(count)
    run = np.frombuffer(entries.tobytes(), np.uint8)
    topic = np.frombuffer(queue[0].encode("utf-8", "surrogateescape"), np.uint8)
    puller, got, needed = Puller(table, TAG, precision_ms), PULL_NO_ROOM, 0
    ids_room = sum(max(0, size) for size in sizes) if ids_bytes is None else ids_bytes
    for _ in range(2):  # without room, then with all that it says
        columns = Columns(_block(columns_bytes(count, ids_room, needed)), count, ids_room)
        got = puller.pull(run, fmt.ENTRY_BYTES, start, topic, queue[1], columns)
        low, high, room = puller.found()
        if got != PULL_NO_ROOM or room <= needed:
            break
        needed = room
    numbers, verdicts, sound_count = columns.numbers, columns.verdicts, max(0, got)
    texts = columns.arrow_bodies(sound_count), columns.arrow_ids(sound_count).view(pa.binary())
    times = numbers[[RUN_DUE_MS, RUN_FIRED_MS], :sound_count]
    rows = list(zip(*(each.to_pylist() for each in texts), *times.tolist(), strict=True))
    if got >= 0:
        sound = [k for k in range(count) if verdicts[k] == PULL_SOUND]
        assert numbers[RUN_INDEX, :got].tolist() == [start + k for k in sound]
        assert numbers[RUN_OFFSET, :got].tolist() == [offsets[k] for k in sound]
        assert numbers[RUN_TAGS, :got].tolist() == sound
        assert all(low <= offsets[k] < high for k in sound)
    return int(got), rows, verdicts.tolist()


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
        queues: dict[tuple[str, int], list[naive.Message]] = {}
        for message in naive.scan_commit_log(segments).messages:
            queues.setdefault((message.topic, message.queue_id), []).append(message)
        table = table_of(segments, len(segments[0]))
        table.end = len(segments) * len(segments[0])
        for queue, found in queues.items():
            start, found = len(found) // 7, found[len(found) // 7 :]
            got, rows, verdicts = pull(
                *(table, [m.offset for m in found], [m.size_bytes for m in found]),
                precision_ms,
                start=start,
                queue=queue,
            )
            assert got == len(found) and not any(verdicts)
            assert rows == [expected(message, precision_ms) for message in found]


FAULTS = ["good", "good", "bit", "size", "topic", "queue", "index", "wild", "blank"]


@given(found=st.lists(messages(), max_size=5), data=st.data())
def test_what_is_unsound_or_elsewhere_is_left_out(
    found: list[naive.Message], data: st.DataObject
) -> None:
    end, sizes = 0, []
    start = data.draw(st.integers(0, 2**62))
    topic = data.draw(st.sampled_from([message.topic for message in found] or ["t"]))
    bad = [data.draw(st.sampled_from(FAULTS)) for _ in found]
    for i, message in enumerate(found):
        message.has_crc = True
        deliver = message.properties.get("TIMER_DELIVER_MS")
        if deliver is not None and naive.number(deliver) < 0:
            del message.properties["TIMER_DELIVER_MS"]
        message.topic = "." + topic[1:] if bad[i] == "topic" else topic
        message.queue_id = 3 + (bad[i] == "queue")
        message.magic = naive.MESSAGE_MAGIC_LONG_TOPIC
        message.queue_offset = start + i - (bad[i] == "index")
        message.offset = naive.place_behind(8192, end, message.size_bytes)
        end = message.offset + message.size_bytes
        sizes.append(0 if bad[i] == "blank" else message.size_bytes + (bad[i] == "size"))
    log = bytearray(naive.lay_out(found, 8192, 2))
    for i, message in enumerate(found):
        if bad[i] == "bit":
            log[message.offset + data.draw(st.integers(0, message.size_bytes - 21))] ^= 0x20
    table = table_of({0: bytes(log[:8192]), 8192: bytes(log[8192:])}, 8192)
    table.end = 16_384
    beyond = data.draw(st.sampled_from([-1, 16_384, 1 << 60]))
    offsets = [beyond if bad[i] == "wild" else m.offset for i, m in enumerate(found)]
    got, rows, verdicts = pull(table, offsets, sizes, start=start, queue=(topic, 3))
    wanted = {"good": PULL_SOUND, "bit": PULL_DAMAGED, "wild": PULL_WILD, "blank": PULL_WILD}
    assert verdicts == [wanted.get(how, PULL_STRAY) for how in bad]
    sound = [message for message, how in zip(found, bad, strict=True) if how == "good"]
    assert got == len(sound)
    assert rows == [expected(message, 1000) for message in sound]


@given(offsets=st.lists(st.integers(0, 1023), max_size=9), log=st.binary(max_size=1024))
def test_offsets_that_lie(offsets: list[int], log: bytes) -> None:
    table = table_of({0: log.ljust(1024, b"\0")}, 1024)
    table.end = 1024
    got, _, verdicts = pull(table, offsets, [100] * len(offsets))
    assert got == verdicts.count(PULL_SOUND)


def test_an_unmapped_segment_is_told() -> None:
    table: Any = table_of({0: bytes(1024)}, 1024)
    table.end = 1 << 41
    for offset in (1024, 1 << 40):
        assert pull(table, [offset], [100])[0] == PULL_UNMAPPED


def test_ids_without_room_are_told() -> None:
    message = naive.Message("t", b"body", {"UNIQ_KEY": "k" * 40})
    message.has_crc = True
    table: Any = table_of({0: naive.lay_out([message], 1024, 1)}, 1024)
    table.end = message.size_bytes
    assert pull(table, [0], [message.size_bytes], ids_bytes=39)[0] == PULL_NO_ROOM
    assert pull(table, [0], [message.size_bytes], ids_bytes=40)[0] == 1


@given(
    digits=st.text("0123456789", min_size=12, max_size=14),
    key=st.text("0123456789ABCDEF", min_size=24, max_size=24),
    tag=st.sampled_from([TAG, TAG ^ 1]),
    names=st.permutations(["TIMER_OUT_MS", "UNIQ_KEY", "OTHER"]),
    count=st.integers(0, 3),
)
def test_the_usual_order_of_properties_and_others(
    digits: str, key: str, tag: int, names: list[str], count: int
) -> None:
    values = {"TIMER_OUT_MS": digits, "UNIQ_KEY": f"{key}{tag:08X}", "OTHER": "x"}
    message = naive.Message("t", b"body", {name: values[name] for name in names[:count]})
    message.has_crc = True
    table: Any = table_of({0: naive.lay_out([message], 1024, 1)}, 1024)
    table.end = message.size_bytes
    got, rows, _ = pull(table, [0], [message.size_bytes])
    assert got == 1 and rows == [expected(message, 1000)]


def test_a_run_of_nothing_is_empty() -> None:
    table: Any = table_of({0: bytes(1024)}, 1024)
    assert pull(table, [], []) == (0, [], [])
