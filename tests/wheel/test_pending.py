"""What is pending, against the slow twin; the rows that come with it, against a scan's."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import table_of
from tests.naive_cancelled import LEVEL_MARK
from tests.naive_pending import judge
from tests.rigs.tablerows import rows_in
from tests.strategies import TAG, messages, usual_messages
from tests.table_stores import place
from timerstore.jit.record import Words
from timerstore.timelog.bytes.message import BAD_PARTS, GOOD, MessageParts
from timerstore.timelog.reading import scan
from timerstore.wheel.cancelled import CancelledTimers, map_put_all, new_table
from timerstore.wheel.judge import (
    IN_MESSAGE,
    PENDING,
    PlacesRead,
    Reading,
    read_places,
)

SEGMENT_BYTES = 4_096
LEVELS = np.array(naive.parse_levels(naive.DEFAULT_LEVELS), np.int64)
NAMES = ["pending", "done", "delete", "cancelled", "no timer", "gone"]
NOTHING = np.zeros(0, np.int64)
LOGS = st.lists(messages() | usual_messages(), min_size=1, max_size=6)


def table(found: list[naive.Message], count: int = 3) -> Any:
    data = naive.lay_out(found, SEGMENT_BYTES, count)
    parts = {at: data[at : at + SEGMENT_BYTES] for at in range(0, len(data), SEGMENT_BYTES)}
    return table_of(parts, SEGMENT_BYTES)


def laid_out(found: list[naive.Message]) -> tuple[list[naive.Message], int]:
    """As many of the messages as fit into two segments, each at its place; the log's end."""
    found = found if sum(m.size_bytes for m in found) < 2 * SEGMENT_BYTES else found[:2]
    for message in found:
        message.has_crc = True
    return found, place(found, SEGMENT_BYTES)


def read(
    log: Any,
    offsets: list[int],
    due_ms: list[int] | None = None,
    done: Words = NOTHING,
    cancelled: Words = NOTHING,
) -> tuple[scan.LoggedMessages, scan.LoggedParts, Words, int]:
    """Rows, parts, verdicts, and the first that was not mapped."""
    table, count = new_table(max(1, len(done))), len(offsets)
    map_put_all(table, done, np.zeros(len(done), np.int64))
    reading = Reading(scan.ReadAs(TAG, 1_000, LEVELS, True), table, len(done), cancelled)
    rows = scan.LoggedMessages.room(count)
    parts = scan.LoggedParts.room(count)
    verdicts, state = np.full(count, 99, np.int64), np.zeros(1, np.int64)
    levels = np.array(due_ms or [IN_MESSAGE] * count, np.int64)
    at, found = np.array(offsets, np.int64), MessageParts()
    into = PlacesRead(rows, parts, verdicts)
    left = read_places(log, at, levels, reading, into, found, state)
    return rows, parts, verdicts, int(left)


@given(
    found=LOGS,
    of_level=st.lists(st.booleans(), min_size=6, max_size=6),
    done=st.sets(st.integers(0, 5), max_size=2),
    named=st.sets(st.integers(0, 5), max_size=4),
    data=st.data(),
)
def test_what_a_message_is(
    found: list[naive.Message],
    of_level: list[bool],
    done: set[int],
    named: set[int],
    data: st.DataObject,
) -> None:
    found, _ = laid_out(found)
    for i, message in enumerate(found):  # keys as ours are, of themselves or of each other
        if data.draw(st.booleans()):
            mark = LEVEL_MARK if of_level[i] else 0
            of = data.draw(st.sampled_from([message, found[0]])).offset | mark
            key = naive.encode_unique_key(naive.UniqueKey(1_700_000_000_000, of, TAG))
            if len(message.properties.get("UNIQ_KEY", "")) == len(key):
                message.properties["UNIQ_KEY"] = key
    cancelled = set()
    for i in [i for i in named if i < len(found)]:
        properties = found[i].properties
        topic, key = properties.get("REAL_TOPIC", ""), properties.get("UNIQ_KEY", "")
        identity = naive.identity(topic.encode(), key.encode(), TAG)
        if identity != (0, 0):
            cancelled.add(identity)
    timers = CancelledTimers()
    high, low = np.array(sorted(cancelled), np.int64).reshape(-1, 2).T.copy()
    timers.add(high, low)
    copied = {found[i].offset for i in done if i < len(found)}
    due_ms = [7 if of_level[i] else IN_MESSAGE for i in range(len(found))]
    rows, _, verdicts, left = read(
        table(found),
        [message.offset for message in found],
        due_ms,
        np.array(sorted(copied), np.int64),
        timers.table,
    )
    assert left == -1
    assert [NAMES[each] for each in verdicts.tolist()] == [
        judge(message, in_level=of_level[i], done=copied, cancelled=cancelled, tag=TAG)
        for i, message in enumerate(found)
    ]
    levels = (verdicts == PENDING) & np.array(of_level[: len(found)])
    assert (rows.exact_due_ms[levels] == 7).all()


@given(found=LOGS, order=st.randoms(use_true_random=False))
def test_rows_in_any_order_are_those_of_a_scan(found: list[naive.Message], order: Any) -> None:
    found, end = laid_out(found)
    log = table(found)
    scanned = scan.LoggedMessages.room(len(found) + 1)
    words, how = MessageParts(), scan.ReadAs(TAG, 1_000, LEVELS, True)
    place = scan.LogPlace(words, stop=end, sealed_from=end)
    count = scan.scan_commitlog(log, place, how, scanned)
    assert count == len(found)
    offsets = [message.offset for message in found]
    order.shuffle(offsets)
    rows, parts, verdicts, left = read(log, offsets)
    assert left == -1
    assert sorted(rows_in(rows)) == rows_in(scanned[:count])
    pending = verdicts == PENDING
    expected = scan.LoggedParts.room(len(parts))
    scan.find_parts(log, rows, words, expected)
    assert rows_in(parts[pending]) == rows_in(expected[pending])


def test_what_is_no_message_is_told() -> None:
    found = [naive.Message("t", b"x", has_crc=True), naive.Message("t", b"y", has_crc=True)]
    place(found, SEGMENT_BYTES)
    log = table(found)
    offsets = [found[1].offset, 5, SEGMENT_BYTES - 1, 40 * SEGMENT_BYTES, 0]
    rows, _, verdicts, left = read(log, offsets)
    assert left == 40 * SEGMENT_BYTES
    assert rows.status[0] == GOOD
    assert (rows.status[1:3] > 0).all()
    assert verdicts.tolist() == [4, *(-rows.status[1:3]), 99, 99]  # not reached
    stale = naive.Message("t", b"x", offset=7 * SEGMENT_BYTES, has_crc=True)
    data = naive.encode_message(stale).ljust(SEGMENT_BYTES, b"\0")
    rows, _, verdicts, _ = read(table_of({0: data}, SEGMENT_BYTES), [0])
    assert (rows.status[0], verdicts[0]) == (BAD_PARTS, -BAD_PARTS)
