"""Auditing kernels beside their twins: entries, checksums, where rolls wait, whose copy it is."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import as_array, table_of
from tests.strategies import TAG, messages
from timerstore.jit.record import read_only
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.reading import audit
from timerstore.timelog.reading.scan import LoggedMessages

SEGMENT_BYTES = 4_096
WORDS = {
    "none": audit.ENTRY_NONE,
    "good": audit.ENTRY_GOOD,
    "blank": audit.ENTRY_BLANK,
    "behind": audit.ENTRY_BEHIND,
    "wrong": audit.ENTRY_WRONG,
}


def as_log(given_messages: list[naive.Message], **fields: Any) -> list[naive.Message]:
    """The messages, one behind the other, in queue 0 of topic `t` or with other fields."""
    placed, end = [], 0
    for index, message in enumerate(given_messages):
        message = replace(message, topic="t", magic=naive.MESSAGE_MAGIC, **fields)
        message = replace(message, queue_id=index % 3 // 2, queue_offset=index)
        offset = naive.place_behind(SEGMENT_BYTES, end, message.size_bytes)
        placed.append(replace(message, offset=offset))
        end = offset + message.size_bytes
    return placed


def table_and_end(log: list[naive.Message]) -> tuple[SegmentTable, int]:
    end = log[-1].offset + log[-1].size_bytes if log else 0
    count = end // SEGMENT_BYTES + 1
    data = naive.lay_out(log, SEGMENT_BYTES, count)
    parts = {at: data[at : at + SEGMENT_BYTES] for at in range(0, len(data), SEGMENT_BYTES)}
    return table_of(parts, SEGMENT_BYTES), end


CHANGES = st.sampled_from(
    ["none", "blank", "behind", "shifted", "longer", "zero", "negative", "queue", "last"]
)


@given(
    st.lists(messages(), min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 7), CHANGES),
    st.integers(1, 3),
)
def test_entries_as_the_twin(
    drawn: list[naive.Message], changes: dict[int, str], at_a_time: int
) -> None:
    log = as_log(drawn)
    table, end = table_and_end(log)
    entries = []
    for index, message in enumerate(log):
        entry = naive.Entry(message.offset, message.size_bytes, 7)
        entries.append(
            {
                "blank": naive.QUEUE_BLANK,
                "behind": entry._replace(message_offset=end + 3),
                "shifted": entry._replace(message_offset=message.offset + 1),
                "longer": entry._replace(message_bytes=message.size_bytes + 1),
                "zero": naive.Entry(0, 0, 0),
                "negative": entry._replace(message_offset=-5),
                "last": naive.Entry(log[-1].offset, log[-1].size_bytes, 7),
            }.get(changes.get(index, ""), entry)
        )
    by_offset = {message.offset: message for message in log}
    expected = [
        WORDS[naive.judge_entry(entry, index, by_offset, "t", 0, end)]
        for index, entry in enumerate(entries)
    ]
    data = as_array(b"".join(map(naive.encode_entry, entries)))
    verdicts = np.full(len(entries), -1, np.int64)
    found, state = MessageParts(), np.zeros(2, np.int64)
    run = audit.QueueRun(read_only(data), 0, 0, read_only(as_array(b"t")), 0)
    place = (table, run, 0, end, found, verdicts, state)
    assert audit.judge_entries(*place) == len(entries)
    assert verdicts.tolist() == expected
    assert state.tolist() == [len(entries), -1]


def test_entries_wait_for_a_segment() -> None:
    log = as_log([naive.Message("t", b"x" * 3_000), naive.Message("t", b"y" * 3_000)])
    table, end = table_and_end(log)
    kept = int(table.number[1])
    table.number[1] = -1
    data = b"".join(naive.encode_entry(naive.Entry(m.offset, m.size_bytes, 0)) for m in log)
    verdicts, found = np.zeros(2, np.int64), MessageParts()
    state = np.zeros(2, np.int64)
    run = audit.QueueRun(read_only(as_array(data)), 0, 0, read_only(as_array(b"t")), 0)
    place = (table, run, 0, end, found, verdicts, state)
    assert audit.judge_entries(*place) == 1
    assert state.tolist() == [1, log[1].offset]
    table.number[1] = kept
    assert audit.judge_entries(*place) == 2
    assert verdicts.tolist() == [audit.ENTRY_GOOD, audit.ENTRY_GOOD]


@given(
    st.integers(4, 40),
    st.integers(0, 200_000),
    st.integers(1, 150_000),
    st.integers(-2, 2),
    st.booleans(),
    st.integers(0, 4),
)
def test_rolls_as_the_twin(
    window: int, write_ms: int, ahead_ms: int, off_ms: int, ours: bool, hops: int
) -> None:
    """A roll where placing puts it, and a little beside."""
    precision_ms, tag = 1_000, TAG
    write_ms = write_ms // precision_ms * precision_ms
    due_ms = write_ms + ahead_ms
    hop_ms = (window - 1) * precision_ms
    unit_ms = due_ms - hops * hop_ms
    if not ours:
        unit_ms = naive.broker_place(due_ms, write_ms, precision_ms, window).time_ms
    unit_ms = max(write_ms, unit_ms + off_ms)
    source = naive.new_timer("t", b"body", due_ms, 0, tag, {})
    unit = naive.Unit(
        unit_bytes=fmt.UNIT_BYTES,
        prev_pos=-1,
        magic=3,
        write_ms=write_ms,
        delta_ms=unit_ms - write_ms,
        message_offset=0,
        message_bytes=source.size_bytes,
        topic_hash=naive.java_hash("t"),
        crc=0,
        extra=0,
    )
    if ours:
        unit = naive.seal_unit(unit, 0)
    log, _ = table_and_end([source])
    timerlog = table_of({0: naive.encode_unit(unit).ljust(SEGMENT_BYTES, b"\0")}, SEGMENT_BYTES)
    units = audit.AuditedUnits.room(1)
    state = np.zeros(3, np.int64)
    count = audit.audit_units(
        timerlog,
        log,
        fmt.UNIT_BYTES,
        audit.Audited(
            *(0, 0, 0, SEGMENT_BYTES, 0, precision_ms, hop_ms, window * precision_ms, tag)
        ),
        units,
        MessageParts(),
        state,
    )
    assert count == 1
    in_place = naive.is_roll_in_place(due_ms, unit_ms, write_ms, precision_ms, window, ours=ours)
    expected = audit.SOUND if in_place else audit.OTHER_TIME
    assert units.status[0] == expected
    identity = naive.identity(b"t", source.properties["UNIQ_KEY"].encode(), tag)
    assert (units.high[0], units.low[0]) == identity


@given(st.lists(messages(), min_size=1, max_size=5))
def test_identities_of_copies_as_the_twin(drawn: list[naive.Message]) -> None:
    log = as_log(drawn)
    table, _ = table_and_end(log)
    rows = LoggedMessages.room(len(log))
    rows.offset[:] = [message.offset for message in log]
    high, low = np.zeros(len(log), np.int64), np.zeros(len(log), np.int64)
    audit.identify_copies(table, rows, TAG, MessageParts(), high, low)
    for i, message in enumerate(log):
        key = message.properties.get("UNIQ_KEY", "").encode()
        assert (high[i], low[i]) == naive.identity(b"t", key, TAG)
