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
from timerstore.pipeline.judging import tables_of
from timerstore.tables.bounds import java_hash
from timerstore.validation.facts import ROLLS, SUMMED, facts_of, hops_to_come, lateness_told, summed
from timerstore.validation.files import finish
from timerstore.validation.plan import Reading, make_plan
from timerstore.validation.result import Validation
from timerstore.validation.rounds import run
from timerstore.values.amounts import HOUR_MS, MINUTE_MS

pytestmark = pytest.mark.slow
KINDS = ("put", "fired", "moved", "cancelled", "other")


Tables = dict[str, list[dict[str, Any]]]


def measure(path: Path, split_bytes: int) -> Tables:
    plan = make_plan(path, Reading(split_bytes=split_bytes), measures=True)
    tally = run(plan, lambda _: None)
    finish(plan.scope, tally)
    assert not tally.failed.counts
    row, tables = tables_of(plan.scope, tally, Validation.make(plan.scope, tally), 0)
    return {"stores": [row]} | {name: each.to_pylist() for name, each in tables.items()}


def rows_of(path: Path, table: str, columns: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = timerstore.read(path, table, columns.split(",")).to_pylist()
    return rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(life=LIVES, split_bytes=st.sampled_from([500, 4_000, 1 << 20]))
def test_it_is_what_the_tables_say(life: list[tuple[Any, ...]], split_bytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="measured") as folder:
        path = Path(folder) / "store"
        live(path, life).close()
        check_counts(path, measure(path, split_bytes))


def check_counts(path: Path, told: Tables) -> None:
    due: Counter[tuple[int, str]] = Counter()
    for row in rows_of(path, "timers", "due_ms,topic"):
        due[row["due_ms"] // MINUTE_MS, row["topic"]] += 1
    assert {
        (row["minute_ms"] // MINUTE_MS, row["topic"]): row["timers"] for row in told["due"]
    } == due

    late: Counter[tuple[str, int, int]] = Counter()
    for row in rows_of(path, "fired", "topic,fired_ms,lateness_ms"):
        bucket = int(lateness_told(np.array([row["lateness_ms"]]))[0])
        late[row["topic"], row["fired_ms"] // HOUR_MS, bucket] += 1
    found = {
        (row["topic"], row["hour_ms"] // HOUR_MS, row["late_ms"]): row["fired"]
        for row in told["lateness"]
    }
    assert {each: n for each, n in late.items() if each in found} == found
    assert sum(found.values()) <= sum(late.values())  # a level's message has no due time

    growth: Counter[int] = Counter()
    for row in rows_of(path, "messages", "stored_ms,size"):
        growth[row["stored_ms"] // HOUR_MS] += row["size"]
    hours: Counter[int] = Counter()
    for row in told["growth"]:
        assert row["messages"] > 0 and row["kind"] in KINDS
        hours[row["hour_ms"] // HOUR_MS] += row["bytes"]
    assert hours == growth
    check_slots(path, told)


def check_slots(path: Path, told: Tables) -> None:
    cursors = {row["name"]: row["value"] for row in rows_of(path, "checkpoint", "name,value")}
    read_slot = cursors["read_ms"] // 1_000
    columns = "offset,slot,message_offset,message_size,is_delete,is_roll,topic_hash"
    ahead = [row for row in rows_of(path, "units", columns) if row["slot"] >= read_slot]
    indexes = {row["slot"]: row["index"] for row in rows_of(path, "slots", "slot,index")}
    by_slot = {row["slot"]: row for row in told["slot_load"]}
    assert set(by_slot) == {row["slot"] for row in ahead}
    latest = {row["message_offset"]: row["offset"] for row in ahead}

    def is_superseded(row: dict[str, Any]) -> bool:
        at = row["message_offset"]
        return bool(at < cursors["floor"] or row["offset"] != latest[at])

    topics = {row["topic"] for row in told["due"]}
    rolls = 0
    for slot, found in by_slot.items():
        units = [row for row in ahead if row["slot"] == slot]
        living = [row for row in units if not row["is_delete"] and not is_superseded(row)]
        pages = set[int]()
        for row in living:
            first, last = row["message_offset"], row["message_offset"] + row["message_size"] - 1
            pages.update(range(first // 4_096, last // 4_096 + 1))
        hashes = Counter(row["topic_hash"] & 0xFFFFFFFF for row in living)
        names = {java_hash(topic) & 0xFFFFFFFF: topic for topic in topics}
        net = Counter[bool]()
        for row in units:
            if not is_superseded(row):
                net[row["is_roll"]] += -1 if row["is_delete"] else 1
        rolls += net[True]
        assert found["fires"] == max(0, net[False])
        assert found["units"] == found["depth"] == len(units)
        assert found["deletes"] == sum(row["is_delete"] for row in units)
        assert found["live"] == len(living)
        assert found["live"] - found["late"] == found["expected"]
        assert found["rolls"] == max(0, net[True])
        assert found["bytes"] == sum(row["message_size"] for row in living)
        assert found["read_bytes"] == 4_096 * len(pages)
        assert found["index"] == indexes[slot]
        if living:
            top = {hash for hash, count in hashes.items() if count == found["top_units"]}
            assert found["top_units"] == max(hashes.values())
            assert found["top_topic"] in {names.get(hash, found["top_topic"]) for hash in top}
    assert told["stores"][0]["rolling"] == rolls


@given(st.lists(st.tuples(*[st.integers(-3, 3)] * 3), max_size=30))
def test_what_is_about_the_same_is_added_up(rows: list[tuple[int, ...]]) -> None:
    names, columns = ("hops", "timers", "bytes"), np.array(rows, np.int64).reshape(-1, 3).T
    expected: dict[int, tuple[int, int]] = {}
    for hops, timers, size in rows:
        before = expected.get(hops, (0, 0))
        expected[hops] = before[0] + timers, before[1] + size
    found = summed(ROLLS, facts_of(ROLLS, dict(zip(names, columns, strict=True)))).to_pylist()
    assert {row["hops"]: (row["timers"], row["bytes"]) for row in found} == expected
    assert len(found) == len(expected) and SUMMED[ROLLS] == 1


def test_hashes_are_java_s() -> None:
    assert java_hash("mail") == 3343799


@given(st.integers(1, 60), st.integers(3, 12))
def test_hops(hops: int, window: int) -> None:
    """Step by step, as `wheel/timerwheel.py` puts a timer down again."""
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
