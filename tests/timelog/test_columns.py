"""Columns that kernels fill, against what the slow twins decode one by one."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import table_of
from tests.strategies import messages, usual_messages
from tests.table_stores import place
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import decode_properties
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.reading import scan as columns
from timerstore.timelog.reading.scan import LoggedMessages

SEGMENT_BYTES = 4_096
LEVELS = np.array(naive.parse_levels(naive.DEFAULT_LEVELS), np.int64)
LOGS = st.lists(messages() | usual_messages(), min_size=1, max_size=6)


def table(found: list[naive.Message], count: int = 3) -> Any:
    data = naive.lay_out(found, SEGMENT_BYTES, count)
    parts = {at: data[at : at + SEGMENT_BYTES] for at in range(0, len(data), SEGMENT_BYTES)}
    return table_of(parts, SEGMENT_BYTES)


@given(found=LOGS)
def test_parts(found: list[naive.Message]) -> None:
    found = found if sum(m.size_bytes for m in found) < 2 * SEGMENT_BYTES else found[:3]
    place(found, SEGMENT_BYTES)
    log = table(found)
    rows = LoggedMessages.room(len(found))
    rows.offset[:] = [message.offset for message in found]
    parts = columns.LoggedParts.room(len(found))
    columns.find_parts(log, rows, MessageParts(), parts)
    for message, part in zip(found, parts, strict=True):
        assert part.flag == message.flag
        assert part.system_flag == message.system_flag
        assert part.reconsumes == message.reconsume_times
        assert part.body_bytes == len(message.body)
        if part.is_plain == 1:
            assert set(message.properties) <= fmt.RESERVED_PROPERTIES
    where = (parts.keys_at, parts.keys_bytes, "KEYS"), (parts.tags_at, parts.tags_bytes, "TAGS")
    for places, lengths, name in where:
        wanted = [message.properties.get(name) for message in found]
        assert texts(log, places, lengths) == [
            b"" if each is None else each.encode() for each in wanted
        ]
    bodies = texts(log, parts.body_at, parts.body_bytes)
    assert bodies == [message.body for message in found]


def texts(log: Any, places: Any, lengths: Any) -> list[bytes]:
    starts = np.zeros(len(places) + 1, np.int32)
    starts[1:] = np.cumsum(np.maximum(lengths, 0))
    data = np.zeros(starts[-1], np.uint8)
    columns.copy_texts(log, places, starts, data)
    return cut(starts, data)


def cut(starts: Any, data: Any) -> list[bytes]:
    return [data[a:b].tobytes() for a, b in pairwise(starts)]


def properties_of(
    log: Any, places: list[int], lengths: list[int], *hidden_names: bytes
) -> list[dict[str, str]]:
    starts = np.cumsum([0, *map(len, hidden_names)])
    hidden = columns.Names(np.frombuffer(b"".join(hidden_names) + b" ", np.uint8), starts)
    at, count = np.array(places, np.int64), np.array(lengths, np.int64)
    counts = np.zeros((len(at), 3), np.int64)
    none = np.zeros(1, np.int32), np.zeros(0, np.uint8)
    columns.list_properties(log, at, count, hidden, counts, columns.PropertyTexts(*none, *none))
    total = int(counts[:, 0].sum())
    names, values = (np.zeros(int(counts[:, i].sum()), np.uint8) for i in (1, 2))
    name_starts, value_starts = np.zeros(total + 1, np.int32), np.zeros(total + 1, np.int32)
    texts_of = columns.PropertyTexts(name_starts, names, value_starts, values)
    columns.list_properties(log, at, count, hidden, counts, texts_of)
    pairs = list(zip(cut(name_starts, names), cut(value_starts, values), strict=True))
    found, begin = [], 0
    for size in counts[:, 0].tolist():
        part = pairs[begin : begin + size]
        begin += size
        assert len({name for name, _ in part}) == len(part)
        found.append({name.decode(): value.decode() for name, value in part})
    return found


@given(parts=st.lists(st.binary(max_size=60).map(lambda d: bytes(b % 4 for b in d)), max_size=5))
def test_any_properties(parts: list[bytes]) -> None:
    segment = b"".join(parts).ljust(SEGMENT_BYTES, b"\0")
    ends = np.cumsum([len(part) for part in parts]).tolist()
    places = [end - len(part) for end, part in zip(ends, parts, strict=True)]
    log = table_of({0: segment}, SEGMENT_BYTES)
    found = properties_of(log, places, [len(part) for part in parts])
    assert found == [decode_properties(part) for part in parts]
    names = sorted({name for each in found for name in each})[::2]
    left = properties_of(log, places, [len(part) for part in parts], *(n.encode() for n in names))
    assert left == [{n: v for n, v in each.items() if n not in names} for each in found]


def test_the_last_of_two_properties_counts() -> None:
    data = b"a\x011\x02ab\x012\x02a\x013\x02ab\x01\x02b"
    log = table_of({0: data.ljust(SEGMENT_BYTES, b"\0")}, SEGMENT_BYTES)
    assert properties_of(log, [0, 0, 0], [len(data), 0, -1]) == [{"a": "3", "ab": ""}, {}, {}]
