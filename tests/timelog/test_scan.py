"""Scanning the commit log: of any log, then of those that are cut or damaged."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import as_array, table_of, table_over
from tests.rigs.tablerows import joined
from tests.strategies import TAG, messages
from timerstore.timelog.bytes.blank import SEALED_NOWHERE
from timerstore.timelog.bytes.message import BAD_CRC, BAD_PARTS, GOOD, MessageParts
from timerstore.timelog.files.names import is_topic
from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.reading import scan
from timerstore.timelog.reading.scan import LoggedMessages, LogPlace, ReadAs, scan_commitlog

Rows = np.ndarray[Any, np.dtype[np.int64]]
LEVELS_MS = naive.parse_levels(naive.DEFAULT_LEVELS)
SEGMENT_BYTES = 4096


def scan_all(
    table: SegmentTable,
    stop: int,
    *,
    start: int = 0,
    at_a_time: int = 97,
    tag: int = TAG,
    precision_ms: int = 1000,
    verify: bool = True,
    sealed_from: int = SEALED_NOWHERE,
) -> tuple[LoggedMessages, int, int, LoggedMessages]:
    """All good rows, where the scan ended, what stopped it, and the row behind the good ones."""
    rows = LoggedMessages.room(at_a_time + 1)
    place = LogPlace(MessageParts(), start, stop, sealed_from)
    how = ReadAs(tag, precision_ms, np.array(LEVELS_MS, np.int64), verify)
    parts = []
    while True:
        offset = place.offset
        count = scan_commitlog(table, place, how, rows[:at_a_time])
        parts.append(joined([rows[:count]]))
        assert place.offset >= offset
        if place.stopped != scan.STOP_COUNT or place.offset >= stop:
            return joined(parts), place.offset, place.stopped, rows[count]
        assert count == at_a_time


def expected_row(message: naive.Message, precision_ms: int, tag: int) -> dict[str, int]:
    """What a row says about a message, but for the places of its texts."""
    properties = message.properties
    topic, key = properties.get("REAL_TOPIC"), properties.get("UNIQ_KEY")
    deletes = properties.get("TIMER_DEL_UNIQKEY")
    if deletes is not None:
        identity = naive.target_identity((topic or "").encode(), deletes.encode(), tag)
    else:
        identity = naive.identity((topic or "").encode(), (key or "").encode(), tag)

    def length(text: str | None) -> int:
        return -1 if text is None else len(text.encode("utf-8", "surrogateescape"))

    due_ms = naive.number(properties.get("TIMER_OUT_MS"))
    exact_ms = -1 if due_ms < 0 else naive.due_ms(properties, precision_ms, tag)
    return {
        "offset": message.offset,
        "size": message.size_bytes,
        "queue_id": message.queue_id,
        "queue_index": message.queue_offset,
        "born_ms": message.born_ms,
        "stored_ms": message.stored_ms,
        "tags_code": naive.tags_code(message, LEVELS_MS),
        "topic_bytes": length(message.topic),
        "key_bytes": length(key),
        "real_topic_bytes": length(topic),
        "real_queue": naive.number(properties.get("REAL_QID")),
        "due_ms": due_ms,
        "exact_due_ms": exact_ms,
        "roll_times": max(0, naive.number(properties.get("TIMER_ROLL_TIMES"))),
        "origin": naive.origin_of(message),
        "is_delete": int(deletes is not None),
        "is_replacement": int("TIMER_REPLACES" in properties),
        "identity_high": identity[0],
        "identity_low": identity[1],
        "level": naive.number(properties.get("DELAY")),
        "status": GOOD,
    }


TEXTS = {"topic": None, "key": "UNIQ_KEY", "real_topic": "REAL_TOPIC"}


def check_rows(
    rows: LoggedMessages,
    messages: list[naive.Message],
    segments: Mapping[int, bytes],
    precision_ms: int,
    tag: int,
) -> None:
    """Every row says what the slow scan says, text for text."""
    assert len(rows) == len(messages)
    segment_bytes = len(segments[0])
    for row, message in zip(rows, messages, strict=True):
        expected = expected_row(message, precision_ms, tag)
        assert {column: getattr(row, column) for column in expected} == expected
        for text_of, name in TEXTS.items():
            at, count = int(getattr(row, f"{text_of}_at")), int(getattr(row, f"{text_of}_bytes"))
            text = message.topic if name is None else message.properties.get(name)
            if text is not None:
                begin = at // segment_bytes * segment_bytes
                data = segments[begin][at - begin :][:count]
                assert data == text.encode("utf-8", "surrogateescape")


# --- logs that are made here


def log_of(found: list[naive.Message], behind: bytes = b"") -> tuple[bytes, int]:
    """Three segments with these messages one behind the other, and their end."""
    end = 0
    for index, message in enumerate(found):
        message.queue_offset = index
        message.offset = naive.place_behind(SEGMENT_BYTES, end, message.size_bytes)
        end = message.offset + message.size_bytes
    data = bytearray(naive.lay_out(found, SEGMENT_BYTES, 3))
    data[end : end + len(behind)] = behind
    return bytes(data[: 3 * SEGMENT_BYTES]), end


def split(data: bytes) -> dict[int, bytes]:
    return {at: data[at : at + SEGMENT_BYTES] for at in range(0, len(data), SEGMENT_BYTES)}


def numeric(message: naive.Message) -> naive.Message:
    """The message without what the slow rules refuse to read as a number."""
    for name in ("TIMER_OUT_MS", "TIMER_DELIVER_MS", "DELAY"):
        if naive.number(message.properties.get(name)) < 0:
            message.properties.pop(name, None)
    message.topic = message.topic[:127]  # at a topic of more than 255 bytes a scan ends
    message.has_crc = True
    return message


LOGS = st.lists(messages().map(numeric), min_size=1, max_size=9).map(
    lambda found: found if sum(m.size_bytes for m in found) < 2 * SEGMENT_BYTES else found[:3]
)


@given(found=LOGS, at_a_time=st.integers(1, 10))
def test_rows_of_any_log(found: list[naive.Message], at_a_time: int) -> None:
    data, end = log_of(found)
    segments = split(data)
    table = table_of(segments, SEGMENT_BYTES)
    rows, stopped_at, stopped, _ = scan_all(table, len(data), at_a_time=at_a_time)
    assert (stopped_at, stopped) == (end, scan.STOP_END)
    check_rows(rows, naive.scan_commit_log(segments).messages, segments, 1000, TAG)
    rows, stopped_at, _, _ = scan_all(table, found[-1].offset, at_a_time=at_a_time)
    assert len(rows) == len(found) - 1
    assert stopped_at <= found[-1].offset


@given(
    found=LOGS,
    changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=4),
    behind=st.binary(max_size=100),
)
def test_a_damaged_log_ends_where_the_damage_is(
    found: list[naive.Message], changes: list[tuple[int, int]], behind: bytes
) -> None:
    whole, end = log_of(found, behind)
    data = bytearray(whole)
    in_a_crc = False
    for place, change in changes:
        place %= end
        data[place] ^= change
        ends = [message.offset + message.size_bytes for message in found]
        # The twin takes a CRC only where it follows a whole property, the kernel always.
        in_a_crc |= any(at - 21 <= place < at for at in ends)
    table = table_of(split(bytes(data)), SEGMENT_BYTES)
    for verify in (True, False):
        rows, stopped_at, stopped, bad = scan_all(table, len(data), verify=verify)
        assert stopped in (scan.STOP_END, scan.STOP_BAD, scan.STOP_COUNT)
        assert stopped_at <= len(data)
        if stopped == scan.STOP_BAD:
            assert bad.offset == stopped_at
            assert bad.status != GOOD
        if verify and not in_a_crc:
            slow = naive.scan_commit_log(split(bytes(data)))
            assert (stopped_at, len(rows)) == (slow.end, len(slow.messages))


@given(data=st.binary(max_size=600), at=st.integers(0, SEGMENT_BYTES - 1))
def test_random_bytes(data: bytes, at: int) -> None:
    segment = np.zeros(SEGMENT_BYTES, np.uint8)
    part = data[: SEGMENT_BYTES - at]
    segment[at : at + len(part)] = np.frombuffer(part, np.uint8)
    table = table_over({0: segment}, SEGMENT_BYTES)
    _, _, stopped, _ = scan_all(table, SEGMENT_BYTES, start=at)
    assert stopped in (scan.STOP_END, scan.STOP_BAD)


def test_what_stops_a_scan() -> None:
    message = naive.Message("t", b"body", {"a": "b"})
    second = naive.Message("t", b"body", {"a": "c"}, offset=message.size_bytes)
    data = bytearray(naive.lay_out([message, second], SEGMENT_BYTES, 1))
    array = as_array(bytes(data))
    table = table_over({0: array}, SEGMENT_BYTES)
    assert scan_all(table, 1 << 20)[2] == scan.STOP_END
    array[second.offset + 90] ^= 1
    rows, at, stopped, bad = scan_all(table, 1 << 20)
    assert (len(rows), at, stopped) == (1, second.offset, scan.STOP_BAD)
    assert bad.status == BAD_CRC

    # A message of an earlier use of the segment: whole, but of another place.
    stale = naive.Message("t", b"body", {"a": "c"}, offset=7 * SEGMENT_BYTES)
    array[second.offset : second.offset + second.size_bytes] = as_array(naive.encode_message(stale))
    _, at, stopped, bad = scan_all(table, 1 << 20)
    assert (at, stopped) == (second.offset, scan.STOP_BAD)
    assert bad.status == BAD_PARTS

    array[second.offset :] = 0
    left = SEGMENT_BYTES - second.offset
    array[second.offset :] = as_array(naive.blank_message(left))
    _, at, stopped, _ = scan_all(table, 1 << 20)
    assert (at, stopped) == (SEGMENT_BYTES, scan.STOP_UNMAPPED)
    # What has no seal may be of an earlier use; what is sealed for another place is.
    for sealed_from, end in [(second.offset, second.offset), (second.offset + 1, SEGMENT_BYTES)]:
        assert scan_all(table, 1 << 20, sealed_from=sealed_from)[1] == end
    array[second.offset :] = as_array(naive.blank_message(left, second.offset + SEGMENT_BYTES))
    assert scan_all(table, 1 << 20)[1:3] == (second.offset, scan.STOP_END)
    array[second.offset :] = as_array(naive.blank_message(left, second.offset))
    assert scan_all(table, 1 << 20, sealed_from=0)[1] == SEGMENT_BYTES
    assert scan_all(table, 1 << 20, start=-5)[2] == scan.STOP_UNMAPPED
    array[second.offset + 3] ^= 1  # a blank of the wrong length
    assert scan_all(table, 1 << 20)[1:3] == (second.offset, scan.STOP_END)
    for start in range(SEGMENT_BYTES - 120, SEGMENT_BYTES):
        assert scan_all(table, SEGMENT_BYTES, start=start)[1:3] == (start, scan.STOP_END)


@given(name=st.text("./\0ab", min_size=0, max_size=4))
def test_what_can_name_no_folder_is_no_topic(name: str) -> None:
    """A message's own topic ends the scan there; a timer's topic is left out."""
    can_be = is_topic(name.encode())
    own = naive.encode_message(naive.Message(name, b"body"))
    timer = naive.Message(naive.TIMER_TOPIC, b"body", {"REAL_TOPIC": name})
    for data, wanted in (own, GOOD if can_be else BAD_PARTS), (naive.encode_message(timer), GOOD):
        table = table_over({0: as_array(data.ljust(SEGMENT_BYTES, b"\0"))}, SEGMENT_BYTES)
        rows, _, _, last = scan_all(table, len(data))
        assert (GOOD if len(rows) else last.status) == wanted
    assert rows.real_topic_bytes[0] == (len(name) if can_be else -1)
