"""What a validation counts on its way is what the tables of the store say."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import timerstore
from tests.table_stores import LIVES, live
from timerstore.tables.bounds import java_hash
from timerstore.timelog.reading.rowsums import summed
from timerstore.validation import measured as counted
from timerstore.validation.files import finish
from timerstore.validation.measured import (
    DUE,
    GROWTH,
    KINDS,
    LATENESS,
    ROLLS,
    Measured,
    hops_to_come,
    lateness_told,
    pages_of,
)
from timerstore.validation.plain import run
from timerstore.validation.plan import make_plan
from timerstore.values.amounts import HOUR_MS, MINUTE_MS

pytestmark = pytest.mark.slow


def measure(path: Path, split_bytes: int) -> tuple[Measured, dict[int, str]]:
    plan = make_plan(path, measures=True, split_bytes=split_bytes)
    tally = run(plan, lambda _: None)
    finish(plan.scope, tally)
    assert tally.measured is not None and not tally.failed.counts
    return tally.measured, tally.topics


def rows_of(path: Path, table: str, columns: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = timerstore.read(path, table, columns.split(",")).to_pylist()
    return rows


def told(measured: Measured, name: str) -> list[tuple[int, ...]]:
    return [tuple(row) for row in measured.table(name).tolist()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(life=LIVES, split_bytes=st.sampled_from([500, 4_000, 1 << 20]))
def test_it_is_what_the_tables_say(life: list[tuple[Any, ...]], split_bytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="measured") as folder:
        path = Path(folder) / "store"
        live(path, life).close()
        check_counts(path, *measure(path, split_bytes))


def check_counts(path: Path, measured: Measured, topics: dict[int, str]) -> None:
    due: Counter[tuple[int, str]] = Counter()
    for row in rows_of(path, "timers", "due_ms,topic"):
        due[row["due_ms"] // MINUTE_MS, row["topic"]] += 1
    assert {(minute, topics[topic]): n for minute, topic, n in told(measured, DUE)} == due

    late: Counter[tuple[str, int, int]] = Counter()
    for row in rows_of(path, "fired", "topic,fired_ms,lateness_ms"):
        bucket = int(lateness_told(np.array([row["lateness_ms"]]))[0])
        late[row["topic"], row["fired_ms"] // HOUR_MS, bucket] += 1
    found = {(topics[topic], hour, ms): n for topic, hour, ms, n in told(measured, LATENESS)}
    assert {each: n for each, n in late.items() if each in found} == found
    assert sum(found.values()) <= sum(late.values())  # a level's message has no due time

    growth: Counter[int] = Counter()
    for row in rows_of(path, "messages", "stored_ms,size"):
        growth[row["stored_ms"] // HOUR_MS] += row["size"]
    hours: Counter[int] = Counter()
    for hour, kind, count, size in told(measured, GROWTH):
        assert count > 0 and 0 <= kind < len(KINDS)
        hours[hour] += size
    assert hours == growth
    check_slots(path, measured)


def check_slots(path: Path, measured: Measured) -> None:
    cursors = {row["name"]: row["value"] for row in rows_of(path, "checkpoint", "name,value")}
    read_slot = cursors["read_ms"] // 1_000
    columns = "offset,slot,message_offset,message_size,is_delete,is_roll,topic_hash"
    ahead = [row for row in rows_of(path, "units", columns) if row["slot"] >= read_slot]
    indexes = {row["slot"]: row["index"] for row in rows_of(path, "slots", "slot,index")}
    by_slot = {row[counted.SLOT_NUMBER]: row for row in measured.slot_rows()}
    assert set(by_slot) == {row["slot"] for row in ahead}
    latest = {row["message_offset"]: row["offset"] for row in ahead}

    def is_superseded(row: dict[str, Any]) -> bool:
        at = row["message_offset"]
        return bool(at < cursors["floor"] or row["offset"] != latest[at])

    rolls = 0
    for slot, found in by_slot.items():
        units = [row for row in ahead if row["slot"] == slot]
        living = [row for row in units if not row["is_delete"] and not is_superseded(row)]
        pages = set[int]()
        for row in living:
            first, last = row["message_offset"], row["message_offset"] + row["message_size"] - 1
            pages.update(range(first // 4_096, last // 4_096 + 1))
        hashes = Counter(row["topic_hash"] & 0xFFFFFFFF for row in living)
        net = Counter[bool]()
        for row in units:
            if not is_superseded(row):
                net[row["is_roll"]] += -1 if row["is_delete"] else 1
        rolls += net[True]
        assert found[counted.SLOT_FIRES] == max(0, net[False])
        assert found[counted.SLOT_UNITS] == found[counted.SLOT_DEPTH] == len(units)
        assert found[counted.SLOT_DELETES] == sum(row["is_delete"] for row in units)
        assert found[counted.SLOT_LIVE] == len(living)
        assert found[counted.SLOT_LIVE] - found[counted.SLOT_LATE] == found[counted.SLOT_EXPECTED]
        assert found[counted.SLOT_ROLLS] == max(0, net[True])
        assert found[counted.SLOT_MESSAGE_BYTES] == sum(row["message_size"] for row in living)
        assert found[counted.SLOT_PAGES] == len(pages)
        assert found[counted.SLOT_INDEX] == indexes[slot]
        if living:
            top = hashes[found[counted.SLOT_TOP_HASH]]
            assert top == found[counted.SLOT_TOP] == max(hashes.values())
    assert sum(timers for _, timers, _ in told(measured, ROLLS)) == rolls


ROWS = st.lists(st.tuples(*[st.integers(-3, 3)] * 3), max_size=30)


@given(ROWS, ROWS)
def test_sums_merge(a: list[tuple[int, ...]], b: list[tuple[int, ...]]) -> None:
    one, other, both = Measured(), Measured(), Measured()
    for measured, rows in ((one, a), (other, b), (both, a + b)):
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        measured.add(DUE, *columns)
    one.merge(other)
    assert told(one, DUE) == told(both, DUE)
    expected: Counter[tuple[int, int]] = Counter()
    for *key, value in a + b:
        expected[key[0], key[1]] += value
    assert {(x, y): n for x, y, n in told(one, DUE)} == dict(expected)


def test_many_rows_are_added_up_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timerstore.validation.measured._LOOSE_MAX", 50)
    measured = Measured()
    for _ in range(100):
        measured.add(DUE, np.arange(7), np.zeros(7))
    assert told(measured, DUE) == [(i, 0, 100) for i in range(7)]
    assert measured.held_rows < 120


def test_hashes_are_java_s() -> None:
    assert summed(np.array([[1, 2], [1, 3]]), 1).tolist() == [[1, 5]]
    assert java_hash("mail") == 3343799


@given(st.integers(0, 1 << 40), st.integers(0, 20_000))
def test_pages(offset: int, size: int) -> None:
    first, last = pages_of(np.array([offset]), np.array([size]))
    touched = {at // 4_096 for at in range(offset, offset + max(size, 1))}
    assert {*range(first[0], last[0] + 1)} == touched


@given(st.integers(1, 60), st.integers(3, 12))
def test_hops(hops: int, window: int) -> None:
    """Step by step, as `wheel/place.py` puts a timer down again."""
    hop = window - 1
    left, count = hops * hop, 0
    while left > 0:
        count += 1
        left = 0 if left < window else ((left - window) // hop + 1) * hop
    assert hops_to_come(np.array([hops]), hop, window).tolist() == [count]


@given(st.lists(st.integers(-3, 10**7), max_size=60))
def test_lateness_is_exact_or_nearly(late_ms: list[int]) -> None:
    told = lateness_told(np.array(late_ms, np.int64)).tolist()
    for value, exact in zip(told, (max(0, each) for each in late_ms), strict=True):
        assert value == exact if exact < 1_024 else exact * 0.998 <= value <= exact
